"""Tests dtopp.ThresholdController: its law, counts, state and metrics."""

import math

import pytest
import reference_model
import torch
from package_forms import layer
from torch import nn

import dtopp


def stack(**options):
    return nn.Sequential(*(layer(seed=seed, std=0.5, **options) for seed in (1, 2, 3)))


def law(scope="global", targets=2, kp=0.1, ki=0.1, threshold=0.5):
    """The reference controller for three layers of six experts."""
    return reference_model.Controller({
        "routing": {"method": "dtop_p", "scope": scope, "experts": targets, "threshold": threshold, "kp": kp,
                    "ki": ki, "anti_windup": True},
        "model": {"num_layers": 3, "num_experts": 6}})


def active_of(model):
    counts = [moe.gate.tally[:6].sum().item() for moe in model]
    return [count / moe.gate.tally[6:].sum().item() for count, moe in zip(counts, model)]


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_threshold_follows_the_papers_law(scope):
    model = stack()
    controller = dtopp.ThresholdController(model, kp=0.3, ki=0.2, scope=scope)
    want = law(scope, [2, 2, 2] if scope == "layer" else 2, 0.3, 0.2)
    for step in range(12):
        for _ in range(3):
            model(torch.randn(11, 16))
        want.update(active_of(model))
        controller.step()
        assert [moe.gate.router.threshold.item() for moe in model] == pytest.approx(want.thresholds(), abs=1e-14)
        assert len(controller.routers) == (3 if scope == "layer" else 1)
    assert len({moe.gate.router.threshold.item() for moe in model}) == (3 if scope == "layer" else 1)


def test_windup_is_left_out_where_the_threshold_is_at_a_bound():
    model = stack(target_experts=6)
    with torch.no_grad():
        for moe in model:
            moe.gate.scale.fill_(40)  # too sharp to select six experts at any p
    controller = dtopp.ThresholdController(model, kp=5.0, ki=5.0)
    want = law(targets=6, kp=5.0, ki=5.0)
    for _ in range(6):
        model(torch.randn(40, 16))
        want.update(active_of(model))
        controller.step()
    assert controller.state_dict() == pytest.approx({"0.threshold": want.p[0], "0.error_sum": want.error_sum[0],
                                                      "0.steps": 6})
    assert want.p[0] == 1 - 1e-6 and want.error_sum[0] == 0


def test_budget_is_met_without_gains():
    model = stack(threshold=0.05)
    controller = dtopp.ThresholdController(model, controller="solve")
    for step in range(30):
        model(torch.randn(2000, 16))
        controller.step()
    numbers = controller.metrics()
    assert numbers["moe/active_experts"] == pytest.approx(2, rel=0.05)
    assert numbers["moe/threshold_solved"] == pytest.approx(numbers["moe/threshold"], rel=0.1)


def test_solved_threshold_would_have_met_the_target_on_the_same_tokens():
    model, x = stack(), torch.randn(500, 16)
    controller = dtopp.ThresholdController(model, controller="solve")
    inputs = []
    hooks = [moe.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach())) for moe in model]
    with torch.no_grad():
        model(x)
    controller.step()
    for moe, of_layer in zip(model, inputs):
        moe(of_layer)
    assert len(hooks) == 3 and sum(active_of(model)) / 3 == pytest.approx(2, abs=0.01)


def test_evaluation_and_frozen_steps_do_not_count():
    model = stack()
    controller = dtopp.ThresholdController(model)
    model.eval()(torch.randn(9, 16))
    before = controller.state_dict()
    controller.step()
    assert controller.state_dict() == before and controller.metrics()["moe/active_experts"] == 0
    model.train()(torch.randn(9, 16))
    controller.step(applied=False)
    assert controller.state_dict() == before and active_tokens(model) == 0


NONE = {"normalization": "none", "dynamic": 0.0}
WITH_STATE = {
    "pi": ({}, lambda: dtopp.DTopP(6, 2)), "solve": ({}, lambda: dtopp.DTopP(6, 2, controller="solve")),
    "dtop_p_bias": ({}, lambda: dtopp.DTopPBias(6, 2)), "top_k_bias": (NONE, lambda: dtopp.TopKBias(6, 2)),
    "top_k_bias_zero": (NONE | {"zero_experts": 2}, lambda: dtopp.TopKBiasZero(6, 3, 2)),
    "expert_normalization": ({"expert_normalization": "running"}, lambda: dtopp.TopK(2)),
    "relu": (NONE | {"renormalize": False, "load_balance": 0.0}, lambda: dtopp.Relu(2)),
    "expert_threshold": (NONE | {"renormalize": False}, lambda: dtopp.ExpertThreshold(6, 2))}


