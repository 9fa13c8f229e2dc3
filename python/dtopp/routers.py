"""The routers: how tokens select their experts, and the state that moves after each optimizer step. T tokens,
E experts."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dtopp import functional
from dtopp.active_expert_curve import MAX_THRESHOLD, MIN_THRESHOLD, ActiveExpertCurve
from dtopp.functional import Normalization, Renormalize, Routing
from dtopp.router_state import RouterState

CUMULATIVE_PROB_BINS = 4096
_MOST_OWED = 0.5  # fraction of T: limit of error_sum
_MADE_UP_FOR, _MOST_MADE_UP_FOR = 0.5, 0.1  # fraction of the error sum per step; its limit as a fraction of T


class RouterInput(NamedTuple):
    """The input of Router.select: one layer and micro-batch."""

    logits_TE: Tensor
    """f32 (f64) [T, E]: z."""
    scale: Tensor
    """f32 (f64) []: theta, 1 unless the normalization is dynamic."""
    normalization: Normalization
    renormalize: Renormalize
    training: bool
    """Whether update() will need Routing.statistics."""
    zero_experts: int = 0
    """The last columns of the logits that are zero experts. Their columns are in the result of select(), too."""
    ids_T: Tensor | None = None
    """int64 [T]: the tokens' ids, if the layer is given them."""


class StepCounts(NamedTuple):
    """The sums of an optimizer step, over the router's layers, micro-batches and processes."""

    tokens_per_expert_E: Tensor
    """int64 [E]."""
    tokens: Tensor
    """int64 []: tokens of all layers of the router."""
    statistics: Tensor
    """int64 [statistics_size]: sums of Routing.statistics."""


class Router(RouterState):
    """Selects the experts of each token. It mirrors the Router of the program (dtopp/moe/router.h).

    A router serves every layer that is given it: give each layer its own, or one to several layers that share
    its state. A subclass defines

    - select(), called per layer and micro-batch. A token's experts may depend on its logits and the state
      only, so that training and generation select the same experts;
    - state_names, the attributes that hold the state, tensors of a fixed shape. They move with the layer's
      device and are never converted to another dtype. RouterUpdater saves and loads them;
    - update(), called per optimizer step without gradients. It changes the state;
    - metrics(), values of the last step by name.
    """

    has_logits = True
    """Whether the layer computes logits; if not, it has no router matrix, and select() gets an empty tensor for them."""
    statistics_size = 0
    """The number of elements of Routing.statistics that select() returns in training; 0 for none."""

    def select(self, input: RouterInput) -> Routing:
        raise NotImplementedError(f"{type(self).__name__}: select() is missing")

    def update(self, counts: StepCounts) -> None:
        pass

    def move(self, counts: StepCounts, **state: Tensor) -> None:
        """For update(): gives the state these values by name. A step without tokens changes nothing."""
        for name, value in state.items():
            own = getattr(self, name)
            own.copy_(torch.where(counts.tokens > 0, value, own))

    def load_balance_weight(self) -> Tensor | None:
        """A weight of the load-balance loss that the router moves, added to the layer's own."""
        return None

    def metrics(self) -> dict[str, Tensor]:
        return {}

    def probs(self, input: RouterInput) -> Tensor:
        """P, f32 (f64) [T, E]: the softmax of the normalized logits. Differentiable."""
        return functional.probs(input.logits_TE, input.scale, normalization=input.normalization)

    def route_to(self, input: RouterInput, chosen_TE: Tensor) -> Routing:
        """The gates and counts of the given experts, bool [T, E]."""
        return functional.route_selected(input.logits_TE, input.scale, chosen_TE,
                                         normalization=input.normalization, renormalize=input.renormalize)

    def route_by(self, input: RouterInput, threshold: Tensor | None, top_k: int = 0, max_experts: int = 0) -> Routing:
        """The gates and counts of the top_k likeliest experts or, with 0, of those that reach the threshold."""
        if threshold is None:
            threshold = input.logits_TE.new_zeros((), dtype=torch.float64)
        return functional.route(input.logits_TE, input.scale, threshold.to(input.logits_TE.device),
                                normalization=input.normalization, top_k=top_k, max_experts=max_experts,
                                renormalize=input.renormalize)


