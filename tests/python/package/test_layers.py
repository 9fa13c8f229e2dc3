"""Tests dtopp.MoE and its parts, in both forms, against the same layer in double precision. The file is long because all
these tests compare with one reference."""

import copy
import re

import pytest
import torch
from ops_reference import close, moe_reference
from package_forms import FORMS, both_forms, gradients, layer, reference

import dtopp
from dtopp import form, functional

needs_both_forms = pytest.mark.skipif(len(FORMS) < 2, reason="DTOPP_OPS= selects the plain form alone")

OPTIONS = {
    "dtop_p": ({}, {}),
    "top_p_fixed": ({"router": "top_p", "normalization": "fixed"}, {"normalization": "fixed"}),
    "top_k_none": ({"router": "top_k", "normalization": "none"}, {"normalization": "none", "top_k": 2}),
    "at_most": ({"max_experts": 3, "threshold": 0.9}, {"max_experts": 3}),
    "own_probability": ({"renormalize": False}, {"renormalize": False}),
    "l2_gates": ({"renormalize": "l2"}, {"renormalize": "l2"}),
}
LOSSES = {"load_balance": 0.3, "dynamic": 0.2, "router_z": 0.1}


@pytest.mark.parametrize("name", OPTIONS)
def test_layer_and_its_gradients_match_double_precision(both_forms, name):
    options, routing = OPTIONS[name]
    moe, x = layer(**options, **LOSSES), torch.randn(3, 21, 16).requires_grad_()
    target = torch.randn(3, 21, 16)
    want, added, _ = reference(moe, x, **routing)
    ((want * target).sum() + added).backward()
    expected = gradients(moe, x)
    y = moe(x)
    (y * target).sum().backward()
    close(y, want, y.dtype)
    for grad, expect in zip(gradients(moe, x), expected):
        close(grad, expect, y.dtype, 1 if grad.numel() > 1 else 4)  # terms of a sum over all tokens cancel


@pytest.mark.parametrize("shared_gate", [False, True])
def test_shared_experts_add_one_ffn_for_every_token(both_forms, shared_gate):
    torch.manual_seed(1)
    moe, x = dtopp.MoE(16, 8, 6, shared_experts=2, shared_gate=shared_gate, target_experts=2).eval(), torch.randn(3, 7, 16)
    assert moe.shared_experts.gate_up_proj.weight.shape == (32, 16) and moe.shared_experts.down_proj.weight.shape == (16, 16)
    alone = dtopp.MoE(16, 8, 6, target_experts=2).eval()
    alone.load_state_dict({name: tensor for name, tensor in moe.state_dict().items() if "shared" not in name})
    gate, up = (x @ moe.shared_experts.gate_up_proj.weight.T).chunk(2, -1)
    shared = (torch.nn.functional.silu(gate) * up) @ moe.shared_experts.down_proj.weight.T
    if shared_gate:
        shared = shared / (1 + (-(x @ moe.shared_gate.weight.T)).exp())
    torch.testing.assert_close(moe(x), alone(x) + shared)
    with pytest.raises(ValueError, match="shared_experts"):
        dtopp.MoE(16, 8, 6, shared_experts=0 if shared_gate else -1, shared_gate=shared_gate, target_experts=2)


@pytest.mark.parametrize("zero_kind", ["zero", "copy"])
def test_tokens_may_take_zero_experts(both_forms, zero_kind):
    moe, x = layer(router=dtopp.TopKBiasZero(6, 2, 1.2), zero_experts=4, zero_kind=zero_kind, normalization="none").eval(), torch.randn(400, 16)
    prob = (x.double() @ moe.gate.weight.double().T).softmax(-1)
    chosen = torch.zeros_like(prob).scatter(1, prob.topk(2).indices, 1)
    gates = prob * chosen / (prob * chosen).sum(-1, keepdim=True)
    want = moe_reference(x.double(), gates[:, :6], moe.experts.gate_up_proj.double(), moe.experts.down_proj.double())
    if zero_kind == "copy":
        want = want + x * gates[:, 6:].sum(1, keepdim=True)
    close(moe(x), want, x.dtype)
    routing = moe.gate(x)
    assert torch.equal(routing.tokens_per_expert_E, chosen[:, :6].sum(0).long())
    assert torch.equal(routing.active_histogram, chosen[:, :6].sum(1).long().bincount(minlength=7)) and routing.active_histogram[0] > 0


