"""The operators of libdtopp_ops.so (dtopp.form.Form)."""

from typing import cast

import torch
from torch import Tensor

_Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def route(logits_TE: Tensor, scale: Tensor, threshold: Tensor, normalization: str, top_k: int,
          max_experts: int, renormalize: bool) -> _Six:
    return cast(_Six, torch.ops.dtopp.route(logits_TE, scale, threshold, normalization=normalization,
                                            top_k=top_k, max_experts=max_experts, renormalize=renormalize)[:6])


def route_selected(logits_TE: Tensor, scale: Tensor, chosen_TE: Tensor, normalization: str,
                   renormalize: bool) -> _Six:
    return cast(_Six, torch.ops.dtopp.route_selected(logits_TE, scale, chosen_TE, normalization=normalization,
                                                     renormalize=renormalize))


def experts_forward(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                    down_proj: Tensor) -> tuple[Tensor, Tensor]:
    pairs_A2 = gates_TE.t().nonzero()
    return cast(tuple[Tensor, Tensor],
                torch.ops.dtopp.moe_ffn_forward(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj))


def experts_backward(grad_y_TD: Tensor, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                     down_proj: Tensor, pre_activations_AG: Tensor,
                     needed: list[bool]) -> list[Tensor | None]:
    return list(torch.ops.dtopp.moe_ffn_backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                                                 pre_activations_AG, needed))


def cumulative_prob_histogram(logits_TE: Tensor, scale: Tensor, normalization: str, max_experts: int,
                   stride: int, zero_experts: int) -> Tensor:
    return cast(Tensor, torch.ops.dtopp.cumulative_prob_histogram(logits_TE, scale, normalization=normalization,
                                                       max_experts=max_experts, stride=stride, zero_experts=zero_experts))


def linear_cross_entropy(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_weight: float,
                         ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    return cast(tuple[Tensor, Tensor, Tensor],
                torch.ops.dtopp.linear_cross_entropy(x_TD, weight_VD, targets_T, z_weight=z_weight,
                                                     ignore_index=ignore_index))


def token_log_probs(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    return cast(tuple[Tensor, Tensor], torch.ops.dtopp.token_log_probs(x_TD, weight_VD, targets_T))