@pytest.mark.parametrize("empty_first", [True, False])
@pytest.mark.parametrize("name", WITH_STATE)
def test_a_step_without_tokens_changes_no_router(name, empty_first):
    """As the program's controllers do, with and without an earlier step."""
    options, make = WITH_STATE[name]
    moe, x = layer(router=make(), **options), torch.randn(50, 16)
    updater = dtopp.RouterUpdater(moe)
    if not empty_first:
        moe(x)
        updater.step()
    before = updater.state_dict()
    moe(x[:0])
    updater.step()
    updater.step()
    assert updater.state_dict() == before
    moe(x)
    updater.step()
    moved = updater.state_dict()
    assert moved != before and all(torch.tensor(value).isfinite().all() for value in moved.values())


def active_tokens(model):
    return sum(moe.gate.tally.sum().item() for moe in model)


def test_attached_controller_steps_with_the_optimizer():
    model = stack()
    controller = dtopp.ThresholdController(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    handle = controller.attach(optimizer)
    model(torch.randn(9, 16)).sum().backward()
    optimizer.step()
    moved = controller.state_dict()
    assert moved["0.threshold"] != 0.5 and active_tokens(model) == 0
    handle.remove()
    model(torch.randn(9, 16)).sum().backward()
    optimizer.step()
    assert controller.state_dict() == moved


def test_state_comes_back_exactly():
    model = stack()
    controller = dtopp.ThresholdController(model, scope="layer")
    model(torch.randn(9, 16))
    controller.step()
    state = controller.state_dict()
    twin = stack()
    other = dtopp.ThresholdController(twin, scope="layer")
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert [moe.gate.router.threshold for moe in twin] == [moe.gate.router.threshold for moe in model]
    with pytest.raises(ValueError, match=r"the state 0.threshold, 0.error_sum, 0.steps, got .*2.steps"):
        dtopp.ThresholdController(stack()).load_state_dict(state)


def test_state_comes_back_where_the_controller_is_when_its_model_has_moved():
    model = stack()
    controller = dtopp.ThresholdController(model)
    model(torch.randn(9, 16))
    controller.step()
    state = controller.state_dict()
    model.to("meta")  # a device that exists everywhere; values moved to it would be lost
    controller.load_state_dict(state)
    assert controller.state_dict() == state


def test_metrics_are_those_of_a_run():
    model, x = stack(), torch.randn(200, 16)
    controller = dtopp.ThresholdController(model)
    assert controller.metrics() == {}
    with torch.no_grad():
        routed = []
        for moe in model:
            routed.append(moe.gate.eval()(x))
            moe.gate.train()
            moe(x)
    controller.step()
    numbers = controller.metrics()
    active = torch.cat([(r.gates_TE > 0).sum(-1) for r in routed]).double()
    counts = [r.tokens_per_expert_E.double() for r in routed]
    balance = [6 * (c / 200 * r.mean_prob_E).sum().item() for c, r in zip(counts, routed)]
    expected = {
        "moe/active_experts": active.mean().item(), "moe/active_experts_std": active.std(unbiased=False).item(),
        "moe/imbalance": sum((c.max() / c.mean()).item() for c in counts) / 3,
        "moe/dead_experts": sum((c == 0).sum().item() for c in counts), "moe/threshold": 0.5,
        "moe/layer_01/scale": model[1].gate.scale.item(), "train/load_balance_loss": sum(balance) / 3,
        "train/dynamic_loss": sum(r.entropy.item() for r in routed) / 3,
        "train/router_z_loss": sum(r.router_z.item() for r in routed) / 3,
        "moe/layer_02/active_experts": (routed[2].gates_TE > 0).sum(-1).double().mean().item(),
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert all(math.isfinite(value) for value in numbers.values())


def test_routers_that_cannot_share_a_threshold_are_named():
    with pytest.raises(ValueError, match="found none"):
        dtopp.ThresholdController(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="the same target_experts for scope global, got 2, 3"):
        dtopp.ThresholdController(nn.ModuleList([layer(), layer(target_experts=3)]))
    with pytest.raises(ValueError, match="kp of at least 0, got -1"):
        dtopp.ThresholdController(layer(), kp=-1)