def test_histogram_of_zero_experts_counts_the_others(both_forms):
    logits, scale = torch.randn(300, 9), torch.tensor(1.3)
    counts = functional.cumulative_prob_histogram(logits, scale, zero_experts=3)
    chosen = functional.route(logits, scale, torch.tensor(0.5, dtype=torch.float64)).gates_TE[:, :6] != 0
    assert abs(counts[:2048].sum() - chosen.sum()) <= 1  # bin 2048 begins at 0.5; one sum may round across the edge


def test_hash_selects_by_id_without_parameters(both_forms):
    moe = layer(router=dtopp.Hash(50, 6, 2), normalization="none", load_balance=0.0, dynamic=0.0)
    assert not list(moe.gate.parameters()) and moe.to("meta").to_empty(device="cpu").gate.tally.device.type == "cpu"
    ids = torch.randint(0, 50, (4, 10))
    gates = moe.gate(torch.randn(40, 16), ids.flatten()).gates_TE
    assert torch.equal((gates == 0.5).sum(1), torch.full((40,), 2)) and gates.sum() == 40
    first, same = ids.flatten()[0], ids.flatten() == ids.flatten()[0]
    assert (gates[same] == gates[0]).all() and len(dtopp.Hash(50, 6, 2).expert_VK[first].unique()) == 2
    assert moe(torch.randn(4, 10, 16), ids).shape == (4, 10, 16)
    with pytest.raises(ValueError, match="Hash: expected the ids of the tokens"):
        moe(torch.randn(4, 10, 16))
    with pytest.raises(ValueError, match="a router without logits"):
        layer(router=dtopp.Hash(50, 6, 2))


def test_losses_enter_in_training_alone_and_with_their_scale(both_forms):
    # For some seeds, which differ between torch versions, the terms of the scale's gradient cancel.
    moe, x = layer(seed=3, **LOSSES), torch.randn(21, 16)
    dtopp.ThresholdController(moe)
    dtopp.set_loss_scale(0.25)
    want, added, _ = reference(moe, x, loss_scale=0.25)
    (want.sum() + added).backward()
    expected = gradients(moe)
    moe(x).sum().backward()
    for grad, expect in zip(gradients(moe), expected):
        close(grad, expect, x.dtype)
    reference(moe, x)[0].sum().backward()
    expected = gradients(moe)
    moe.eval()(x).sum().backward()
    for grad, expect in zip(gradients(moe), expected):
        close(grad, expect, x.dtype)


@pytest.mark.parametrize("frozen", ["gate", "experts"])
def test_frozen_parts_get_no_gradient(both_forms, frozen):
    moe, x = layer(), torch.randn(9, 16).requires_grad_()
    reference(moe, x)[0].sum().backward()
    expected = gradients(moe, x)
    getattr(moe, frozen).requires_grad_(False)
    moe.eval()(x).sum().backward()
    for (name, _), grad, expect in zip([*moe.named_parameters(), ("x", x)], gradients(moe, x), expected):
        if name.startswith(frozen):
            assert grad is None
        else:
            close(grad, expect, x.dtype)


def test_no_tokens_give_no_output_and_zero_gradients(both_forms):
    moe, x = layer(), torch.randn(0, 16).requires_grad_()
    y = moe(x)
    assert y.shape == (0, 16)
    y.sum().backward()
    assert all(not grad.any() for grad in gradients(moe, x)[:-1]) and not moe.gate.tally.any()


def test_double_precision_passes_gradcheck(both_forms):
    moe, x = layer(sizes=(4, 3, 3)).double().eval(), torch.randn(5, 4).double().requires_grad_()
    parameters = dict(moe.named_parameters())

    def call(x, *values):
        return torch.func.functional_call(moe, dict(zip(parameters, values)), x)

    assert torch.autograd.gradcheck(call, (x, *parameters.values()))


@needs_both_forms
def test_both_forms_route_alike():
    logits, scale = torch.randn(300, 8, generator=torch.Generator().manual_seed(5)), torch.tensor(1.7)
    logits[3, 2], logits[7, 1], logits[9] = float("nan"), float("inf"), 0.5
    threshold = torch.tensor(0.6).double()
    for options in ({}, {"normalization": "none", "top_k": 3}, {"max_experts": 2, "renormalize": False}):
        compiled, plain = (functional.Routing(*f.route(logits, scale, threshold, **{
            "normalization": "dynamic", "top_k": 0, "max_experts": 0, "renormalize": True} | options))
            for f in FORMS.values())
        assert torch.equal(compiled.tokens_per_expert_E, plain.tokens_per_expert_E)
        assert torch.equal(compiled.active_histogram, plain.active_histogram)
        torch.testing.assert_close(compiled.gates_TE, plain.gates_TE, equal_nan=True, rtol=1e-5, atol=1e-7)


