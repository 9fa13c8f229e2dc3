"""dtopp.MoE under torch.compile, activation checkpointing, autocast and torch.export gives the same values as
without them, and exact counts."""

import functools

import pytest
import torch
from ops_reference import close
from package_forms import both_forms, gradients, layer, reference
from tiny_run import in_full
from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,
                                    create_selective_checkpoint_contexts)

import dtopp
from dtopp import functional

LOSSES = {"load_balance": 0.3, "dynamic": 0.2, "router_z": 0.1}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


class Block(torch.nn.Module):
    """A layer between two operations whose activations a checkpoint also drops."""

    def __init__(self, **options):
        super().__init__()
        self.moe = layer(**options, **LOSSES, expert_normalization="running")
        self.moe.gate.expert_normalization.input_mean_D.normal_()
        self.moe.gate.expert_normalization.logit_square_C.fill_(2)

    def forward(self, x):
        return x + self.moe(torch.tanh(x))


def run(block, call, x):
    """Returns the output, the gradients, and the counts of a step."""
    leaf = x.clone().requires_grad_()
    y = call(leaf)
    y.square().sum().backward()
    grads = gradients(block, leaf)
    gate = block.moe.gate
    counts = (gate.tally, gate.sums, gate.statistics, gate.logit_sums)
    counted = [tensor.clone() for tensor in counts]
    for tensor in counts:
        tensor.zero_()
    return y.detach(), grads, counted


def same(got, want, exact_counts=True):
    y, grads, counted = got
    torch.testing.assert_close(y, want[0])
    for grad, expect in zip(grads, want[1]):
        close(grad, expect, y.dtype)
    assert torch.equal(counted[0], want[2][0]) and torch.equal(counted[2], want[2][2]), "counts"
    torch.testing.assert_close(counted[1], want[2][1], rtol=1e-6, atol=0)
    # A compiler rounds a token's logits differently, by a unit.
    torch.testing.assert_close(counted[3], want[2][3], rtol=1e-6, atol=len(y))


def selective(policy_of_experts):
    def policy(_, op, *args, **kwargs):
        if op == torch.ops.dtopp.experts.default:
            return policy_of_experts
        return CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


CHECKPOINTS = {
    "none": {},
    "reentrant": {"use_reentrant": True},
    "not_reentrant": {"use_reentrant": False},
    "selective_saving": {"use_reentrant": False, "context_fn": selective(CheckpointPolicy.MUST_SAVE)},
    "selective_recomputing": {"use_reentrant": False, "context_fn": selective(CheckpointPolicy.MUST_RECOMPUTE)},
}


def checkpointed(call, kind):
    return functools.partial(checkpoint, call, **CHECKPOINTS[kind]) if CHECKPOINTS[kind] else call


@pytest.mark.parametrize("kind", list(CHECKPOINTS)[1:])
def test_checkpoint_counts_once(both_forms, kind):
    block, x = Block(), torch.randn(33, 16)
    dtopp.ThresholdController(block, controller="solve")
    same(run(block, checkpointed(block, kind), x), run(block, block, x))


# PyTorch cannot trace a reentrant checkpoint.
@pytest.mark.parametrize("both_forms,kind", [
    ("compiled", "not_reentrant"), ("compiled", "selective_saving"), ("compiled", "selective_recomputing"),
    ("plain", "selective_saving")], indirect=["both_forms"])
def test_compiled_graph_with_a_checkpoint_in_it_is_exact(both_forms, kind):
    block, x = Block(), torch.randn(33, 16)
    dtopp.ThresholdController(block, controller="solve")
    call = torch.compile(lambda x: checkpointed(block, kind)(x), backend="aot_eager", fullgraph=True)
    same(run(block, call, x), run(block, block, x))


# Selective checkpoints are left out: around compiled code they would keep buffers that this code reuses.
@pytest.mark.parametrize("kind", ["reentrant", "not_reentrant"])
def test_checkpoint_of_a_compiled_layer_is_exact(kind):
    block, x = Block(), torch.randn(33, 16)
    dtopp.ThresholdController(block, controller="solve")
    call = checkpointed(torch.compile(block, backend="aot_eager", fullgraph=True), kind)
    same(run(block, call, x), run(block, block, x))


