"""The routing rule of dtopp/ops/route/route.h in double precision: the reference of the tests of the ops and of the layers, and of
tests/conformance/route.json."""

from typing import NamedTuple

import torch
from torch import Tensor


class RouteReference(NamedTuple):
    """The results of ops.route; all but `chosen` and `mass` are differentiable."""

    gates: Tensor
    chosen: Tensor
    """bool [T, E]"""
    mean_prob: Tensor
    entropy: Tensor
    router_z: Tensor
    mass: Tensor
    """f64 [2]: sums over tokens of P over the selected experts, and of as many largest P. Zeros without a threshold and a bias."""


def softmax_inputs(logits, scale, normalization):
    """s, f64 [T, E]."""
    z = logits.double()
    if normalization == "none":
        return z
    centered = z - z.mean(-1, keepdim=True)
    s = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return s * scale.double() if normalization == "dynamic" else s


def route_reference(logits, scale, threshold, normalization="dynamic", top_k=0, max_experts=0, renormalize=True,
                    bias_E=None, bias_on="logit", gate="probability", cut_E=None):
    """The selected set comes from one sorted pass per token."""
    z, s = logits.double(), softmax_inputs(logits, scale, normalization)
    prob = s.softmax(-1)
    score = prob
    if bias_E is not None:
        score = {"logit": s, "score": s.exp(), "probability": prob}[bias_on] + bias_E.double()
    chosen, mass = torch.zeros_like(prob, dtype=torch.bool), torch.zeros(2, dtype=torch.float64)
    for t in range(z.shape[0]):
        likeliest, count = in_order(prob[t]), 0
        before = 0.0
        for n, e in enumerate(likeliest):
            if (top_k and n >= top_k) or (max_experts and n >= max_experts):
                break
            if not top_k and n and not before < float(threshold):
                break
            count += 1
            before += prob[t, e].item()
        chosen[t, in_order(score[t])[:count]] = True
        if bias_E is not None and not top_k:
            mass += torch.stack([prob[t][chosen[t]].sum(), prob[t, likeliest[:count]].sum()]).detach()
    if gate == "relu":
        chosen = z > 0
    if gate == "sigmoid" and not cut_E.isnan().any():
        chosen = z >= cut_E.double()
    gates = {"probability": prob, "relu": z.relu(), "sigmoid": z.sigmoid()}[gate] * chosen
    if renormalize:
        gates = gates / (gates.norm(dim=-1, keepdim=True) if renormalize == "l2" else gates.sum(-1, keepdim=True))
    tokens = max(z.shape[0], 1)
    entropy = -torch.special.xlogy(prob, prob).sum() / tokens
    mean = (gates if gate == "relu" else prob).sum(0) / tokens
    return RouteReference(gates, chosen, mean, entropy, z.logsumexp(-1).pow(2).sum() / tokens, mass)


def in_order(values_E):
    """The experts, the largest value first; of equal ones the lower index."""
    values = values_E.tolist()
    return sorted(range(len(values)), key=lambda e: (-values[e], e))
