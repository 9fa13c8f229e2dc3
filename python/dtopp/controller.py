"""Holds the mean number of active experts at its target by moving the routers' threshold."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dtopp.layers import DTopPRouter
from dtopp.active_expert_curve import MAX_THRESHOLD, MIN_THRESHOLD, ActiveExpertCurve
from dtopp.step_counts import StepCounts

_MOST_OWED = 0.5  # fraction of T: limit of error_sum
_MADE_UP_FOR, _MOST_MADE_UP_FOR = 0.5, 0.1  # fraction of the error sum per step; its limit as a fraction of T


class ThresholdController:
    """Updates the threshold p once per optimizer step.

    The update uses a, the mean number of experts that the step's tokens selected (over micro-batches,
    processes and, for scope global, layers), the routers' target_experts T and their number of experts E:

        e = (T - a) / E        controller pi: error_sum += e
        p <- p_0 + kp e + ki error_sum, clipped to [1e-6, 1 - 1e-6]

    If that p lies beyond a bound and e pushes outwards, e is left out of error_sum and p is the bound.
    Controller "solve" needs no gains: p is the point where the step's curve a(p) reaches T plus half of the
    shortfall so far.

    The controller counts in training mode only, and counts recomputed activations once. It divides the
    routers' losses by the number of routers; with method top_k or top_p it does nothing else but metrics().
    Call step() after the optimizer's step, or attach() it there. Call dtopp.set_loss_scale(1 / n) if gradients
    of n micro-batches are added up. Compile, wrap or shard the model before or after. Every process of the
    group must call step() equally often.

    Args:
        model: any module that contains MoE or DTopPRouter modules.
        kp, ki: the gains of controller pi, at least 0.
        scope: "global", one threshold for all layers; "layer", one per layer with its own target.
        process_group: the group over which counts are added up; by default the default group, if
            torch.distributed is initialised.
        controller: "pi" or "solve".

    Raises:
        ValueError: no router; routers that differ in values that one threshold shares; an option out of range.
    """

    def __init__(self, model: nn.Module, kp: float = 0.1, ki: float = 0.1,
                 scope: Literal["global", "layer"] = "global",
                 process_group: dist.ProcessGroup | None = None, *,
                 controller: Literal["pi", "solve"] = "pi") -> None:
        self.routers = [module for module in model.modules() if isinstance(module, DTopPRouter)]
        self.kp, self.ki, self.scope, self.controller = kp, ki, scope, controller
        self._group = process_group
        self._check()
        self._device = self.routers[0].threshold.device  # does not follow the model
        first = self.routers if scope == "layer" else self.routers[:1]
        self._holds = first[0].method == "dtop_p"
        self._initial_C = self._list([router.initial_threshold for router in first])
        self._target_C = self._list([router.target_experts for router in first])
        self._experts_C = self._list([router.num_experts for router in first])
        self._threshold_C, self._error_sum_C = self._initial_C, torch.zeros_like(self._initial_C)
        self._steps = torch.zeros((), dtype=torch.int64, device=self._device)  # with tokens
        self._solved_C = torch.full_like(self._initial_C, torch.nan)
        self._needs_histogram = self._holds and controller == "solve"
        for router in self.routers:
            router.counts_probs = self._needs_histogram
        self._used_C = self._threshold_C
        self._counts: StepCounts | None = None
        for router in self.routers:
            router.loss_scale.fill_(1 / len(self.routers))
        self._write()

    @torch.no_grad()
    def step(self, applied: bool = True) -> None:
        """Ends an optimizer step: collects the counts and updates p. With applied False, if the optimizer's
        step was skipped, it drops the counts and keeps p."""
        counts = StepCounts(self.routers, self._group)
        if not applied:
            return
        self._counts, self._used_C = counts, self._threshold_C
        if not self._holds:
            return
        num_assignments_C, tokens_C = counts.num_assignments_L(), counts.tokens_L()
        if self.scope == "global":
            num_assignments_C, tokens_C = num_assignments_C.sum(0, keepdim=True), tokens_C.sum(0, keepdim=True)
        self._update(num_assignments_C.to(self._device), tokens_C.to(self._device), counts)
        self._write()

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Calls step() after each step of the optimizer. The handle's remove() ends that."""
        return optimizer.register_step_post_hook(lambda *_: self.step())

    def state_dict(self) -> dict[str, Any]:
        """threshold, error_sum and steps as in a checkpoint's router.safetensors. The first two are numbers, or
        lists with one number per layer."""
        values = {"threshold": self._threshold_C.tolist(), "error_sum": self._error_sum_C.tolist()}
        numbers = values if self.scope == "layer" else {name: one for name, (one,) in values.items()}
        return numbers | {"steps": int(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for a state with another number of layers, KeyError if a value is missing."""
        loaded = {}
        for name in ("threshold", "error_sum"):
            values = state[name] if isinstance(state[name], (list, tuple)) else [state[name]]
            if len(values) != self._threshold_C.numel():
                raise ValueError(f"ThresholdController: {name} has values of {len(values)} controllers, expected "
                                 f"{self._threshold_C.numel()}")
            loaded[name] = self._list(values)
        self._steps = torch.full_like(self._steps, state["steps"])
        self._threshold_C, self._error_sum_C = loaded["threshold"], loaded["error_sum"]
        self._write()

    def metrics(self) -> dict[str, float]:
        """The last step's values under the names of metrics.jsonl; moe/threshold is the p used in that step.
        Returns {} before the first step. The host waits for the device."""
        if self._counts is None:
            return {}
        values = self._counts.metrics()
        if self.routers[0].method != "top_k":
            values |= self._per_layer("threshold", self._used_C)
        if self._needs_histogram:
            values |= self._per_layer("threshold_solved", self._solved_C)
        return values

    def _per_layer(self, name: str, value_C: Tensor) -> dict[str, float]:
        values = value_C.tolist()
        layers = values if self.scope == "layer" else values * len(self.routers)
        return {f"moe/{name}": sum(values) / len(values)} | {
            f"moe/layer_{layer:02d}/{name}": value for layer, value in enumerate(layers)}

    def _update(self, num_assignments_C: Tensor, tokens_C: Tensor, counts: StepCounts) -> None:
        active_C = num_assignments_C / tokens_C.clamp(min=1)
        error_C = (self._target_C - active_C) / self._experts_C
        if self._needs_histogram:
            prob_histogram_CM = counts.prob_histogram_CM(self.scope == "layer").to(tokens_C.device)
            curve = ActiveExpertCurve(prob_histogram_CM, self._threshold_C, active_C, tokens_C.clamp(min=1))
            self._solved_C = curve.threshold(self._target_C)
            threshold_C, error_sum_C = self._solve(error_C, curve)
        else:
            threshold_C, error_sum_C = self._paper_law(error_C)
        seen_C = tokens_C > 0
        self._steps = self._steps + seen_C.any()
        self._threshold_C = torch.where(seen_C, threshold_C, self._threshold_C)
        self._error_sum_C = torch.where(seen_C, error_sum_C, self._error_sum_C)

    def _paper_law(self, error_C: Tensor) -> tuple[Tensor, Tensor]:
        sum_C = self._error_sum_C + error_C
        p_C = self.kp * error_C + self._initial_C + self.ki * sum_C
        winds_up_C = ((p_C > MAX_THRESHOLD) & (error_C > 0)) | ((p_C < MIN_THRESHOLD) & (error_C < 0))
        return p_C.clamp(MIN_THRESHOLD, MAX_THRESHOLD), torch.where(winds_up_C, self._error_sum_C, sum_C)

    def _solve(self, error_C: Tensor, curve: ActiveExpertCurve) -> tuple[Tensor, Tensor]:
        unit_C = self._target_C / self._experts_C
        # Exclude the step that used p_0: the user chose it.
        sum_C = self._error_sum_C + error_C * (self._steps > 0)
        most_C, most_now_C = unit_C * _MOST_OWED, unit_C * _MOST_MADE_UP_FOR
        sum_C = torch.maximum(torch.minimum(sum_C, most_C), -most_C)
        now_C = torch.maximum(torch.minimum(sum_C * _MADE_UP_FOR, most_now_C), -most_now_C)
        return curve.threshold(self._target_C + now_C * self._experts_C), sum_C

    def _write(self) -> None:
        # expand: one value for all routers, or one per router already.
        for router, threshold in zip(self.routers, self._threshold_C.expand(len(self.routers))):
            router.threshold.copy_(threshold)

    def _list(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)

    def _check(self) -> None:
        _expect(bool(self.routers), "a model with dtopp.MoE or dtopp.DTopPRouter in it, found none")
        _expect(not any(router.threshold.is_meta for router in self.routers),
                "routers with memory; first call to_empty and reset_parameters, or load the model")
        _expect(self.scope in ("global", "layer"), f"scope global or layer, got '{self.scope}'")
        _expect(self.controller in ("pi", "solve"), f"controller pi or solve, got '{self.controller}'")
        for name, gain in (("kp", self.kp), ("ki", self.ki)):
            _expect(isinstance(gain, (int, float)) and gain >= 0, f"{name} of at least 0, got {gain}")
        shared = ["method"]
        if self.scope == "global":
            shared += ["num_experts", "target_experts", "initial_threshold"]
        for name in shared:
            values = sorted({str(getattr(router, name)) for router in self.routers})
            _expect(len(values) == 1,
                    f"routers with the same {name} for scope {self.scope}, got {', '.join(values)}")


def _expect(fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"ThresholdController: expected {expected}")
