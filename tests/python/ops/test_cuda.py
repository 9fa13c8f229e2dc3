"""Tests that need a CUDA device: no op reads a value on the host, and both devices select the same experts."""

import os

import pytest
import torch
from ops_reference import DEVICES, close, gates_like, moe_reference, ops, randn

pytestmark = pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA device, or libdtopp_cuda.so is not built: make test-gpu")


@pytest.fixture
def no_host_reads():
    """Makes torch raise if an operation waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def layer(seed=0, experts=8, hidden=64, ffn=32, tokens=256):
    """The bf16 tensors of one layer with its loss, on the device."""
    kind = dict(dtype=torch.bfloat16)
    tensors = {"x": randn(tokens, hidden, seed=seed, **kind), "logits": randn(tokens, experts, seed=seed + 1),
               "gate_up": randn(experts, 2 * ffn, hidden, seed=seed + 2, std=hidden**-0.5, **kind),
               "down": randn(experts, hidden, ffn, seed=seed + 3, std=ffn**-0.5, **kind),
               "vocabulary": randn(500, hidden, seed=seed + 4, **kind), "scale": torch.tensor(1.0)}
    return {name: tensor.cuda().requires_grad_() for name, tensor in tensors.items()}


def run(t, threshold, targets, capacity):
    gates, counts, _, prob, entropy, router_z, _ = ops.route(t["logits"], t["scale"], threshold)
    y = ops.moe_ffn(t["x"], gates, t["gate_up"], t["down"], capacity=capacity)
    loss = ops.linear_cross_entropy(y, t["vocabulary"], targets, z_weight=1e-4)[0]
    (loss + prob.square().sum() + 1e-3 * entropy + 1e-3 * router_z).backward()
    return counts, loss


GROUPED = os.environ.get("DTOPP_MOE_KERNELS") == "grouped_mm"


@pytest.mark.skipif(GROUPED and torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
                    reason="torch's grouped products read offsets on the host but on compute capability 9.0")
def test_a_layer_reads_nothing_on_the_host(request):
    t = layer()
    threshold = torch.tensor(0.6, dtype=torch.float64, device="cuda")
    targets = torch.arange(256, device="cuda")
    run(t, threshold, targets, 8 * 256)  # the first use may wait: torch loads its libraries
    request.getfixturevalue("no_host_reads")
    counts, loss = run(t, threshold, targets, 8 * 256)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(loss) and counts.sum() >= 256


@pytest.mark.parametrize("experts", [1, 8, 60, 64, 128, 300])
@pytest.mark.parametrize("normalization", ["none", "fixed", "dynamic"])
def test_devices_choose_the_same_experts(experts, normalization):
    logits = randn(2000, experts, std=2.0)
    args = (torch.tensor(1.2), torch.tensor(0.6, dtype=torch.float64))
    cpu = ops.route(logits, *args, normalization=normalization)
    cuda = ops.route(logits.cuda(), *(a.cuda() for a in args), normalization=normalization)
    # A probability that differs in its last bit may move a token across the threshold; this is rare.
    differing = ((cpu[0] != 0) != (cuda[0].cpu() != 0)).any(-1).sum().item()
    assert differing <= 2
    torch.testing.assert_close(cuda[3].cpu(), cpu[3], rtol=1e-5, atol=1e-7)


def test_many_pairs_match_the_cpu():
    """More rows per expert than a tile of the grouped product holds, and an expert without rows."""
    x, gates = randn(3000, 256, dtype=torch.bfloat16), gates_like(3000, 16, 4)
    gates[:, 5] = 0
    weights = [randn(16, 512, 256, dtype=torch.bfloat16, seed=2, std=1 / 16),
               randn(16, 256, 256, dtype=torch.bfloat16, seed=3, std=1 / 16)]
    results = []
    for device in ("cpu", "cuda"):
        inputs = [i.detach().to(device).requires_grad_() for i in (x, gates, *weights)]
        y = ops.moe_ffn(*inputs)
        y.backward(randn(3000, 256, dtype=torch.bfloat16, seed=4).to(device))
        results.append([y.detach(), *(i.grad for i in inputs)])
    for cpu, cuda in zip(*results):
        error = (cuda.cpu().double() - cpu.double()).norm() / cpu.double().norm()
        assert error < 1e-2, error
    assert not results[1][3][5].any() and not results[1][4][5].any()


GEMMS = ["activation", "projection", "activation_gradient", "input_gradient", "down_gradient", "gate_up_gradient"]


@pytest.fixture
def poisoned_memory():
    """Fills memory that torch allocates with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:.*deterministic")
@pytest.mark.parametrize("kernels", ["grouped_mm", *GEMMS, "fused"])
@pytest.mark.parametrize("rows_E, hidden, ffn", [
    ([1], 8, 8), ([128, 0, 129, 3], 64, 128), ([0, 200, 0, 0, 70, 0], 72, 136), ([40, 300], 328, 264), ([4096, 0, 1], 520, 392),
    ([4096] * 8, 2048, 1024)])
