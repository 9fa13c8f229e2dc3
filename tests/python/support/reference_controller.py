"""The threshold controller of DTop-p in plain Python (paper, Eqs. 5, 6, 8 and 9), as a reference for dtopp."""


class Controller:
    """p = p_0 + K_p e + K_i sum(e), e = (T - a) / E; one p for all layers or one per layer."""

    LOW, HIGH = 1e-6, 1 - 1e-6

    def __init__(self, config, state=None):
        state = state or {}  # only DTop-p has p in its state
        self.routing = config["routing"]
        self.num_layers = config["model"]["num_layers"]
        self.num_experts = config["model"]["num_experts"]
        self.per_layer = self.routing["scope"] == "layer"
        count = self.num_layers if self.per_layer else 1

        def listed(value):
            return list(value) if isinstance(value, list) else [value] * count

        self.targets = listed(self.routing["experts"])
        self.targets = self.targets * count if len(self.targets) == 1 else self.targets
        self.p = listed(state.get("threshold_C", self.routing["threshold"]))
        self.error_sum = listed(state.get("error_sum_C", 0.0))

    def thresholds(self):
        return self.p if self.per_layer else self.p * self.num_layers

    def update(self, active_per_layer):
        """Updates the thresholds from every layer's active experts per token."""
        if self.routing["method"] != "dtop_p":
            return
        measured = active_per_layer if self.per_layer else [sum(active_per_layer) / len(active_per_layer)]
        for i, a in enumerate(measured):
            e = (self.targets[i] - a) / self.num_experts
            proportional = self.routing["threshold"] + self.routing["kp"] * e
            p = proportional + self.routing["ki"] * (self.error_sum[i] + e)
            outwards = (p > self.HIGH and e > 0) or (p < self.LOW and e < 0)
            if not (self.routing["anti_windup"] and outwards):
                self.error_sum[i] += e
            self.p[i] = min(max(p, self.LOW), self.HIGH)
