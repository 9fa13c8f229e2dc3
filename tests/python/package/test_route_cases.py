"""Tests the package on the cases of the routing rule (tests/conformance), in both forms, and that the file of the cases is what its
generator writes."""

import json

import make_route_cases
import pytest
import torch
from ops_reference import close
from package_forms import both_forms

import dtopp
from dtopp import functional

CASES = json.loads(make_route_cases.FILE.read_text())
# The rules that the operator of the program has, but no router of the package. The first list has no function either.
WITHOUT_FUNCTION = {"bias_on_logit_top_k", "bias_on_probability", "bias_on_score", "relu_dynamic"}
WITHOUT_ROUTER = WITHOUT_FUNCTION | {"top_k_max_experts"}
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])


def test_the_file_is_what_the_reference_writes():
    assert_same(json.loads(make_route_cases.text()), CASES, "route.json")


def assert_same(want, have, place):
    """Libraries differ in the last digits of exp."""
    if isinstance(want, (list, dict)):
        assert type(want) is type(have) and len(want) == len(have), place
        for key in want if isinstance(want, dict) else range(len(want)):
            assert_same(want[key], have[key], f"{place}: {key}")
    elif isinstance(want, float):
        assert have == pytest.approx(want, rel=1e-8, abs=1e-300), f"{place}: run tests/conformance/make_route_cases.py"
    elif isinstance(want, int) and place.rpartition(": ")[0].endswith("mass"):
        assert abs(want - have) <= 1, place
    else:
        assert want == have, f"{place}: run tests/conformance/make_route_cases.py"


def test_the_cases_have_every_option():
    for option, values in {"normalization": {"none", "fixed", "dynamic"}, "renormalize": {True, False, "l2"},
                           "bias_on": {"logit", "score", "probability"}, "gate": {"probability", "relu", "sigmoid"}}.items():
        assert {case[option] for case in CASES} == values
    assert len({case["name"] for case in CASES}) == len(CASES)


def logits_of(case):
    return torch.tensor(case["logits"], dtype=torch.float64).view(-1, case["columns"])


def assert_results(routing, case):
    """The results for all columns, or for the experts alone if the routing has those alone."""
    want, experts = case["expected"], routing.gates_TE.shape[1]
    gates = torch.tensor(want["gates"], dtype=torch.float64).view(-1, case["columns"])[:, :experts]
    assert ["".join("01"[e] for e in row) for row in (routing.gates_TE != 0).tolist()] == [row[:experts] for row in want["mask"]]
    close(routing.gates_TE, gates, torch.float32)
    counted = want["without_zero_experts"] if experts < case["columns"] else want
    assert routing.tokens_per_expert_E.tolist() == counted["tokens_per_expert"]
    assert routing.active_histogram.tolist() == counted["active_histogram"]
    close(routing.mean_prob_E, torch.tensor(counted["mean_prob"]), torch.float32)
    close(routing.entropy, torch.tensor(want["entropy"]), torch.float32)
    if experts < case["columns"]:
        close(routing.zero_gate_T1[:, 0], torch.tensor(counted["zero_gate"]), torch.float32)


@by_name
def test_route_has_the_results_of_double_precision(both_forms, case):
    if case["bias"] or case["gate"] != "probability":
        assert case["name"] in WITHOUT_FUNCTION or router_of(case), "neither a function nor a router has this rule"
        return
    routing = functional.route(logits_of(case).float(), torch.tensor(case["scale"]), torch.tensor(case["threshold"], dtype=torch.float64),
                               **{name: case[name] for name in ("normalization", "top_k", "max_experts", "renormalize")})
    assert_results(routing, case)
    close(routing.router_z, torch.tensor(case["expected"]["router_z"]), torch.float32)


def router_of(case):
    """The router that has this rule, or None."""
    experts, top_k, threshold = case["columns"] - case["zero_experts"], case["top_k"], case["threshold"]
    bias_on = case["bias_on"] if case["bias"] else None
    if case["gate"] == "relu":
        return dtopp.Relu(1.0) if case["normalization"] == "none" else None
    if case["gate"] == "sigmoid":
        router = dtopp.ExpertThreshold(experts, top_k, decay=0.5)
        if None not in case["cut"]:
            router.cut_E.copy_(torch.tensor(case["cut"]))
            router.cut_steps.fill_(2000)  # 1 - 0.5^2000 = 1
        return router
    if bias_on is None:
        if top_k:
            return None if case["max_experts"] else dtopp.TopK(top_k)
        return dtopp.TopP(threshold, case["max_experts"])
    if top_k and bias_on == ("probability" if case["zero_experts"] else "score"):
        router = dtopp.TopKBiasZero(experts, top_k, 1.0) if case["zero_experts"] else dtopp.TopKBias(experts, top_k)
    elif not top_k and bias_on == "logit":
        router = dtopp.DTopPBias(experts, 1.0, threshold, case["max_experts"])
    else:
        return None
    router.bias_E.copy_(torch.tensor(case["bias"][:experts]))
    return router


@by_name
def test_layers_have_the_results_of_double_precision(both_forms, case):
    router, x = router_of(case), logits_of(case)
    assert (router is None) == (case["name"] in WITHOUT_ROUTER)
    if router is None:
        return
    has_score = isinstance(router, dtopp.TopKBias)
    if has_score:  # it adds its bias to sigmoid(z) = exp(s)
        x = x - torch.log1p(-x.exp())
    gate = dtopp.Gate(case["columns"], case["columns"] - case["zero_experts"], zero_experts=case["zero_experts"], router=router,
                      normalization=case["normalization"], renormalize=case["renormalize"], load_balance=0.0, dynamic=0.0).eval()
    with torch.no_grad():
        gate.weight.copy_(torch.eye(case["columns"]))
        if case["normalization"] == "dynamic":
            gate.scale.fill_(case["scale"])
    routing = gate(x.float())
    assert_results(routing, case)
    if not has_score:  # else it is of z, not of the case's logits
        close(routing.router_z, torch.tensor(case["expected"]["router_z"]), torch.float32)
