"""The operators as functions, in the selected form (dtopp.form).

Shapes: T tokens, E experts, D hidden size, F expert FFN size, V vocabulary. Each function raises ValueError,
with a message that begins with its name, if shapes, dtypes, devices or options do not fit.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dtopp import form, operators, plain

Normalization = Literal["none", "fixed", "dynamic"]
Renormalize = bool | Literal["l2"]

_REALS = (torch.float32, torch.bfloat16, torch.float64)


class Routing(NamedTuple):
    """The routing of each token. Means are over tokens, and 0 if there are no tokens."""

    gates_TE: Tensor
    """f32 (f64 for f64 logits) [T, E]: weights of the selected experts, 0 elsewhere. Differentiable."""
    tokens_per_expert_E: Tensor
    """int64 [E]: tokens per expert."""
    active_histogram: Tensor
    """int64 [E + 1]: element n is the number of tokens with n experts."""
    mean_prob_E: Tensor
    """f32 [E]: mean of P, the Q of the load-balance loss. Differentiable."""
    entropy: Tensor
    """f32 []: mean of -sum P log P, in nats. Differentiable."""
    router_z: Tensor
    """f32 []: mean of logsumexp(z)^2 over the raw logits. Differentiable."""
    statistics: Tensor | None = None
    """int64: counts for Router.update, of a router that asks for them (dtopp.Router)."""
    zero_gate_T1: Tensor | None = None
    """f32 [T, 1]: the sum of a token's gates of zero experts, if the layer has them. Differentiable."""


def route(logits_TE: Tensor, scale: Tensor, threshold: Tensor, *, normalization: Normalization = "dynamic",
          top_k: int = 0, max_experts: int = 0, renormalize: Renormalize = True) -> Routing:
    """Computes the gates of each token's selected experts from its logits z.

        s = z | (z - mean) / sigma | theta (z - mean) / sigma        normalization none | fixed | dynamic
        P = softmax(s)
        gate_e = P_e / (sum of P over S) for e in S, else 0          renormalize True; P_e itself with False;
                                                                     P_e / sqrt(sum of P^2 over S) with "l2"

    mean and sigma are over the token's logits, sigma = sqrt(variance + 1e-6), with divisor E. S holds the
    top_k most likely experts; among equally likely ones, the lower index comes first. With top_k 0, S is the
    smallest set of most likely experts whose P add up to the threshold, at least one expert. The gradient
    treats S as constant.

    Args:
        logits_TE: f32, bf16 or f64 [T, E].
        scale: theta, f32 [] (or the logits' f64); used if normalization is dynamic.
        threshold: p, f64 []; used if top_k is 0.
        max_experts: the most experts that a token may select; 0 for no limit.
    """
    _check_logits("route", logits_TE, scale, normalization)
    experts = logits_TE.shape[1]
    _expect("route", threshold.dtype == torch.float64 and threshold.dim() == 0,
            lambda: f"a threshold of dtype torch.float64 and shape [], got {threshold.dtype} "
            f"{list(threshold.shape)}")
    _expect("route", threshold.device == logits_TE.device,
            lambda: f"a threshold on the logits' device {logits_TE.device}, got {threshold.device}")
    _expect("route", 0 <= top_k <= experts,
            lambda: f"top_k from 0 to the number of experts {experts}, got {top_k}")
    _expect("route", max_experts >= 0, lambda: f"max_experts of at least 0, got {max_experts}")
    return _with_gates(Routing(*form.current.route(logits_TE, scale, threshold, normalization, top_k, max_experts,
                                                   bool(renormalize))), renormalize)


def route_selected(logits_TE: Tensor, scale: Tensor, chosen_TE: Tensor, *,
                   normalization: Normalization = "dynamic", renormalize: Renormalize = True) -> Routing:
    """Like route, with S given by chosen_TE, bool [T, E]: any number of experts per token, including none."""
    _check_logits("route_selected", logits_TE, scale, normalization)
    _expect("route_selected", chosen_TE.dtype == torch.bool and chosen_TE.shape == logits_TE.shape,
            lambda: f"a selection of dtype torch.bool and shape {list(logits_TE.shape)}, got "
            f"{chosen_TE.dtype} {list(chosen_TE.shape)}")
    _expect("route_selected", chosen_TE.device == logits_TE.device,
            lambda: f"a selection on the logits' device {logits_TE.device}, got {chosen_TE.device}")
    return _with_gates(Routing(*form.current.route_selected(logits_TE, scale, chosen_TE, normalization, bool(renormalize))),
                       renormalize)


def _with_gates(routing: Routing, renormalize: Renormalize) -> Routing:
    if renormalize != "l2":
        return routing
    gates_TE = routing.gates_TE
    square_T1 = gates_TE.square().sum(-1, keepdim=True)
    gates_TE = (gates_TE * square_T1.where(square_T1 != 0, 1).rsqrt()).where(gates_TE != 0, 0)
    return routing._replace(gates_TE=gates_TE)


