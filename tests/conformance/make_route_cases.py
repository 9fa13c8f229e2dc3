"""Writes route.json: the routing rule as cases, which every implementation of it reads (README.md).

usage: make_route_cases.py          writes route.json beside this file

A case is one line. It holds the arguments of ops.route (dtopp/ops/route/route.h), `zero_experts`, and what the reference in double
precision (tests/python/support/route_reference.py) returns for them. Logits are multiples of 1/64, and random ones are drawn until
no rounding changes a selection."""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python/support"))

import torch
from route_reference import route_reference, softmax_inputs

FILE = pathlib.Path(__file__).with_name("route.json")
DIGITS = 10  # of results: fp64 reads them too
NAN = float("nan")


def random_numbers(name, rows, columns, spread):
    draw = random.Random(name)
    return [[round(draw.gauss(0, spread) * 64) / 64 for _ in range(columns)] for _ in range(rows)]


def centered(values):
    """The same multiples of 1/64 with sum 0: routers subtract the mean of their biases."""
    return [*values[:-1], -sum(values[:-1])]


def arguments(case):
    """The arguments of route_reference, in double precision."""
    tensor = lambda values: None if values is None else torch.tensor(values, dtype=torch.float64)
    logits = tensor(case["logits"]).view(-1, case["columns"])
    cut = case["cut"] and [NAN if value is None else value for value in case["cut"]]
    return dict(logits=logits, scale=tensor(case["scale"]), threshold=case["threshold"], normalization=case["normalization"],
                top_k=case["top_k"], max_experts=case["max_experts"], renormalize=case["renormalize"], bias_E=tensor(case["bias"]),
                bias_on=case["bias_on"], gate=case["gate"], cut_E=tensor(cut))


def is_clear(case):
    """Whether small changes of the arguments keep the selection."""
    exact, noise = arguments(case), torch.Generator().manual_seed(1)
    near = lambda value: value + 1e-3 * (2 * torch.rand(value.shape, dtype=torch.float64, generator=noise) - 1)
    for step in (-1e-3, 1e-3) * 4:
        changed = exact | {"logits": near(exact["logits"]), "threshold": exact["threshold"] + step}
        changed |= {name: near(exact[name]) for name in ("bias_E", "cut_E") if exact[name] is not None}
        if not torch.equal(route_reference(**changed).chosen, route_reference(**exact).chosen):
            return False
    return True


def route_case(name, logits=(4, 8), *, normalization="none", scale=1.0, threshold=0.0, top_k=0, max_experts=0, renormalize=True,
               bias=None, bias_on="logit", gate="probability", cut=None, zero_experts=0, spread=1.5, negative=False):
    """`logits`: rows, or (tokens, columns) of random ones; `negative`: below 0. `bias`: numbers, or the spread of random ones."""
    shape = logits if isinstance(logits, tuple) else (len(logits), len(logits[0]))
    case = {"name": name, "columns": shape[1], "zero_experts": zero_experts, "logits": logits, "normalization": normalization,
            "scale": scale, "threshold": threshold, "top_k": top_k, "max_experts": max_experts, "renormalize": renormalize,
            "bias": bias, "bias_on": bias_on, "gate": gate, "cut": cut}
    for attempt in range(1000):
        if isinstance(logits, tuple):
            rows = random_numbers(f"{name} {attempt}", *shape, spread)
            case["logits"] = [[-abs(z) - 1 / 64 for z in row] for row in rows] if negative else rows
        if isinstance(bias, float):
            drawn = random_numbers(f"{name} bias {attempt}", 1, shape[1] - zero_experts, bias)[0]
            case["bias"] = (drawn if bias_on == "probability" else centered(drawn)) + [0.0] * zero_experts
        # Rows that the caller gives are exact: ties, and thresholds that are reached exactly.
        if not isinstance(logits, tuple) or is_clear(case):
            return case | {"expected": results(case)}
    raise SystemExit(f"{name}: no clear case")


def results(case):
    """The results of route for all columns and, with zero experts, `without_zero_experts`: what the layer makes of them."""
    by, columns, experts = arguments(case), case["columns"], case["columns"] - case["zero_experts"]
    gates, chosen, mean_prob, entropy, router_z, mass = route_reference(**by)
    assert (gates[chosen] > 1e-30).all(), f"{case['name']}: a gate underflows"
    expected = {"gates": numbers(gates), "mask": ["".join("01"[e] for e in row) for row in chosen.tolist()], **counts(chosen),
                "mean_prob": numbers(mean_prob), "entropy": numbers(entropy), "router_z": numbers(router_z),
                "mass": (mass * 2**30).round().long().tolist()}
    if experts < columns:
        prob = softmax_inputs(by["logits"], by["scale"], case["normalization"])[:, :experts].softmax(-1)
        expected["without_zero_experts"] = {**counts(chosen[:, :experts]), "mean_prob": numbers(prob.sum(0) / max(len(prob), 1)),
                                            "zero_gate": numbers(gates[:, experts:].sum(-1))}
    return expected


def counts(chosen):
    return {"tokens_per_expert": chosen.sum(0).tolist(),
            "active_histogram": torch.bincount(chosen.sum(1), minlength=chosen.shape[1] + 1).tolist()}


def numbers(value):
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    return [numbers(one) for one in value] if isinstance(value, list) else float(f"{value:.{DIGITS}g}")


FIXED, DYNAMIC = {"normalization": "fixed"}, {"normalization": "dynamic", "scale": 1.25}
EQUAL = [[0.0] * 4] * 2  # probabilities of exactly 1/4


