"""Moves the state of a model's routers and of their layers' expert normalization once per optimizer step."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtopp.layers import Gate
from dtopp.model_counts import ModelCounts
from dtopp.router_state import RouterState
from dtopp.routers import DTopP


class RouterUpdater:
    """Calls update() of a model's routers (dtopp.Router) once per optimizer step, with the counts of the step.

    It counts in training mode only, and counts recomputed activations once. It divides the gates' losses by
    the number of layers. Call step() after the optimizer's step, or attach() it there. Call
    dtopp.set_loss_scale(1 / n) if gradients of n micro-batches are added up. Compile, wrap or shard the model
    before or after. Every process of the group must call step() equally often.

    Args:
        model: any module that contains MoE or Gate modules.
        process_group: the group over which counts are added up; by default the default group, if
            torch.distributed is initialized.

    Raises:
        ValueError: no gate; a router whose layers differ in their number of experts.
    """

    def __init__(self, model: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        self.gates = _gates_of(model)
        self.routers = list(dict.fromkeys(gate.router for gate in self.gates))
        self._group = process_group
        self._counts: ModelCounts | None = None
        for gate in self.gates:
            gate.loss_scale.fill_(1 / len(self.gates))
        for router in self.routers:
            experts = sorted({gate.num_experts for gate in self.gates if gate.router is router})
            _expect(len(experts) == 1,
                    f"the same num_experts in all layers of a router, got {', '.join(map(str, experts))}")

    @torch.no_grad()
    def step(self, applied: bool = True) -> None:
        """Ends an optimizer step: collects the counts and updates the routers. With applied False, if the
        optimizer's step was skipped, it drops the counts and changes no router."""
        counts = ModelCounts(self.gates, self._group)
        if not applied:
            return
        self._counts = counts
        for router in self.routers:
            device = next(gate.tally.device for gate in self.gates if gate.router is router)
            router.place(device)
            router.update(counts.of(router, device))
        for layer, gate in enumerate(self.gates):
            if gate.expert_normalization is not None:
                gate.expert_normalization.update(*counts.of_logits(layer))

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Calls step() after each step of the optimizer. The handle's remove() ends that."""
        return optimizer.register_step_post_hook(lambda *_: self.step())

    def state_dict(self) -> dict[str, Any]:
        """The state as numbers and lists. A key is the number of the router, from 0, and a name of its state:
        "0.threshold". The state of expert_normalization is that of a layer: "layer_00.input_mean_D"."""
        return {name: value.tolist() for name, value in self._state().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if a name is missing or unknown, or a shape differs."""
        own = self._state()
        _expect(set(state) == set(own), f"the state {', '.join(own)}, got {', '.join(state)}")
        loaded = {name: torch.as_tensor(state[name], dtype=value.dtype) for name, value in own.items()}
        for name, value in own.items():
            _expect(value.shape == loaded[name].shape,
                    f"{name} of shape {list(value.shape)}, got {list(loaded[name].shape)}")
        for name, value in own.items():
            value.copy_(loaded[name])

    def metrics(self) -> dict[str, float]:
        """The last step's values under the names of metrics.jsonl; moe/threshold is the p used in that step.
        Returns {} before the first step. The host waits for the device."""
        if self._counts is None:
            return {}
        values = self._counts.metrics()
        of_routers = {router: {name: float(value) for name, value in router.metrics().items()}
                      for router in self.routers}
        for name in dict.fromkeys(name for own in of_routers.values() for name in own):
            numbers = [own[name] for own in of_routers.values() if name in own]
            values[f"moe/{name}"] = sum(numbers) / len(numbers)
        for layer, gate in enumerate(self.gates):
            values |= {f"moe/layer_{layer:02d}/{name}": value for name, value in of_routers[gate.router].items()}
        return values

    def _state(self) -> dict[str, Tensor]:
        owners: dict[str, RouterState] = {str(number): router for number, router in enumerate(self.routers)}
        owners |= {f"layer_{layer:02d}": gate.expert_normalization for layer, gate in enumerate(self.gates)
                   if gate.expert_normalization is not None}
        return {f"{owner}.{name}": getattr(state, name) for owner, state in owners.items() for name in state.state_names}


class ThresholdController(RouterUpdater):
    """A RouterUpdater that first gives the layers with router dtop_p new DTopP routers with these options.

    With scope "global", one router serves all layers, so its threshold holds the mean over layers. With scope
    "layer", every layer has its own threshold and target.

    Args:
        model, process_group: as in RouterUpdater.
        kp, ki, controller: as in DTopP.
        scope: "global" or "layer".

    Raises:
        ValueError: no gate; layers that differ in values that one threshold shares; an option out of range.
    """

    def __init__(self, model: nn.Module, kp: float = 0.1, ki: float = 0.1,
                 scope: Literal["global", "layer"] = "global",
                 process_group: dist.ProcessGroup | None = None, *,
                 controller: Literal["pi", "solve"] = "pi") -> None:
        _expect(scope in ("global", "layer"), f"scope global or layer, got '{scope}'")
        _expect(controller in ("pi", "solve"), f"controller pi or solve, got '{controller}'")
        for name, gain in (("kp", kp), ("ki", ki)):
            _expect(isinstance(gain, (int, float)) and gain >= 0, f"{name} of at least 0, got {gain}")

        def router_of(old: DTopP) -> DTopP:
            return DTopP(old.num_experts, old.target_experts, old.initial_threshold, old.max_experts,
                         kp=kp, ki=ki, controller=controller)

        layers = [(gate, gate.router) for gate in _gates_of(model) if type(gate.router) is DTopP]
        if scope == "global" and layers:
            for name in ("num_experts", "target_experts", "initial_threshold", "max_experts"):
                values = sorted({str(getattr(old, name)) for _, old in layers})
                _expect(len(values) == 1, f"layers with the same {name} for scope global, got {', '.join(values)}")
            shared = router_of(layers[0][1])
            for gate, _ in layers:
                gate.set_router(shared)
        else:
            for gate, old in layers:
                gate.set_router(router_of(old))
        super().__init__(model, process_group)


def _gates_of(model: nn.Module) -> list[Gate]:
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    _expect(bool(gates), "a model with dtopp.MoE or dtopp.Gate in it, found none")
    _expect(not any(gate.tally.is_meta for gate in gates),
            "layers with memory; first call to_empty and reset_parameters, or load the model")
    return gates


def _expect(fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"RouterUpdater: expected {expected}")
