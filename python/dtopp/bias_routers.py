"""Routers that balance the load of the experts without a loss. A bias per expert decides which experts tokens select,
and has no part in their gates. After each step, with c the tokens per expert, the rule "sign" moves the biases:

    bias_E += rate sign(mean(c) - c)

"quantile" gives each expert the bias with which it would have had mean(c) tokens if the other biases stayed
(dtopp/moe/expert_bias.h).
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dtopp import functional
from dtopp.functional import Routing
from dtopp.plain import normalized
from dtopp.routers import DTopP, Router, RouterInput, StepCounts, expect_gate


Rule = Literal["sign", "quantile"]


class TopKBias(Router):
    """The top_k experts with the largest sigmoid(z) + bias. The gates are the selected sigmoid(z) over their sum. The
    layer needs normalization "none"."""

    state_names = ("bias_E",)
    most = 2.0
    """The histograms of the rule quantile cover biases from -most to most."""

    def __init__(self, num_experts: int, top_k: int, *, rate: float = 1e-3, rule: Rule = "sign") -> None:
        super().__init__()
        self.top_k, self.rate, self.rule = top_k, rate, rule
        self.statistics_size = num_experts * _BINS if rule == "quantile" else 0
        self.bias_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        expect_gate(self, input, renormalize=input.renormalize)
        score_TE, bias_E = input.logits_TE.detach().sigmoid(), _centered(self.bias_E, input)
        chosen_TE = _largest(score_TE + bias_E, torch.full_like(score_TE[:, :1], self.top_k))
        # softmax(log sigmoid(z)) = sigmoid(z) / sum of sigmoid(z)
        routing = functional.route_selected(F.logsigmoid(input.logits_TE), input.scale, chosen_TE,
                                            normalization="none", renormalize=input.renormalize)
        if input.training and self.rule == "quantile":
            routing = routing._replace(statistics=_histogram(score_TE, bias_E, chosen_TE, self.most))
        lse_T = input.logits_TE.logsumexp(-1)  # of z, not of log sigmoid(z)
        return routing._replace(router_z=lse_T.square().sum() / max(len(lse_T), 1))

    def update(self, counts: StepCounts) -> None:
        _update_bias(self, counts, counts.statistics)

    def metrics(self) -> dict[str, Tensor]:
        return {"bias_spread": self.bias_E.max() - self.bias_E.min()}


class TopKBiasZero(Router):
    """The top_k of E experts and the layer's zero experts with the largest P + bias, so that tokens take 0 to top_k
    experts. Zero experts have no bias. After each step of M tokens:

        bias_E += rate (T / E - c / M)        T target_experts

    This balances the load and holds the mean number of experts at T. The layer needs zero_experts."""

    state_names = ("bias_E",)

    def __init__(self, num_experts: int, top_k: int, target_experts: float, *, rate: float = 1e-3) -> None:
        super().__init__()
        self.top_k, self.target_experts, self.rate = top_k, target_experts, rate
        self.bias_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        bias_C = F.pad(self.bias_E.to(input.logits_TE.device, input.logits_TE.dtype), (0, input.zero_experts))
        score_TC = self.probs(input).detach() + bias_C
        return self.route_to(input, _largest(score_TC, torch.full_like(score_TC[:, :1], self.top_k)))

    def update(self, counts: StepCounts) -> None:
        load_E = counts.tokens_per_expert_E.double() / counts.tokens.clamp(min=1)
        self.move(counts, bias_E=self.bias_E + self.rate * (self.target_experts / len(self.bias_E) - load_E))

    def metrics(self) -> dict[str, Tensor]:
        return {"bias_spread": self.bias_E.max() - self.bias_E.min()}


class DTopPBias(DTopP):
    """As many experts per token as DTopP: those with the largest s + bias, s the inputs of the softmax."""

    state_names = (*DTopP.state_names, "bias_E")
    most = 16.0

    def __init__(self, num_experts: int, target_experts: float, *args: Any, rate: float = 1e-2, rule: Rule = "sign",
                 **options: Any) -> None:
        super().__init__(num_experts, target_experts, *args, **options)
        self.rate, self.rule, self.of_threshold = rate, rule, self.statistics_size
        self.statistics_size += num_experts * _BINS if rule == "quantile" else 0
        self.bias_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        of_dtop_p = super().select(input)
        count_T1 = (of_dtop_p.gates_TE.detach() != 0).sum(-1, keepdim=True)
        bias_E = _centered(self.bias_E, input)
        chosen_TE = _largest(self.probs(input).detach() * bias_E.exp(), count_T1)
        statistics = of_dtop_p.statistics
        if input.training and self.rule == "quantile":
            s_TE = normalized(input.logits_TE.detach(), input.scale.detach(), input.normalization)[1]
            own = _histogram(s_TE, bias_E, chosen_TE, self.most)
            statistics = own if statistics is None else torch.cat([statistics, own])
        return self.route_to(input, chosen_TE)._replace(statistics=statistics)

    def update(self, counts: StepCounts) -> None:
        super().update(counts._replace(statistics=counts.statistics[:self.of_threshold]))
        _update_bias(self, counts, counts.statistics[self.of_threshold:])

    def metrics(self) -> dict[str, Tensor]:
        return super().metrics() | {"bias_spread": self.bias_E.max() - self.bias_E.min()}


def _centered(bias_E: Tensor, input: RouterInput) -> Tensor:
    return (bias_E - bias_E.mean()).to(input.logits_TE.device, input.logits_TE.dtype)


def _update_bias(router: "TopKBias | DTopPBias", counts: StepCounts, statistics: Tensor) -> None:
    if router.rule == "quantile":
        router.move(counts, bias_E=_quantile(counts, statistics, router.most))
        return
    c_E = counts.tokens_per_expert_E
    router.bias_E.add_(router.rate * torch.sign(c_E.sum() - c_E * len(c_E)).double())


_BINS = 1024


def _histogram(score_TE: Tensor, bias_E: Tensor, chosen_TE: Tensor, most: float) -> Tensor:
    """Per expert, the biases with which tokens would select it, int64 [E * _BINS]."""
    sum_TE = score_TE + bias_E
    lowest_in_T1 = sum_TE.where(chosen_TE, torch.inf).amin(-1, keepdim=True)
    highest_out_T1 = sum_TE.where(~chosen_TE, -torch.inf).amax(-1, keepdim=True)
    needed_TE = highest_out_T1.where(chosen_TE, lowest_in_T1) - score_TE
    bin_TE = ((needed_TE.nan_to_num() + most) * (_BINS / (2 * most))).clamp(0, _BINS - 1).long()
    bin_TE += torch.arange(bin_TE.shape[1], device=bin_TE.device) * _BINS
    none = torch.zeros(bin_TE.shape[1] * _BINS, dtype=torch.int64, device=bin_TE.device)
    return none.index_add(0, bin_TE.flatten(), torch.ones_like(bin_TE).flatten())


def _quantile(counts: StepCounts, statistics: Tensor, most: float) -> Tensor:
    """The biases [E] that _histogram asks for, minus their mean."""
    c_E = counts.tokens_per_expert_E
    count_EB = statistics.view(len(c_E), _BINS).double()
    below_EB = count_EB.cumsum(1)
    wanted_E1 = c_E.sum().double() / (len(c_E) * counts.tokens.clamp(min=1)) * below_EB[:, -1:]
    bin_E1 = (below_EB < wanted_E1).sum(1, keepdim=True).clamp(max=_BINS - 1)
    in_bin_E1 = count_EB.gather(1, bin_E1)
    part_E1 = (wanted_E1 - below_EB.gather(1, bin_E1) + in_bin_E1) / in_bin_E1.clamp(min=1)
    bias_E = ((bin_E1 + part_E1) * (2 * most / _BINS) - most).squeeze(1)
    return bias_E - bias_E.mean()


def _largest(score_TE: Tensor, count_T1: Tensor) -> Tensor:
    """The count experts with the largest scores, bool [T, E]; of equal ones those with the lower index."""
    order_TE = score_TE.sort(dim=-1, descending=True, stable=True).indices
    first_TE = torch.arange(score_TE.shape[1], device=score_TE.device) < count_T1
    return torch.zeros_like(first_TE).scatter(-1, order_TE, first_TE)