def all_cases():
    return [
        route_case("top_p", threshold=0.6),
        route_case("top_p_fixed", threshold=0.5, **FIXED),
        route_case("top_p_dynamic", (5, 9), threshold=0.625, **DYNAMIC),
        route_case("top_p_negative_scale", threshold=0.5, normalization="dynamic", scale=-0.75),
        route_case("top_p_many_experts", (3, 16), threshold=0.8, **DYNAMIC),
        route_case("threshold_0_selects_one_expert", threshold=0.0),
        route_case("threshold_1_of_the_first_expert_is_reached_exactly", [[256.0, 0.0, 1.0], [-1.0, 0.5, 300.0]], threshold=1.0),
        route_case("threshold_is_reached_exactly_by_the_first_expert", EQUAL, threshold=0.25),
        route_case("threshold_is_reached_exactly_by_two_experts", EQUAL, threshold=0.5),
        route_case("threshold_is_just_above_two_experts", EQUAL, threshold=0.5 + 2.0**-50),
        route_case("threshold_above_the_sum_selects_all_experts", (3, 5), threshold=1.5, **FIXED),
        route_case("top_p_max_experts", threshold=0.95, max_experts=3, **DYNAMIC),
        route_case("top_p_max_experts_1", threshold=0.9, max_experts=1),
        route_case("top_p_max_experts_above_all", (3, 5), threshold=0.75, max_experts=100),
        route_case("top_p_without_renormalize", threshold=0.7, renormalize=False, **DYNAMIC),
        route_case("top_p_l2", threshold=0.7, renormalize="l2", **DYNAMIC),
        route_case("top_p_l2_max_experts", threshold=0.9, renormalize="l2", max_experts=2, **FIXED),
        route_case("top_k", top_k=3),
        route_case("top_1_fixed", top_k=1, **FIXED),
        route_case("top_k_dynamic", (4, 12), top_k=4, **DYNAMIC),
        route_case("top_k_without_renormalize", top_k=2, renormalize=False),
        route_case("top_k_l2", top_k=3, renormalize="l2", **FIXED),
        route_case("top_k_of_all_experts", (3, 4), top_k=4, **DYNAMIC),
        route_case("top_k_of_all_experts_without_renormalize", (3, 4), top_k=4, renormalize=False, **DYNAMIC),
        route_case("top_k_max_experts", top_k=4, max_experts=2),
        route_case("bias_on_logit", (6, 8), threshold=0.6, bias=0.75, **DYNAMIC),
        route_case("bias_on_logit_max_experts", threshold=0.9, max_experts=3, bias=1.0, **FIXED),
        route_case("bias_on_logit_l2", threshold=0.6, renormalize="l2", bias=0.75),
        route_case("bias_on_logit_top_k", top_k=2, bias=1.0, **DYNAMIC),
        route_case("bias_on_score_top_k", (6, 8), top_k=3, bias=0.25, bias_on="score", negative=True),
        route_case("bias_on_score", threshold=0.6, bias=0.25, bias_on="score", negative=True),
        route_case("bias_on_probability", threshold=0.6, bias=0.25, bias_on="probability", **DYNAMIC),
        route_case("zero_experts", (6, 9), threshold=0.5, zero_experts=4, **DYNAMIC),
        route_case("zero_experts_l2_max_experts", (6, 9), threshold=0.9, zero_experts=4, max_experts=3, renormalize="l2", **FIXED),
        route_case("zero_experts_top_k", (8, 9), top_k=2, bias=0.125, bias_on="probability", zero_experts=4),
        route_case("single_expert", (3, 1), threshold=0.5, **DYNAMIC),
        route_case("single_expert_top_k", (3, 1), top_k=1),
        route_case("ties_take_the_lower_index", [[0.75] * 7, [1.0, 3.0, 2.0, 3.0, 2.0, 3.0, 0.0]], top_k=4, **FIXED),
        route_case("ties_below_a_threshold", [[3.0] * 5, [0.0] * 5], threshold=0.3, **DYNAMIC),
        route_case("ties_of_biased_experts", EQUAL, threshold=0.4, bias=[0.5, -1.5, 0.5, 0.5]),
        # The entropy is a difference of logits: beyond 128, its error in fp32 exceeds the bound of the tests.
        route_case("large_logits", [[125.0, -125.0, 124.0, 122.5], [-120.0, -121.5, -124.0, -123.0]], threshold=0.9),
        route_case("no_tokens", (0, 4), threshold=0.5, **DYNAMIC),
        route_case("no_tokens_zero_experts", (0, 5), top_k=2, zero_experts=2, bias=[0.5, -0.25, 0.0, 0.0, 0.0], bias_on="probability"),
        route_case("relu", [[1.5, -0.5, 0.0, 2.25], [-1.0, -2.0, -0.25, -3.0], [0.25, 1.0, 2.0, 0.5]], renormalize=False, gate="relu"),
        route_case("relu_dynamic", (3, 6), renormalize=False, gate="relu", **DYNAMIC),
        route_case("sigmoid", [[1.5, -0.5, 0.0, 2.25], [0.0, 0.5, -2.0, 2.0], [-4.0, -4.0, -4.0, -4.0]], top_k=2, renormalize=False,
                   gate="sigmoid", cut=[0.5, 0.5, -1.0, 2.25]),
        route_case("sigmoid_before_the_first_cut", (3, 6), top_k=2, renormalize=False, gate="sigmoid", cut=[None] * 6),
    ]


def text():
    return "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in all_cases()) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text())
