"""The operators in plain PyTorch (dtopp.form.Form), used if the compiled ones do not fit.

Experts are computed one after the other, each for its own tokens. The output projection stores all logits.
Values that are not finite are treated as in the compiled operators: such a token's gates are NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_OCTAVES, _BINS_OF_OCTAVE = 32, 64
_HALF = _OCTAVES * _BINS_OF_OCTAVE  # bins of cumulative probability below one half; as many lie above


def normalized(logits_TE: Tensor, scale: Tensor, normalization: str) -> tuple[Tensor, Tensor]:
    """Returns (z, s): the logits in f32 (f64), and the input of the softmax."""
    z_TE = logits_TE if logits_TE.dtype == torch.float64 else logits_TE.float()
    if normalization == "none":
        return z_TE, z_TE
    centered_TE = z_TE - z_TE.mean(-1, keepdim=True)
    s_TE = centered_TE * (centered_TE.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return z_TE, s_TE * scale.to(s_TE.dtype) if normalization == "dynamic" else s_TE


def _chosen(prob_TE: Tensor, threshold: Tensor, top_k: int, max_experts: int) -> Tensor:
    """Returns the selection, bool [T, E]. Sums are in double, most likely first. Tokens with values that are
    not finite are ordered by index."""
    finite_T1 = prob_TE.isfinite().all(-1, keepdim=True)
    sorted_TE, order_TE = prob_TE.where(finite_T1, 0).sort(dim=-1, descending=True, stable=True)
    rank_E = torch.arange(prob_TE.shape[1], device=prob_TE.device)
    if top_k > 0:
        keep_TE = (rank_E < top_k).expand_as(prob_TE)
    else:
        before_TE = F.pad(sorted_TE.double().cumsum(-1)[:, :-1], (1, 0))
        keep_TE = ((before_TE < threshold) & finite_T1) | (rank_E == 0)
    if max_experts > 0:
        keep_TE = keep_TE & (rank_E < max_experts)
    return torch.zeros_like(prob_TE, dtype=torch.bool).scatter(-1, order_TE, keep_TE)


_Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def route(logits_TE: Tensor, scale: Tensor, threshold: Tensor, normalization: str, top_k: int,
          max_experts: int, renormalize: bool) -> _Six:
    z_TE, s_TE = normalized(logits_TE, scale, normalization)
    chosen_TE = _chosen(s_TE.detach().softmax(-1), threshold, top_k, max_experts)
    return _routing(z_TE, s_TE, chosen_TE, renormalize)


def route_selected(logits_TE: Tensor, scale: Tensor, chosen_TE: Tensor, normalization: str,
                   renormalize: bool) -> _Six:
    return _routing(*normalized(logits_TE, scale, normalization), chosen_TE, renormalize)


def _routing(z_TE: Tensor, s_TE: Tensor, chosen_TE: Tensor, renormalize: bool) -> _Six:
    prob_TE, tokens = s_TE.softmax(-1), max(z_TE.shape[0], 1)
    gates_TE = prob_TE.where(chosen_TE, 0)
    if renormalize:
        sum_T1 = gates_TE.sum(-1, keepdim=True, dtype=torch.float64)
        sum_T1 = sum_T1.where(chosen_TE.any(-1, keepdim=True), 1)
        gates_TE = (gates_TE / sum_T1).to(prob_TE.dtype).where(chosen_TE, 0)
    active_T = chosen_TE.sum(-1)
    histogram = torch.zeros(z_TE.shape[1] + 1, dtype=torch.int64, device=z_TE.device)
    histogram = histogram.scatter_add(0, active_T, torch.ones_like(active_T))
    minus_plogp_TE = -prob_TE * s_TE.log_softmax(-1).where(prob_TE != 0, 0)
    return (gates_TE, chosen_TE.sum(0), histogram, prob_TE.sum(0) / tokens, minus_plogp_TE.sum() / tokens,
            z_TE.logsumexp(-1).square().sum() / tokens)


def _pairs(gates_TE: Tensor) -> tuple[Tensor, list[int]]:
    """Returns (the token of every pair, by expert, then token; the number of pairs per expert)."""
    expert_A, token_A = gates_TE.t().nonzero(as_tuple=True)
    return token_A, torch.bincount(expert_A, minlength=gates_TE.shape[1]).tolist()


def experts_forward(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                    down_proj: Tensor) -> tuple[Tensor, Tensor]:
    token_A, sizes = _pairs(gates_TE)
    y_TD = torch.zeros_like(x_TD, dtype=gates_TE.dtype)
    pre_AG = x_TD.new_empty(token_A.shape[0], gate_up_proj.shape[1])
    for e, (token_N, pre_NG) in enumerate(zip(torch.split(token_A, sizes), torch.split(pre_AG, sizes))):
        torch.mm(x_TD[token_N], gate_up_proj[e].t(), out=pre_NG)
        gate_NF, up_NF = pre_NG.to(y_TD.dtype).chunk(2, -1)
        out_ND = (F.silu(gate_NF) * up_NF).to(x_TD.dtype) @ down_proj[e].t()
        y_TD.index_add_(0, token_N, out_ND * gates_TE[token_N, e, None])
    return y_TD.to(x_TD.dtype), pre_AG


def experts_backward(grad_y_TD: Tensor, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                     down_proj: Tensor, pre_activations_AG: Tensor,
                     needed: list[bool]) -> list[Tensor | None]:
    token_A, sizes = _pairs(gates_TE)
    real = gates_TE.dtype
    grad_x_TD = torch.zeros_like(x_TD, dtype=real)
    grad_gates_TE, grad_gate_up, grad_down = map(torch.zeros_like, (gates_TE, gate_up_proj, down_proj))
    rows = zip(torch.split(token_A, sizes), torch.split(pre_activations_AG, sizes))
    for e, (token_N, pre_NG) in enumerate(rows):
        gate_NF, up_NF = pre_NG.to(real).chunk(2, -1)
        sigmoid_NF, weight_N1 = gate_NF.sigmoid(), gates_TE[token_N, e, None]
        out_NF, grad_y_ND = gate_NF * sigmoid_NF * up_NF, grad_y_TD[token_N]
        grad_out_NF = (grad_y_ND @ down_proj[e]).to(real)
        grad_gates_TE[token_N, e] = (grad_out_NF * out_NF).sum(-1)
        grad_down[e] = (weight_N1 * grad_y_ND).to(x_TD.dtype).t() @ out_NF.to(x_TD.dtype)
        grad_out_NF = grad_out_NF * weight_N1
        slope_NF = sigmoid_NF * (1 + gate_NF * (1 - sigmoid_NF))
        grad_pre_NG = torch.cat([grad_out_NF * up_NF * slope_NF, grad_out_NF * gate_NF * sigmoid_NF], -1)
        grad_pre_NG = grad_pre_NG.to(x_TD.dtype)
        grad_gate_up[e] = grad_pre_NG.t() @ x_TD[token_N]
        grad_x_TD.index_add_(0, token_N, (grad_pre_NG @ gate_up_proj[e]).to(real))
    return [grad_x_TD.to(x_TD.dtype), grad_gates_TE, grad_gate_up, grad_down]


def cumulative_prob_histogram(logits_TE: Tensor, scale: Tensor, normalization: str, max_experts: int,
                   stride: int, zero_experts: int) -> Tensor:
    prob_TE = normalized(logits_TE[::stride], scale, normalization)[1].softmax(-1)
    counted_T1 = prob_TE.isfinite().all(-1, keepdim=True)
    limit = min(max_experts or prob_TE.shape[1], prob_TE.shape[1])
    sorted_TE, order_TE = prob_TE.sort(dim=-1, descending=True, stable=True)
    cumulative_prob_TE = F.pad(sorted_TE.double().cumsum(-1)[:, : limit - 1], (1, 0))
    counted_TE = counted_T1 & (order_TE[:, :limit] < prob_TE.shape[1] - zero_experts)
    if zero_experts == 0:
        counted_TE[:, 0] = False  # a token always has its most likely expert
    lower_TE = cumulative_prob_TE < 0.5
    octave = 2.0 ** torch.arange(-_OCTAVES - 1, -1, dtype=torch.float64, device=cumulative_prob_TE.device)
    step = torch.arange(_BINS_OF_OCTAVE, dtype=torch.float64, device=cumulative_prob_TE.device) / _BINS_OF_OCTAVE
    edges = (octave[:, None] * (1 + step)).flatten()
    nearer_TE = cumulative_prob_TE.where(lower_TE, 1 - cumulative_prob_TE).float().double()
    bin_TE = (torch.searchsorted(edges, nearer_TE, right=True) - 1).clamp(0, _HALF - 1)
    bin_TE = bin_TE.where(lower_TE, 2 * _HALF - 1 - bin_TE)
    histogram = torch.zeros(2 * _HALF, dtype=torch.int64, device=cumulative_prob_TE.device)
    return histogram.scatter_add(0, bin_TE.flatten(), counted_TE.flatten().long())


def linear_cross_entropy(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_weight: float,
                         ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    logits_TV = F.linear(x_TD, weight_VD)
    logits_TV = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
    kept_T = targets_T != ignore_index
    count = kept_T.sum().clamp(min=1)
    lse_T = logits_TV.logsumexp(-1)
    target_T = logits_TV.gather(1, targets_T.where(kept_T, 0)[:, None])[:, 0]
    nll = (lse_T - target_T).where(kept_T, 0).sum() / count
    z = lse_T.square().where(kept_T, 0).sum() / count
    return nll + z_weight * z, nll.detach(), z.detach()


def token_log_probs(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    log_probs_TV = F.linear(x_TD, weight_VD).float().log_softmax(-1)
    return log_probs_TV.gather(1, targets_T[:, None])[:, 0], log_probs_TV.argmax(-1)