def test_every_expert_gemm_matches_double_precision(poisoned_memory, monkeypatch, kernels, rows_E, hidden, ffn):
    """One row, whole tiles and one row more, experts without rows, sizes that are no multiple of a tile, and a full layer. The rows
    between the pairs and the capacity hold NaN, which no kernel may read."""
    monkeypatch.setenv("DTOPP_MOE_KERNELS", kernels)
    kind = dict(dtype=torch.bfloat16)
    tokens, experts = max(rows_E) + 5, len(rows_E)
    gates = torch.zeros(tokens, experts)
    for e, rows in enumerate(rows_E):
        gates[randn(tokens, seed=e).argsort()[:rows], e] = randn(rows, seed=e).abs() + 0.1
    inputs = [randn(tokens, hidden, seed=1, **kind), gates, randn(experts, 2 * ffn, hidden, seed=2, std=hidden**-0.5, **kind),
              randn(experts, hidden, ffn, seed=3, std=ffn**-0.5, **kind)]
    grad_y = randn(tokens, hidden, seed=4, **kind).cuda()
    own = [tensor.cuda().requires_grad_() for tensor in inputs]
    exact = [tensor.cuda().double().requires_grad_() for tensor in inputs]
    y, expected = ops.moe_ffn(*own, capacity=sum(rows_E) + 37), moe_reference(*exact)
    y.backward(grad_y)
    expected.backward(grad_y.double())
    exact[1].grad.mul_(exact[1] != 0)
    for result, reference in zip([y, *(tensor.grad for tensor in own)], [expected, *(tensor.grad for tensor in exact)]):
        close(result, reference, torch.bfloat16)


@pytest.mark.parametrize("add", [False, True])
def test_gradients_of_weights_go_to_sums(add):
    t = {name: tensor.detach() for name, tensor in layer(hidden=72, ffn=136).items()}
    gates = gates_like(256, 8, 3).cuda()
    gates[:, 5] = 0
    inputs = [t["x"], gates, t["gate_up"], t["down"]]
    pre = ops.moe_ffn_forward(inputs[0], gates, gates.t().nonzero(), *inputs[2:])[1]
    expected = ops.moe_ffn_backward(t["x"], *inputs, pre, [True] * 4)
    before = [torch.randn(g.shape, device="cuda") if add else torch.full(g.shape, torch.nan, device="cuda") for g in expected[2:]]
    sums = [b.clone() for b in before]
    close = ops.moe_ffn_backward_sums(t["x"], *inputs, pre, [True] * 2, *sums, [add, add])
    assert all(torch.equal(a, b) for a, b in zip(close, expected))
    for total, was, gradient in zip(sums, before, expected[2:]):
        error = (total - was if add else total) - gradient.float()
        assert error.norm() < gradient.float().norm() / 256
        assert torch.equal(total[5], was[5] if add else torch.zeros_like(was[5]))


@pytest.mark.parametrize("op", ["device_facts", "free_device_memory"])
@pytest.mark.parametrize("index", [-1, 99, 256])
def test_a_device_that_is_not_there_is_refused(op, index):
    with pytest.raises(RuntimeError, match=f"^{op}: expected the index of one of .* CUDA devices, got {index}"):
        getattr(ops, op)(index)


def sum_along_tree(rows):
    """Adds the experts' rows along an aligned tree. Its blocks have the number's odd divisor times a power of
    two (dtopp/ops/moe_ffn/expert_tree.h)."""
    rows = list(rows)
    odd = len(rows)
    while odd % 2 == 0:
        odd //= 2
    stride = 1
    while stride < odd:
        for block in range(0, len(rows), odd):
            for e in range(0, odd - stride, 2 * stride):
                rows[block + e] = rows[block + e] + rows[block + e + stride]
        stride *= 2
    stride = odd
    while stride < len(rows):
        for e in range(0, len(rows), 2 * stride):
            rows[e] = rows[e] + rows[e + stride]
        stride *= 2
    return rows[0]


@pytest.mark.parametrize("experts", [1, 3, 8, 12, 64])
def test_float32_adds_the_experts_of_a_token_along_the_tree(experts):
    t = {name: tensor.detach().float() for name, tensor in layer(experts=experts).items()}
    gates = gates_like(256, experts, min(4, experts)).cuda()

    def run_with(gates):
        x = t["x"].clone().requires_grad_()
        y = ops.moe_ffn(x, gates, t["gate_up"], t["down"])
        y.backward(t["x"])
        return y.detach(), x.grad

    alone = [(gates[:, e:e + 1] == 0, run_with(gates * torch.eye(experts, device="cuda")[e])) for e in range(experts)]
    for whole, part in zip(run_with(gates), (0, 1)):
        assert torch.equal(whole, sum_along_tree(rows[part].masked_fill(absent, -0.0) for absent, rows in alone))
