"""Test support for the package python/dtopp: both forms, small layers, and the same layer in double
precision."""

import os

import pytest
import torch
from ops_reference import moe_reference
from route_reference import route_reference

from dtopp import MoE, compiled, form, plain

FORMS = {"plain": plain} if os.environ.get("DTOPP_OPS") == "" else {"compiled": compiled, "plain": plain}


@pytest.fixture(params=FORMS)
def both_forms(request, monkeypatch):
    """Runs a test with the compiled operators and with the plain ones."""
    if request.param not in FORMS:
        pytest.skip("without compiled operators (DTOPP_OPS= is empty)")
    monkeypatch.setattr(form, "current", FORMS[request.param])
    return request.param


def layer(seed=1, std=0.3, sizes=(16, 12, 6), **options):
    """A layer whose weights are large enough for experts to receive different numbers of tokens."""
    torch.manual_seed(seed)
    moe = MoE(*sizes, **{"target_experts": 2, "threshold": 0.5, **options})
    with torch.no_grad():
        for parameter in moe.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
            else:
                parameter.fill_(1.3)
    return moe


def reference(moe, x, normalization="dynamic", top_k=0, max_experts=0, renormalize=True, loss_scale=1.0):
    """Returns, in double precision and by the definitions, the layer's y, the sum of its weighted losses, and
    the number of experts per token. Gradients go to the layer's own parameters."""
    gate, x_TD = moe.gate, x.double().flatten(0, -2)
    scale = gate.scale[0].double() if normalization == "dynamic" else torch.tensor(1.0).double()
    logits = x_TD @ gate.weight.double().T
    gates, chosen, mean_prob, entropy, router_z, _ = route_reference(
        logits, scale, getattr(gate.router, "threshold", 0.5), normalization=normalization, top_k=top_k, max_experts=max_experts,
        renormalize=renormalize)
    y = moe_reference(x_TD, gates, moe.experts.gate_up_proj.double(), moe.experts.down_proj.double())
    share = chosen.double().mean(0)
    losses = (len(share) * (share * mean_prob).sum(), entropy, router_z)
    added = sum(weight * loss for weight, loss in zip(gate.loss_weights, losses)) * loss_scale
    return y.view(x.shape), added, chosen.sum(-1)


def gradients(moe, *others):
    """Returns the gradients of the layer's parameters and of other tensors, and clears them."""
    tensors = [*moe.parameters(), *others]
    grads = [t.grad for t in tensors]
    for t in tensors:
        t.grad = None
    return grads
