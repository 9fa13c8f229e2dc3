"""Routers that balance the load of the experts without a loss. A bias per expert decides which experts tokens select,
and has no part in their gates. After each step, with c the tokens per expert:

    bias_E += rate sign(mean(c) - c)
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dtopp import functional
from dtopp.functional import Routing
from dtopp.routers import DTopP, Router, RouterInput, StepCounts, expect_gate


class TopKBias(Router):
    """The top_k experts with the largest sigmoid(z) + bias. The gates are the selected sigmoid(z) over their sum. The
    layer needs normalization "none"."""

    state_names = ("bias_E",)

    def __init__(self, num_experts: int, top_k: int, *, rate: float = 1e-3) -> None:
        super().__init__()
        self.top_k, self.rate = top_k, rate
        self.bias_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        expect_gate(self, input, renormalize=input.renormalize)
        score_TE = input.logits_TE.detach().sigmoid() + _centred(self.bias_E, input)
        count_T1 = torch.full_like(score_TE[:, :1], self.top_k)
        # softmax(log sigmoid(z)) = sigmoid(z) / sum of sigmoid(z)
        routing = functional.route_selected(F.logsigmoid(input.logits_TE), input.scale, _largest(score_TE, count_T1),
                                            normalization="none", renormalize=input.renormalize)
        lse_T = input.logits_TE.logsumexp(-1)  # of z, not of log sigmoid(z)
        return routing._replace(router_z=lse_T.square().sum() / max(len(lse_T), 1))

    def update(self, counts: StepCounts) -> None:
        self.bias_E.add_(_move(counts, self.rate))

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

    def __init__(self, num_experts: int, target_experts: float, *args: Any, rate: float = 1e-2, **options: Any) -> None:
        super().__init__(num_experts, target_experts, *args, **options)
        self.rate = rate
        self.bias_E = torch.zeros(num_experts, dtype=torch.float64, device="cpu")

    def select(self, input: RouterInput) -> Routing:
        of_dtop_p = super().select(input)
        count_T1 = (of_dtop_p.gates_TE.detach() != 0).sum(-1, keepdim=True)
        score_TE = self.probs(input).detach() * _centred(self.bias_E, input).exp()
        return self.route_to(input, _largest(score_TE, count_T1))._replace(statistics=of_dtop_p.statistics)

    def update(self, counts: StepCounts) -> None:
        super().update(counts)
        self.bias_E.add_(_move(counts, self.rate))

    def metrics(self) -> dict[str, Tensor]:
        return super().metrics() | {"bias_spread": self.bias_E.max() - self.bias_E.min()}


def _centred(bias_E: Tensor, input: RouterInput) -> Tensor:
    return (bias_E - bias_E.mean()).to(input.logits_TE.device, input.logits_TE.dtype)


def _move(counts: StepCounts, rate: float) -> Tensor:
    c_E = counts.tokens_per_expert_E
    return rate * torch.sign(c_E.sum() - c_E * len(c_E)).double()


def _largest(score_TE: Tensor, count_T1: Tensor) -> Tensor:
    """The count experts with the largest scores, bool [T, E]; of equal ones those with the lower index."""
    order_TE = score_TE.sort(dim=-1, descending=True, stable=True).indices
    first_TE = torch.arange(score_TE.shape[1], device=score_TE.device) < count_T1
    return torch.zeros_like(first_TE).scatter(-1, order_TE, first_TE)
