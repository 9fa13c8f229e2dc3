"""Routers that compare each logit with a threshold, so that a token may have no expert. Their layers need
normalization "none" and renormalize False."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dtopp.functional import Routing
from dtopp.routers import Router, RouterInput, StepCounts, expect_gate

LOGIT_BINS, LOWEST_LOGIT, BINS_PER_UNIT = 1024, -16.0, 32.0
_SMALLEST_LAMBDA, _LARGEST_LAMBDA = 1e-12, 1e6


class Relu(Router):
    """ReMoE: the experts with a positive logit, which is also their gate.

    The load-balance loss of the layer has mean(gate) / T as Q and the weight lambda, in addition to `load_balance`,
    which should be 0. After each step, lambda is multiplied by `factor` if tokens use more than T target_experts on
    average, and divided by it otherwise. Give one router to all layers to hold the mean over layers.
    """

    state_names = ("weight",)

    def __init__(self, target_experts: float, *, initial_weight: float = 1e-8, factor: float = 1.2) -> None:
        super().__init__()
        self.target_experts, self.factor = target_experts, factor
        self.weight = torch.full((), initial_weight, dtype=torch.float64, device="cpu")
        self._last: dict[str, Tensor] = {}

    def select(self, input: RouterInput) -> Routing:
        expect_gate(self, input, renormalize=False)
        gates_TE = input.logits_TE.relu()
        mean_gate_E = gates_TE.sum(0) / max(len(gates_TE), 1)
        return _own_gates(self.route_by(input, None, top_k=1), gates_TE, gates_TE.detach() != 0)._replace(
            mean_prob_E=mean_gate_E / self.target_experts)

    def load_balance_weight(self) -> Tensor:
        return self.weight

    def update(self, counts: StepCounts) -> None:
        self._last = {"lambda": self.weight.clone()}
        is_above = counts.tokens_per_expert_E.sum() > self.target_experts * counts.tokens
        moved = torch.where(is_above, self.weight * self.factor, self.weight / self.factor)
        self.move(counts, weight=moved.clamp(_SMALLEST_LAMBDA, _LARGEST_LAMBDA))

    def metrics(self) -> dict[str, Tensor]:
        return self._last


class ExpertThreshold(Router):
    """Each expert takes the tokens whose logit reaches its own threshold tau, which the best target_experts /
    num_experts of all tokens exceed. The gates are sigmoid(z). After step n:

        cut_E <- decay cut_E + (1 - decay) (logit of that rank)        tau = cut_E / (1 - decay^n)

    The first step takes the target_experts likeliest experts.
    """

    state_names = ("cut_E", "cut_steps")

    def __init__(self, num_experts: int, target_experts: float, *, decay: float = 0.99) -> None:
        super().__init__()
        self.share, self.first_experts, self.decay = target_experts / num_experts, int(target_experts + 0.5), decay
        self.statistics_size = num_experts * LOGIT_BINS
        self.cut_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")
        self.cut_steps = torch.zeros((), dtype=torch.int64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        expect_gate(self, input, renormalize=False)
        z_TE = input.logits_TE
        first = self.route_by(input, None, top_k=self.first_experts)
        reached_TE = ~(z_TE.detach() < self._thresholds().to(z_TE.device, z_TE.dtype))
        chosen_TE = torch.where((self.cut_steps > 0).to(z_TE.device), reached_TE, first.gates_TE.detach() != 0)
        routing = _own_gates(first, F.logsigmoid(z_TE).exp().where(chosen_TE, 0), chosen_TE)
        return routing._replace(statistics=logit_histogram(z_TE.detach()).flatten()) if input.training else routing

    def update(self, counts: StepCounts) -> None:
        rank = (counts.tokens * self.share + 0.5).floor().clamp(min=1)
        cut_E = ranked_logit(counts.statistics.view(-1, LOGIT_BINS), rank)
        self.move(counts, cut_E=self.cut_E * self.decay + cut_E * (1 - self.decay), cut_steps=self.cut_steps + 1)

    def metrics(self) -> dict[str, Tensor]:
        tau_E = self._thresholds().float()
        return {"cut": tau_E.mean(), "cut_spread": tau_E.max() - tau_E.min()}

    def _thresholds(self) -> Tensor:
        return self.cut_E / (1 - self.decay ** self.cut_steps)


def logit_histogram(logits_TE: Tensor) -> Tensor:
    """Counts each expert's logits, int64 [E, 1024]: bins of 1 / 32 from -16. The outermost also count what lies beyond."""
    bin_TE = ((logits_TE - LOWEST_LOGIT) * BINS_PER_UNIT).clamp(0, LOGIT_BINS - 1).nan_to_num(0).long()
    counts = torch.zeros(logits_TE.shape[1], LOGIT_BINS, dtype=torch.int64, device=logits_TE.device)
    return counts.scatter_add(1, bin_TE.T, torch.ones_like(bin_TE.T))


def ranked_logit(counts_EB: Tensor, rank: Tensor) -> Tensor:
    """The rank-th largest logit of each expert, f64 [E], linear inside its bin."""
    reached_EB = counts_EB.double().flip(-1).cumsum(-1).flip(-1)
    bin_E1 = ((reached_EB >= rank).sum(-1, keepdim=True) - 1).clamp(min=0)
    inside_E1 = counts_EB.double().gather(-1, bin_E1)
    part_E1 = (rank - (reached_EB.gather(-1, bin_E1) - inside_E1)) / inside_E1
    return ((bin_E1 + 1 - part_E1) / BINS_PER_UNIT + LOWEST_LOGIT).squeeze(-1)


def _own_gates(routing: Routing, gates_TE: Tensor, chosen_TE: Tensor) -> Routing:
    """The gates and counts of a selection, with the means of `routing`."""
    active_T = chosen_TE.sum(-1)
    histogram = torch.zeros_like(routing.active_histogram).scatter_add(0, active_T, torch.ones_like(active_T))
    return routing._replace(gates_TE=gates_TE, tokens_per_expert_E=chosen_TE.sum(0), active_histogram=histogram)
