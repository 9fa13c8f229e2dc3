"""The operators as functions, in the form that fits (dtopp.form). Shapes: T tokens, E experts, D hidden size,
F expert FFN size, V vocabulary. Each raises ValueError, its message beginning with its name, for shapes,
dtypes, devices and options that do not fit.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dtopp import form, operators

Normalization = Literal["none", "fixed", "dynamic"]

_REALS = (torch.float32, torch.bfloat16, torch.float64)


class Routing(NamedTuple):
    """Which experts each token is sent to. Means are over tokens, 0 where there are none."""

    gates_TE: Tensor
    """f32 (f64 for f64 logits) [T, E]: weights of the chosen experts, 0 elsewhere. Differentiable."""
    expert_counts_E: Tensor
    """int64 [E]: tokens that chose each expert."""
    active_histogram: Tensor
    """int64 [E + 1]: tokens that chose n experts."""
    mean_prob_E: Tensor
    """f32 [E]: mean of P, the Q of the load-balance loss. Differentiable."""
    entropy: Tensor
    """f32 []: mean of -sum P log P, in nats. Differentiable."""
    router_z: Tensor
    """f32 []: mean of logsumexp(z)^2, of the raw logits. Differentiable."""


def route(logits_TE: Tensor, scale: Tensor, threshold: Tensor, *, normalization: Normalization = "dynamic",
          top_k: int = 0, max_experts: int = 0, renormalize: bool = True) -> Routing:
    """From each token's logits z over the experts to the gates of those it is sent to.

        s = z | (z - mean) / sigma | theta (z - mean) / sigma        normalization none | fixed | dynamic
        P = softmax(s)
        gate_e = P_e / (sum of P over S) for e in S, else 0          P_e itself without renormalize

    mean and sigma are over the token's logits, sigma = sqrt(variance + 1e-6), with divisor E. S: the top_k
    likeliest experts, of equally likely ones the lower index first; with top_k 0 the fewest likeliest experts
    whose P add up to the threshold, at least one. The gradient takes S as given.

    Args:
        logits_TE: f32, bf16 or f64 [T, E].
        scale: theta, f32 [] (or the logits' f64); used when dynamic.
        threshold: p, f64 []; used when top_k is 0.
        max_experts: the most a token may choose; 0 for no limit.
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
    return Routing(*form.current.route(logits_TE, scale, threshold, normalization, top_k, max_experts,
                                       renormalize))


def moe_ffn(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> Tensor:
    """The outputs of the experts each token chose, weighted by its gates:

        y = sum over e of gate_e E_e(x)        E_e(x) = W_down (silu(W_gate x) * W_up x)

    Any number of experts a token and of tokens an expert, none included. Only pairs of a token and an expert
    with a gate other than 0 cost anything. Differentiable in all four; a gate that is 0 has the gradient 0.

    Args:
        x_TD: f32, bf16 or f64 [T, D].
        gates_TE: f32 (f64 for f64 x) [T, E].
        gate_up_proj: x's dtype [E, 2F, D]: F rows of W_gate, then F of W_up.
        down_proj: x's dtype [E, D, F].

    Returns:
        y_TD [T, D], x's dtype; sums are formed in f32 (f64).
    """
    _check_experts(x_TD, gates_TE, gate_up_proj, down_proj)
    y_TD: Tensor = operators.experts(x_TD, gates_TE, gate_up_proj, down_proj)[0]
    return y_TD


def in_autocast(x_TD: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """All of them in autocast's dtype where it is on for x's device, else as they are."""
    device = x_TD.device.type
    if not torch.is_autocast_enabled(device):
        return x_TD, *weights
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in (x_TD, *weights))


def mass_histogram(logits_TE: Tensor, scale: Tensor, *, normalization: Normalization = "dynamic",
                   max_experts: int = 0, stride: int = 1) -> Tensor:
    """How many experts would join at any threshold: counts of the probability c_j before a token's j-th
    likeliest expert, j >= 2. The mean number of active experts at p is 1 + (number of c_j < p) / tokens.

    Args:
        logits_TE, scale, normalization, max_experts: as in route.
        stride: every so many tokens are counted, from the first on.

    Returns:
        int64 [4096]: bins of [0, 1], 32 octaves of 64 towards 0 and as many towards 1. Not differentiable.
    """
    _check_logits("mass_histogram", logits_TE, scale, normalization)
    _expect("mass_histogram", max_experts >= 0, lambda: f"max_experts of at least 0, got {max_experts}")
    _expect("mass_histogram", stride >= 1, lambda: f"a stride of at least 1, got {stride}")
    return form.current.mass_histogram(logits_TE.detach(), scale.detach(), normalization, max_experts, stride)


class CrossEntropy(NamedTuple):
    """f32 (f64) scalars: what to minimise, and its two parts, which are not differentiable."""

    loss: Tensor
    nll: Tensor
    z: Tensor


def linear_cross_entropy(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, *, z_weight: float = 0.0,
                         ignore_index: int = -100) -> CrossEntropy:
    """The output projection together with its loss; logits are formed for some tokens at a time.

        loss = mean(nll + z_weight lse^2)        nll = lse - z_target, lse = logsumexp(z), z = x W^T

    Means are over targets that are not ignored, 0 where there are none. Differentiable in x and the weight.

    Args:
        x_TD: f32, bf16 or f64 [T, D].
        weight_VD: x's dtype [V, D].
        targets_T: int64 [T], from 0 to V - 1 or ignore_index.
    """
    _check_projection("linear_cross_entropy", x_TD, weight_VD, targets_T)
    return CrossEntropy(*form.current.linear_cross_entropy(x_TD, weight_VD, targets_T, z_weight,
                                                           ignore_index))


def token_log_probs(x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """Each target's log softmax(x W^T), f32 [T], in nats, and the likeliest id, int64 [T], of several the
    lowest. Arguments as in linear_cross_entropy, with no target ignored. Not differentiable."""
    _check_projection("token_log_probs", x_TD, weight_VD, targets_T)
    return form.current.token_log_probs(x_TD.detach(), weight_VD.detach(), targets_T)


def _expect(op: str, fits: bool, expected: Callable[[], str]) -> None:
    # Called for the text where it is needed alone: a compiler would take sizes in it for constants.
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