def probs(logits_TE: Tensor, scale: Tensor, *, normalization: Normalization = "dynamic") -> Tensor:
    """Returns P of route, f32 (f64 for f64 logits) [T, E]. Differentiable."""
    _check_logits("probs", logits_TE, scale, normalization)
    return plain.normalized(logits_TE, scale, normalization)[1].softmax(-1)


def moe_ffn(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """Computes the outputs of each token's selected experts, weighted by its gates:

        y = sum over e of gate_e E_e(x)        E_e(x) = W_down (silu(W_gate x) * W_up x)

    A token may have any number of experts and an expert any number of tokens, including none. Only
    token-expert pairs with a nonzero gate cost time. Differentiable in all four arguments; a gate of 0 has
    the gradient 0.

    Args:
        x_TD: f32, bf16 or f64 [T, D].
        gates_TE: f32 (f64 for f64 x) [T, E].
        gate_up_proj: x's dtype [E, 2F, D]: F rows of W_gate, then F of W_up.
        down_proj: x's dtype [E, D, F].

    Returns:
        y_TD [T, D], x's dtype; sums are computed in f32 (f64).
    """
    _check_experts(x_TD, gates_TE, gate_up_proj, down_proj)
    y_TD: Tensor = operators.experts(x_TD, gates_TE, gate_up_proj, down_proj)[0]
    return y_TD


def in_autocast(x_TD: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Casts all tensors to autocast's dtype if autocast is on for x's device; otherwise returns them
    unchanged."""
    device = x_TD.device.type
    if not torch.is_autocast_enabled(device):
        return x_TD, *weights
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in (x_TD, *weights))


def cumulative_prob_histogram(logits_TE: Tensor, scale: Tensor, *, normalization: Normalization = "dynamic",
                   max_experts: int = 0, stride: int = 1, zero_experts: int = 0) -> Tensor:
    """Counts how many experts would be active at any threshold, as a histogram of c_j.

    c_j is the probability before a token's j-th most likely expert, j >= 2. The mean number of active experts
    at p is 1 + (number of c_j < p) / tokens. With zero experts, the last columns, only the others count, and so does a
    token's most likely expert (c_1 = 0).

    Args:
        logits_TE, scale, normalization, max_experts: as in route.
        stride: counts every stride-th token, starting with the first.

    Returns:
        int64 [4096]: bins of [0, 1], 32 octaves of 64 towards 0 and as many towards 1. Not differentiable.
    """
    _check_logits("cumulative_prob_histogram", logits_TE, scale, normalization)
    _expect("cumulative_prob_histogram", max_experts >= 0, lambda: f"max_experts of at least 0, got {max_experts}")
    _expect("cumulative_prob_histogram", stride >= 1, lambda: f"a stride of at least 1, got {stride}")
    return form.current.cumulative_prob_histogram(logits_TE.detach(), scale.detach(), normalization, max_experts, stride,
                                                  zero_experts)


def without_zero_experts(routing: Routing, zero_experts: int, logits_TE: Tensor, scale: Tensor,
                         normalization: Normalization) -> Routing:
    """Removes the last zero_experts columns of a routing. Gates then sum to less than 1 if a token takes zero experts.
    mean_prob_E is that of P over the experts alone."""
    experts = logits_TE.shape[1] - zero_experts
    gates_TE, zero_gates_TZ = routing.gates_TE[:, :experts], routing.gates_TE[:, experts:]
    chosen_TE = gates_TE.detach() != 0
    active_T = chosen_TE.sum(-1)
    histogram = torch.zeros(experts + 1, dtype=torch.int64, device=active_T.device)
    s_TE = plain.normalized(logits_TE, scale, normalization)[1][:, :experts]
    return routing._replace(
        gates_TE=gates_TE.contiguous(), zero_gate_T1=zero_gates_TZ.sum(-1, keepdim=True),
        tokens_per_expert_E=chosen_TE.sum(0),
        active_histogram=histogram.scatter_add(0, active_T, torch.ones_like(active_T)),
        mean_prob_E=s_TE.softmax(-1).sum(0) / max(len(s_TE), 1))


class CrossEntropy(NamedTuple):
    """f32 (f64) scalars: the loss, and its two parts, which are not differentiable."""

    loss: Tensor
    nll: Tensor
    z: Tensor


def linear_cross_entropy(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, *, z_weight: float = 0.0,
                         ignore_index: int = -100) -> CrossEntropy:
    """Computes the output projection together with its loss; logits are computed for a chunk of tokens at a
    time.

        loss = mean(nll + z_weight lse^2)        nll = lse - z_target, lse = logsumexp(z), z = x W^T

    Means are over targets that are not ignored, and 0 if there are none. Differentiable in x and the weight.

    Args:
        x_TD: f32, bf16 or f64 [T, D].
        weight_VD: x's dtype [V, D].
        targets_T: int64 [T], from 0 to V - 1 or ignore_index.
    """
    _check_projection("linear_cross_entropy", x_TD, weight_VD, targets_T)
    return CrossEntropy(*form.current.linear_cross_entropy(x_TD, weight_VD, targets_T, z_weight,
                                                           ignore_index))


def token_log_probs(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each target's log softmax(x W^T), f32 [T], in nats, and the most likely id, int64 [T]; on ties,
    the lowest. Arguments are as in linear_cross_entropy, with no target ignored. Not differentiable."""
    _check_projection("token_log_probs", x_TD, weight_VD, targets_T)
    return form.current.token_log_probs(x_TD.detach(), weight_VD.detach(), targets_T)


def _expect(op: str, fits: bool, expected: Callable[[], str]) -> None:
    # The text is computed only if it is needed: a compiler would treat the sizes in it as constants.
    if not fits:
        raise ValueError(f"{op}: expected {expected()}")


def _check_logits(op: str, logits_TE: Tensor, scale: Tensor, normalization: str) -> None:
    dtype = logits_TE.dtype
    _expect(op, dtype in _REALS, lambda: f"logits of dtype float32, bfloat16 or float64, got {dtype}")
    _expect(op, logits_TE.dim() == 2 and logits_TE.shape[1] >= 1,
            lambda: f"logits of shape [tokens, experts], at least 1 expert, got {list(logits_TE.shape)}")
    _expect(op, scale.dim() == 0 and scale.dtype in (torch.float32, dtype),
            lambda: f"a scale of dtype torch.float32 and shape [], got {scale.dtype} {list(scale.shape)}")
    _expect(op, scale.device == logits_TE.device,
            lambda: f"a scale on the logits' device {logits_TE.device}, got {scale.device}")
    _expect(op, normalization in ("none", "fixed", "dynamic"),
            lambda: f"normalization none, fixed or dynamic, got '{normalization}'")


def _check_experts(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> None:
    op, dtype = "moe_ffn", x_TD.dtype
    _expect(op, dtype in _REALS, lambda: f"x of dtype float32, bfloat16 or float64, got {dtype}")
    _expect(op, gate_up_proj.dtype == dtype and down_proj.dtype == dtype,
            lambda: f"gate_up_proj and down_proj of x's dtype {dtype}, got {gate_up_proj.dtype} and "
            f"{down_proj.dtype}")
    real = torch.float64 if dtype == torch.float64 else torch.float32
    _expect(op, gates_TE.dtype == real, lambda: f"gates of dtype {real}, got {gates_TE.dtype}")
    _expect(op, x_TD.dim() == 2, lambda: f"x of shape [tokens, hidden], got {list(x_TD.shape)}")
    tokens, hidden = x_TD.shape
    _expect(op, gates_TE.dim() == 2 and gates_TE.shape[0] == tokens,
            lambda: f"gates of shape [{tokens}, experts], got {list(gates_TE.shape)}")
    experts = gates_TE.shape[1]
    _expect(op, down_proj.dim() == 3 and tuple(down_proj.shape[:2]) == (experts, hidden),
            lambda: f"down_proj of shape [{experts}, {hidden}, ffn], got {list(down_proj.shape)}")
    want = (experts, 2 * down_proj.shape[2], hidden)
    _expect(op, tuple(gate_up_proj.shape) == want,
            lambda: f"gate_up_proj of shape {list(want)}, got {list(gate_up_proj.shape)}")
    _expect(op, gates_TE.device == gate_up_proj.device == down_proj.device == x_TD.device,
            lambda: f"all tensors on x's device {x_TD.device}, got gates on {gates_TE.device}, gate_up_proj "
            f"on {gate_up_proj.device}, down_proj on {down_proj.device}")


def _check_projection(op: str, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> None:
    _expect(op, x_TD.dtype in _REALS, lambda: f"x of dtype float32, bfloat16 or float64, got {x_TD.dtype}")
    _expect(op, weight_VD.dtype == x_TD.dtype,
            lambda: f"a weight of x's dtype {x_TD.dtype}, got {weight_VD.dtype}")
    _expect(op, x_TD.dim() == 2, lambda: f"x of shape [tokens, hidden], got {list(x_TD.shape)}")
    _expect(op, weight_VD.dim() == 2 and weight_VD.shape[1] == x_TD.shape[1],
            lambda: f"a weight of shape [vocabulary, {x_TD.shape[1]}], got {list(weight_VD.shape)}")
    _expect(op, targets_T.dtype == torch.int64 and tuple(targets_T.shape) == (x_TD.shape[0],),
            lambda: f"targets of dtype torch.int64 and shape [{x_TD.shape[0]}], got {targets_T.dtype} "
            f"{list(targets_T.shape)}")
    _expect(op, weight_VD.device == x_TD.device == targets_T.device,
            lambda: f"all tensors on x's device {x_TD.device}, got the weight on {weight_VD.device}, targets "
            f"on {targets_T.device}")