@pytest.mark.parametrize("both_forms", ["compiled", *in_full("plain")], indirect=True)
def test_inductor_is_exact_and_a_moving_threshold_compiles_nothing_again(both_forms):
    block = Block()
    controller = dtopp.ThresholdController(block, kp=1.0)
    call, thresholds = torch.compile(block, fullgraph=True), set()
    x = torch.randn(33, 16)
    same(run(block, call, x), run(block, block, x))
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(4):
            block(x)
            controller.step()
            thresholds.add(block.moe.gate.router.threshold.item())
            x = torch.randn(33, 16)
            same(run(block, call, x), run(block, block, x))
    assert len(thresholds) == 4


@pytest.mark.parametrize("name", ["experts", "tally_", "add_loss"])
def test_opcheck(both_forms, name):
    moe, x = layer(), torch.randn(9, 16).requires_grad_()
    gates = moe.gate(x).gates_TE.detach().requires_grad_()
    arguments = {"experts": (x, gates, moe.experts.gate_up_proj, moe.experts.down_proj),
                 "tally_": (torch.zeros(3), torch.ones(3)),
                 "add_loss": (gates, torch.tensor(2.0, requires_grad=True), torch.tensor(8.0))}[name]
    torch.library.opcheck(getattr(torch.ops.dtopp, name).default, arguments)


@pytest.mark.parametrize("both_forms", ["compiled", *in_full("plain")], indirect=True)
def test_number_of_tokens_may_vary(both_forms):
    block = Block()
    call = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens, stance in ((33, "default"), (17, "fail_on_recompile"), (70, "fail_on_recompile")):
        x = torch.randn(tokens, 16)
        with torch.compiler.set_stance(stance):
            same(run(block, call, x), run(block, block, x))


def test_functions_compile_into_one_graph(both_forms):
    x, weight, targets = torch.randn(21, 8).requires_grad_(), torch.randn(30, 8).requires_grad_(), torch.arange(21)

    def call(x, weight):
        loss, _, z = functional.linear_cross_entropy(x, weight, targets, z_weight=0.1)
        return (loss, z, *functional.token_log_probs(x, weight, targets),
                functional.cumulative_prob_histogram(x, torch.tensor(1.0), max_experts=3))

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, weight)
    for got, want in zip(compiled, call(x, weight)):
        torch.testing.assert_close(got, want)
    want = torch.autograd.grad(call(x, weight)[0], (x, weight))
    for grad, expect in zip(torch.autograd.grad(compiled[0], (x, weight)), want):
        torch.testing.assert_close(grad, expect)


def bf16(tensor):
    return tensor.bfloat16().to(tensor.dtype)


@pytest.mark.parametrize("dtype,compiled", [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_autocast_rounds_the_experts_and_not_the_router(both_forms, dtype, compiled):
    moe, x = layer(), torch.randn(33, 16).to(dtype)
    routed = moe.gate(x)
    call = torch.compile(moe, backend="aot_eager", fullgraph=True) if compiled else moe
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = call(x)
        gates = moe.gate(x).gates_TE
    assert y.dtype == torch.bfloat16 and torch.equal(gates, routed.gates_TE)
    y.float().square().sum().backward()
    grads = gradients(moe)
    assert all(grad.dtype == torch.float32 for grad in grads)
    rounded = layer()
    with torch.no_grad():
        rounded.experts.gate_up_proj.copy_(bf16(moe.experts.gate_up_proj))
        rounded.experts.down_proj.copy_(bf16(moe.experts.down_proj))
    want = rounded.experts(bf16(x).float(), routed.gates_TE)
    close(y, want, torch.bfloat16)


@pytest.mark.parametrize("gradients_needed", [False, True])
def test_export_gives_the_same_numbers_at_other_sizes(both_forms, gradients_needed, tmp_path):
    block = Block().eval()
    tokens = torch.export.Dim("tokens", min=2, max=1000)
    with torch.set_grad_enabled(gradients_needed):
        program = torch.export.export(block, (torch.randn(33, 16),), dynamic_shapes=({0: tokens},))
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2").module()
    for count in (33, 5):
        x = torch.randn(count, 16)
        torch.testing.assert_close(loaded(x), block(x))