@needs_both_forms
@pytest.mark.parametrize("max_experts", [0, 3])
def test_both_forms_count_the_same_masses(max_experts, monkeypatch):
    # The logits are spread and few, so no cumulative probability lies within fp32's rounding of a bin edge.
    logits, scale = torch.randn(40, 8, generator=torch.Generator().manual_seed(6)) * 3, torch.tensor(1.7)
    counts = []
    for kind in FORMS.values():
        monkeypatch.setattr(form, "current", kind)
        counts.append(functional.cumulative_prob_histogram(logits, scale, max_experts=max_experts, stride=2))
    assert torch.equal(*counts) and counts[0].sum() == 20 * ((max_experts or 8) - 1)


def test_cross_entropy_and_log_probs_match_double_precision(both_forms):
    x, weight = torch.randn(20, 8).requires_grad_(), torch.randn(30, 8).requires_grad_()
    targets = torch.arange(20)
    targets[3] = -100
    logits = x.double() @ weight.double().T
    lse, kept = logits.logsumexp(-1), targets >= 0
    nll = (lse - logits.gather(1, targets.clamp(min=0)[:, None])[:, 0])[kept].mean()
    z = lse[kept].square().mean()
    expected = torch.autograd.grad(nll + 0.1 * z, (x, weight))
    got = functional.linear_cross_entropy(x, weight, targets, z_weight=0.1)
    close(torch.stack([got.loss, got.nll, got.z]), torch.stack([nll + 0.1 * z, nll, z]), x.dtype)
    for grad, expect in zip(torch.autograd.grad(got.loss, (x, weight)), expected):
        close(grad, expect, x.dtype)
    log_probs, greedy = functional.token_log_probs(x, weight, targets.clamp(min=0))
    close(log_probs, (logits - lse[:, None]).gather(1, targets.clamp(min=0)[:, None])[:, 0], x.dtype)
    assert torch.equal(greedy, logits.argmax(-1))


def test_state_dict_has_a_checkpoints_names_and_comes_back(both_forms, tmp_path):
    moe = layer()
    state = moe.state_dict()
    assert {name: list(t.shape) for name, t in state.items()} == {
        "gate.weight": [6, 16], "gate.scale": [1], "experts.gate_up_proj": [6, 24, 16],
        "experts.down_proj": [6, 16, 12]}
    torch.save(state, tmp_path / "state.pt")
    other, x = layer(seed=2), torch.randn(7, 16)
    assert not torch.equal(other(x), moe(x))
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(other(x), moe(x))
    state["gate.scale"] = torch.tensor(2.0)  # the shape in a checkpoint file
    other.load_state_dict(state)
    assert other.gate.scale.tolist() == [2.0]
    assert "gate.scale" not in layer(normalization="fixed").state_dict()


def test_bf16_model_keeps_its_threshold_and_its_counts(both_forms):
    moe, x = layer(threshold=0.41532), torch.randn(64, 16)
    active = reference(moe.bfloat16(), x.bfloat16())[2]
    y = moe(x.bfloat16())
    assert y.dtype == torch.bfloat16 and moe.gate.router.threshold.item() == 0.41532
    assert moe.gate.tally.dtype == torch.int64
    assert torch.equal(moe.gate.tally[6:], torch.bincount(active, minlength=7))
    close(y, reference(moe, x.bfloat16())[0], torch.bfloat16)
    y.float().sum().backward()
    assert all(grad.dtype == torch.bfloat16 for grad in gradients(moe))