class TopK(Router):
    """The top_k likeliest experts of each token."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def select(self, input: RouterInput) -> Routing:
        return self.route_by(input, None, top_k=self.top_k)


class TopP(Router):
    """The likeliest experts of each token until their probabilities reach the threshold, a constant."""

    state_names: tuple[str, ...] = ("threshold",)

    def __init__(self, threshold: float, max_experts: int = 0) -> None:
        super().__init__()
        self.initial_threshold, self.max_experts = threshold, max_experts
        self.threshold = _number(threshold)

    def select(self, input: RouterInput) -> Routing:
        return self.route_by(input, self.threshold, max_experts=self.max_experts)

    def metrics(self) -> dict[str, Tensor]:
        return {"threshold": self.threshold}


class DTopP(TopP):
    """Top-p whose threshold p moves after each step so that tokens select target_experts on average.

    With a, the mean number of experts per token of the step, T target_experts and E num_experts:

        e = (T - a) / E        controller pi: error_sum += e
        p <- p_0 + kp e + ki error_sum, clipped to [1e-6, 1 - 1e-6]

    If that p lies beyond a bound and e pushes outwards, e is left out of error_sum and p is the bound.
    Controller "solve" needs no gains: p is the point where the step's curve a(p) reaches T plus half of the
    shortfall so far.
    """

    state_names: tuple[str, ...] = ("threshold", "error_sum", "steps")

    def __init__(self, num_experts: int, target_experts: float, threshold: float = 0.25, max_experts: int = 0,
                 *, kp: float = 0.1, ki: float = 0.1, controller: Literal["pi", "solve"] = "pi") -> None:
        super().__init__(threshold, max_experts)
        self.num_experts, self.target_experts = num_experts, target_experts
        self.kp, self.ki, self.controller = kp, ki, controller
        self.statistics_size = CUMULATIVE_PROB_BINS if controller == "solve" else 0
        self.error_sum = _number(0.0)
        self.steps = torch.zeros((), dtype=torch.int64, device="cpu")  # with tokens
        self._last: dict[str, Tensor] = {}

    def select(self, input: RouterInput) -> Routing:
        routing = super().select(input)
        if not (input.training and self.statistics_size):
            return routing
        return routing._replace(statistics=functional.cumulative_prob_histogram(
            input.logits_TE, input.scale, normalization=input.normalization, max_experts=self.max_experts,
            zero_experts=input.zero_experts))

    def update(self, counts: StepCounts) -> None:
        tokens = counts.tokens.clamp(min=1).double()
        active = counts.tokens_per_expert_E.sum().double() / tokens
        error = (self.target_experts - active) / self.num_experts
        self._last = {"threshold": self.threshold.clone()}
        if self.controller == "solve":
            curve = ActiveExpertCurve(counts.statistics.double()[None], self.threshold[None], active[None],
                                      tokens[None])
            self._last["threshold_solved"] = curve.threshold(torch.full_like(active, self.target_experts)[None])[0]
            threshold, error_sum = self._solve(error, curve)
        else:
            threshold, error_sum = self._paper_law(error)
        self.move(counts, threshold=threshold, error_sum=error_sum, steps=self.steps + 1)

    def metrics(self) -> dict[str, Tensor]:
        """The threshold that the last step used, and with "solve" the one that would have met the target."""
        return self._last

    def _paper_law(self, error: Tensor) -> tuple[Tensor, Tensor]:
        error_sum = self.error_sum + error
        p = self.kp * error + self.initial_threshold + self.ki * error_sum
        winds_up = ((p > MAX_THRESHOLD) & (error > 0)) | ((p < MIN_THRESHOLD) & (error < 0))
        return p.clamp(MIN_THRESHOLD, MAX_THRESHOLD), torch.where(winds_up, self.error_sum, error_sum)

    def _solve(self, error: Tensor, curve: ActiveExpertCurve) -> tuple[Tensor, Tensor]:
        unit = self.target_experts / self.num_experts
        # Exclude the step that used p_0: the user chose it.
        error_sum = (self.error_sum + error * (self.steps > 0)).clamp(-unit * _MOST_OWED, unit * _MOST_OWED)
        now = (error_sum * _MADE_UP_FOR).clamp(-unit * _MOST_MADE_UP_FOR, unit * _MOST_MADE_UP_FOR)
        return curve.threshold((self.target_experts + now * self.num_experts)[None])[0], error_sum


def expect_gate(router: Router, input: RouterInput, renormalize: Renormalize) -> None:
    """Raises ValueError unless the layer's normalization is none, renormalize has this value, and there are no zero
    experts."""
    if input.zero_experts > 0:
        raise ValueError(f"{type(router).__name__}: expected a layer without zero experts, got {input.zero_experts}")
    if input.normalization != "none" or input.renormalize != renormalize:
        raise ValueError(f"{type(router).__name__}: expected a layer with normalization none and renormalize {renormalize}, "
                         f"got {input.normalization} and {input.renormalize}")


def _number(value: float) -> Tensor:
    # On the CPU also under torch.device("meta"): a layer moves it to its own device.
    return torch.full((), value, dtype=torch.float64, device="cpu")
