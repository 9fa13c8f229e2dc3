"""Holds the mean number of active experts at its target, by moving the routers' threshold."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtopp.layers import DTopPRouter
from dtopp.mass_curve import MAX_THRESHOLD, MIN_THRESHOLD, MassCurve
from dtopp.step_counts import StepCounts

_AUTO_KP, _AUTO_KI = 0.1, 0.3
_MOST_OWED = 0.5  # of T, that error_sum stands for
_MADE_UP_FOR, _MOST_MADE_UP_FOR = 0.5, 0.1  # of what is owed, in a step; of T, no more

Gain = float | Literal["auto"]


class ThresholdController:
    """Once per optimiser step, with a the mean number of experts that the step's tokens chose (over
    micro-batches, processes and, for scope global, layers), T the routers' target_experts and E their
    experts:

        e = (T - a) / E        controller pi: error_sum += e
        p <- p_0 + kp e + ki error_sum, clipped to [1e-6, 1 - 1e-6]

    Where that p lies beyond a bound and e pushes outwards, e is left out of error_sum and p is the bound. A
    gain that is "auto" is 0.1 (kp), 0.3 (ki) over (da/dp) / E, da/dp the rise of the step's curve a(p)
    towards the target; with ki "auto" error_sum stands for the sum of ki e. controller "solve" needs no
    gains: p is where that curve reaches T plus half of what was missing so far.

    It counts in training mode alone, what is recomputed once. It divides the routers' losses by their number,
    and with method top_k or top_p that and metrics() are all it does. Call step() after the optimiser's, or
    attach() it there; set_loss_scale(1 / n) where gradients of n micro-batches are added up. Compile, wrap or
    shard the model before or after; every process of the group must take its steps.

    Args:
        model: any module with MoE or DTopPRouter modules in it.
        kp, ki: the gains of controller pi, numbers of at least 0 or "auto".
        scope: "global", one threshold for all layers; "layer", one each, with its own target.
        process_group: whose counts are added up; the default group where torch.distributed is initialised.
        controller: "pi" or "solve".

    Raises:
        ValueError: no router; routers that differ in what one threshold shares; an option out of range.
    """

    def __init__(self, model: nn.Module, kp: Gain = 0.1, ki: Gain = 0.1,
                 scope: Literal["global", "layer"] = "global",
                 process_group: dist.ProcessGroup | None = None, *,
                 controller: Literal["pi", "solve"] = "pi") -> None:
        self.routers = [module for module in model.modules() if isinstance(module, DTopPRouter)]
        self.kp, self.ki, self.scope, self.controller = kp, ki, scope, controller
        self._group = process_group
        self._check()
        self._device = self.routers[0].threshold.device  # of its own numbers, wherever the model goes
        first = self.routers if scope == "layer" else self.routers[:1]
        self._holds = first[0].method == "dtop_p"
        self._initial_C = self._list([router.initial_threshold for router in first])
        self._target_C = self._list([router.target_experts for router in first])
        self._experts_C = self._list([router.num_experts for router in first])
        self._threshold_C, self._error_sum_C = self._initial_C, torch.zeros_like(self._initial_C)
        self._solved_C = torch.full_like(self._initial_C, torch.nan)
        self._needs_masses = self._holds and (controller == "solve" or "auto" in (kp, ki))
        for router in self.routers:
            router.counts_masses = self._needs_masses
        self._used_C = self._threshold_C
        self._counts: StepCounts | None = None
        self.set_loss_scale(1.0)
        self._write()

    @torch.no_grad()
    def step(self, applied: bool = True) -> None:
        """One optimiser step has passed: takes what was counted and moves p. With applied False, where the
        optimiser's step was skipped, what was counted is dropped and p stays."""
        counts = StepCounts(self.routers, self._group)
        if not applied:
            return
        self._counts, self._used_C = counts, self._threshold_C
        if not self._holds:
            return
        selected_C, tokens_C = counts.selected_L(), counts.tokens_L()
        if self.scope == "global":
            selected_C, tokens_C = selected_C.sum(0, keepdim=True), tokens_C.sum(0, keepdim=True)
        self._update(selected_C.to(self._device), tokens_C.to(self._device), counts)
        self._write()

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Takes a step after each of the optimiser's; the handle's remove() ends that."""
        return optimizer.register_step_post_hook(lambda *_: self.step())

    def set_loss_scale(self, scale: float) -> None:
        """What the routers' losses are multiplied by: 1 / n for the mean over n micro-batches, as the model's
        own loss is by whoever calls backward."""
        for router in self.routers:
            router.loss_scale.fill_(scale / len(self.routers))

    def state_dict(self) -> dict[str, Any]:
        """threshold and error_sum as in a checkpoint's state.json: numbers, or lists of one a layer."""
        values = {"threshold": self._threshold_C.tolist(), "error_sum": self._error_sum_C.tolist()}
        return values if self.scope == "layer" else {name: one for name, (one,) in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for a state of another number of layers, KeyError where a value is missing."""
        loaded = {}
        for name in ("threshold", "error_sum"):
            values = state[name] if isinstance(state[name], (list, tuple)) else [state[name]]
            if len(values) != self._threshold_C.numel():
                raise ValueError(f"ThresholdController: {name} is of {len(values)} controllers, expected "
                                 f"{self._threshold_C.numel()}")
            loaded[name] = self._list(values)
        self._threshold_C, self._error_sum_C = loaded["threshold"], loaded["error_sum"]
        self._write()

    def metrics(self) -> dict[str, float]:
        """Numbers of the last step by the names of metrics.jsonl, moe/threshold the p used in it; {} before
        one. The host waits for the device."""
        if self._counts is None:
            return {}
        values = self._counts.metrics()
        if self.routers[0].method != "top_k":
            values |= self._per_layer("threshold", self._used_C)
        if self._needs_masses:
            values |= self._per_layer("threshold_solved", self._solved_C)
        return values

    def _per_layer(self, name: str, value_C: Tensor) -> dict[str, float]:
        values = value_C.tolist()
        layers = values if self.scope == "layer" else values * len(self.routers)
        return {f"moe/{name}": sum(values) / len(values)} | {
            f"moe/layer_{layer:02d}/{name}": value for layer, value in enumerate(layers)}

    def _update(self, selected_C: Tensor, tokens_C: Tensor, counts: StepCounts) -> None:
        active_C = selected_C / tokens_C.clamp(min=1)
        error_C = (self._target_C - active_C) / self._experts_C
        curve = None
        if self._needs_masses:
            masses_CM = counts.masses_CM(self.scope == "layer").to(tokens_C.device)
            curve = MassCurve(masses_CM, self._threshold_C, active_C, tokens_C.clamp(min=1))
        if curve is not None and self.controller == "solve":
            threshold_C, error_sum_C = self._solve(error_C, curve)
        else:
            threshold_C, error_sum_C = self._paper_law(error_C, curve)
        seen_C = tokens_C > 0
        if curve is not None:
            self._solved_C = curve.threshold(self._target_C)
        self._threshold_C = torch.where(seen_C, threshold_C, self._threshold_C)
        self._error_sum_C = torch.where(seen_C, error_sum_C, self._error_sum_C)

    def _paper_law(self, error_C: Tensor, curve: MassCurve | None) -> tuple[Tensor, Tensor]:
        gain_C = error_C if curve is None else curve.slope(self._target_C) / self._experts_C

        def times(gain: Gain, automatic: float, value_C: Tensor) -> Tensor:
            return value_C * automatic / gain_C if gain == "auto" else value_C * gain

        auto_ki = self.ki == "auto"
        sum_C = self._error_sum_C + (times(self.ki, _AUTO_KI, error_C) if auto_ki else error_C)
        integral_C = sum_C if auto_ki else times(self.ki, _AUTO_KI, sum_C)
        p_C = times(self.kp, _AUTO_KP, error_C) + self._initial_C + integral_C
        winds_up_C = ((p_C > MAX_THRESHOLD) & (error_C > 0)) | ((p_C < MIN_THRESHOLD) & (error_C < 0))
        return p_C.clamp(MIN_THRESHOLD, MAX_THRESHOLD), torch.where(winds_up_C, self._error_sum_C, sum_C)

    def _solve(self, error_C: Tensor, curve: MassCurve) -> tuple[Tensor, Tensor]:
        unit_C = self._target_C / self._experts_C
        # Nobody is to be blamed for how far p_0 missed.
        sum_C = self._error_sum_C + error_C * (self._threshold_C != self._initial_C)
        most_C, most_now_C = unit_C * _MOST_OWED, unit_C * _MOST_MADE_UP_FOR
        sum_C = torch.maximum(torch.minimum(sum_C, most_C), -most_C)
        now_C = torch.maximum(torch.minimum(sum_C * _MADE_UP_FOR, most_now_C), -most_now_C)
        return curve.threshold(self._target_C + now_C * self._experts_C), sum_C

    def _write(self) -> None:
        # expand: one for all, or as many as there are already.
        for router, threshold in zip(self.routers, self._threshold_C.expand(len(self.routers))):
            router.threshold.copy_(threshold)

    def _list(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)

    def _check(self) -> None:
        _expect(bool(self.routers), "a model with dtopp.MoE or dtopp.DTopPRouter in it, found none")
        _expect(not any(router.threshold.is_meta for router in self.routers),
                "routers with memory: call to_empty and reset_parameters, or load the model, before")
        _expect(self.scope in ("global", "layer"), f"scope global or layer, got '{self.scope}'")
        _expect(self.controller in ("pi", "solve"), f"controller pi or solve, got '{self.controller}'")
        for name, gain in (("kp", self.kp), ("ki", self.ki)):
            _expect(gain == "auto" or (isinstance(gain, (int, float)) and gain >= 0),
                    f"{name} of at least 0 or 'auto', got {gain}")
        shared = ["method"]
        if self.scope == "global":
            shared += ["num_experts", "target_experts", "initial_threshold"]
        for name in shared:
            values = sorted({str(getattr(router, name)) for router in self.routers})
            _expect(len(values) == 1,
                    f"routers of one {name} for scope {self.scope}, got {', '.join(values)}")


def _expect(fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"ThresholdController: expected {expected}")