@pytest.fixture
def one_thread():
    """Products on several threads may add in another order each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_gradients_under_a_grad_scaler_are_the_same(both_forms, one_thread):
    moe, x = layer(**LOSSES), torch.randn(33, 16)
    moe(x).square().sum().backward()
    expected = gradients(moe)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**15), torch.optim.SGD(moe.parameters())
    for call in (moe, torch.compile(moe, backend="aot_eager", fullgraph=True)):
        dtopp.set_loss_scale(scaler.get_scale())
        scaler.scale(call(x).square().sum()).backward()
        scaler.unscale_(optimizer)
        scaler.update()  # forgets that the gradients are unscaled
        for grad, expect in zip(gradients(moe), expected):
            assert torch.equal(grad, expect)  # the scale is a power of two


def test_a_moving_loss_scale_compiles_nothing_again(one_thread):
    moe, x = layer(**LOSSES), torch.randn(33, 16)
    call = torch.compile(moe, backend="aot_eager", fullgraph=True)
    call(x).square().sum().backward()
    whole = gradients(moe)
    with torch.compiler.set_stance("fail_on_recompile"):
        for scale in (0.5, 2.0**16):
            dtopp.set_loss_scale(scale)
            (scale * call(x).square().sum()).backward()
            for grad, expect in zip(gradients(moe), whole):
                assert torch.equal(grad, scale * expect)  # powers of two


def test_copies_and_models_made_without_memory_work(both_forms):
    moe, x = layer(), torch.randn(7, 16)
    twin = copy.deepcopy(moe)
    twin(x)
    assert not moe.gate.tally.any() and twin.gate.tally.any()
    with torch.device("meta"):
        empty = dtopp.MoE(16, 12, 6, target_experts=2, threshold=0.5)
    empty.to_empty(device="cpu").load_state_dict(moe.state_dict())
    assert empty.gate.router.threshold.item() == 0.5 and torch.equal(empty(x), moe(x))


def test_routing_of_the_router_alone():
    moe, x = layer(), torch.randn(50, 16)
    routing, active = moe.gate(x), reference(moe, x)[2]
    assert torch.equal(routing.active_histogram, torch.bincount(active, minlength=7))
    assert torch.equal(moe.experts(x, routing.gates_TE), moe(x))


def call_in_half_precision():
    with torch.autocast("cpu", dtype=torch.float16):
        layer()(torch.zeros(3, 16))


MISTAKES = [
    (call_in_half_precision, "moe_ffn: expected x of dtype .*, got torch.float16"),
    (lambda: dtopp.MoE(16, 12, 0), "num_experts of at least 1, got 0"),
    (lambda: dtopp.MoE(16, 12, 4), "target_experts from 1 to num_experts 4, got 8"),
    (lambda: dtopp.MoE(16, 12, 8, threshold=1.0), "threshold between 0 and 1"),
    (lambda: dtopp.MoE(16, 12, 8, router="topk"), "router top_k, top_p, dtop_p or a Router, got 'topk'"),
    (lambda: dtopp.MoE(16, 12, 8, router="top_k", target_experts=1.5), "a whole number"),
    (lambda: dtopp.MoE(16, 12, 8, max_experts=4), "max_experts of at least target_experts 8, or 0, got 4"),
    (lambda: dtopp.MoE(16, 12, 8, normalization="layer"), "normalization none, fixed or dynamic, got 'layer'"),
    (lambda: dtopp.MoE(16, 12, 8, expert_normalization="batch"), "expert_normalization none, or running with"),
    (lambda: dtopp.MoE(16, 12, 8, normalization="none", expert_normalization="running"), "got 'running' with 'none'"),
    (lambda: dtopp.set_loss_scale(float("inf")), "a loss scale above 0 and finite, got inf"),
    (lambda: dtopp.MoE(16, 12, 8, dynamic=-1.0), "a weight dynamic of at least 0, got -1"),
    (lambda: layer()(torch.zeros(3, 15)), r"Gate: .*\[tokens, 16\], got \[3, 15\]"),
    (lambda: layer()(torch.zeros(3, 16).bfloat16()), "moe_ffn: .*x's dtype torch.bfloat16"),
    (lambda: functional.moe_ffn(torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(2, 5, 4), torch.zeros(2, 4, 3)),
     r"moe_ffn: expected gate_up_proj of shape \[2, 6, 4\], got \[2, 5, 4\]"),
    (lambda: functional.route(torch.zeros(3, 2), torch.tensor(1.0), torch.tensor(0.5)), "route: .*torch.float64"),
    (lambda: functional.route(torch.zeros(3, 2), torch.tensor(1.0), torch.tensor(0.5).double(), top_k=3),
     "route: expected top_k from 0 to the number of experts 2, got 3"),
    (lambda: functional.route_selected(torch.zeros(3, 2), torch.tensor(1.0), torch.zeros(2, 2).bool()),
     r"route_selected: expected a selection of dtype torch.bool and shape \[3, 2\], got torch.bool \[2, 2\]"),
    (lambda: functional.linear_cross_entropy(torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(2).long()),
     r"linear_cross_entropy: .*shape \[3\], got torch.int64 \[2\]"),
]


@pytest.mark.parametrize("call,message", MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert re.search(message, str(error.value)), str(error.value)
