"""Tests the router of the exported model on the cases of the routing rule (tests/conformance)."""

import importlib
import json

import pytest
import torch
from tiny_run import ROOT

CASES = json.loads((ROOT / "tests/conformance/route.json").read_text())
# The rules that the operator of the program has, but no router.
WITHOUT_ROUTER = {"bias_on_logit_top_k", "bias_on_probability", "bias_on_score", "relu_dynamic", "top_k_max_experts"}


@pytest.fixture(scope="module")
def code():
    """The modules configuration_dtopp and modeling_dtopp."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "dtopp/convert")
        yield [importlib.import_module(f"huggingface.{name}_dtopp") for name in ("configuration", "modeling")]


def method_of(case):
    """The router_method that has this rule, or None."""
    bias_on, top_k = case["bias_on"] if case["bias"] else None, case["top_k"]
    if case["gate"] != "probability":
        return {"sigmoid": "expert_threshold", "relu": "relu" if case["normalization"] == "none" else None}[case["gate"]]
    if bias_on is None:
        return "top_p" if not top_k else None if case["max_experts"] else "top_k"
    if top_k:
        return "top_k_bias" if bias_on == ("probability" if case["zero_experts"] else "score") else None
    return "dtop_p_bias" if bias_on == "logit" else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_router_has_the_results_of_double_precision(code, case):
    configuration, modeling = code
    method, columns = method_of(case), case["columns"]
    experts = columns - case["zero_experts"]
    assert (method is None) == (case["name"] in WITHOUT_ROUTER)
    if method is None:
        return
    has_cuts = case["cut"] is not None and None not in case["cut"]
    config = configuration.DtoppConfig(
        hidden_size=columns, num_attention_heads=1, head_dim=2, num_hidden_layers=1, num_experts=experts, zero_experts=case["zero_experts"],
        router_method=method, router_top_k=case["top_k"], router_thresholds=[case["threshold"]], router_target_experts=case["top_k"],
        router_normalization=case["normalization"], router_renormalize=case["renormalize"], router_max_experts=case["max_experts"],
        router_cut_decay=0.5, router_cut_steps=2000 if has_cuts else 0)  # 1 - 0.5^2000 = 1
    router = modeling.DtoppRouter(config, 0)
    with torch.no_grad():
        router.weight.copy_(torch.eye(columns))
        if case["normalization"] == "dynamic":
            router.scale.fill_(case["scale"])
        if case["bias"]:
            router.bias_E.copy_(torch.tensor(case["bias"][:experts]))
        if has_cuts:
            router.cut_E.copy_(torch.tensor(case["cut"]))
        x = torch.tensor(case["logits"], dtype=torch.float64).view(-1, columns)
        if router.has_sigmoid_scores:  # it adds its bias to sigmoid(z) = exp(s)
            x = x - torch.log1p(-x.exp())
        logits, weight_TK, expert_TK, zero_weight = router(x.float())
    expected = case["expected"]
    assert torch.equal(logits, x.float()[:, :experts])
    gates = torch.zeros(len(x), experts).scatter_add(1, expert_TK, weight_TK)
    assert ["".join("01"[e] for e in row) for row in (gates != 0).tolist()] == [row[:experts] for row in expected["mask"]]
    want = torch.tensor(expected["gates"]).view(-1, columns)[:, :experts]
    torch.testing.assert_close(gates, want, rtol=1e-5, atol=1e-6)
    zero_gates = torch.tensor(expected.get("without_zero_experts", {"zero_gate": [0.0] * len(x)})["zero_gate"])
    torch.testing.assert_close(zero_weight[:, 0], zero_gates, rtol=1e-5, atol=1e-6)
