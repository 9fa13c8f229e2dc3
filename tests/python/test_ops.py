"""The ops of libdtopp_ops.so against double-precision PyTorch, finite differences and torch.library.opcheck."""

import os

import pytest
import torch

LIBRARY = os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so")
torch.ops.load_library(os.path.abspath(LIBRARY))
ops = torch.ops.dtopp

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
DTYPES = [torch.float32, torch.bfloat16]
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def close(actual, expected, dtype, scale=1.0):
    """Within 1e-5 of the largest value in fp32. In bf16 a tensor is rounded once where it is an output (2^-9 of its
    value), and pre-activations are stored rounded, which moves a result by a few 2^-9 of the largest: 2^-6 in all."""
    bound = (1e-5 if dtype in (torch.float32, torch.float64) else 2.0**-6) * scale
    expected = expected.double()
    worst = (actual.double() - expected).abs().max().item() if actual.numel() else 0.0
    largest = expected.abs().max().item() if expected.numel() else 0.0
    assert worst <= bound * max(largest, 1e-12), f"off by {worst} where the largest is {largest}"


# --- references -----------------------------------------------------------------------------------------------


def route_reference(logits, scale, threshold, normalization="dynamic", top_k=0, max_experts=0, renormalize=True):
    """Returns the differentiable outputs; the set is formed by one sorted pass per token."""
    z = logits.double()
    s = z
    if normalization != "none":
        centred = z - z.mean(-1, keepdim=True)
        s = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    if normalization == "dynamic":
        s = s * scale.double()
    prob = s.softmax(-1)
    chosen = torch.zeros_like(prob, dtype=torch.bool)
    for t in range(z.shape[0]):
        order = sorted(range(z.shape[1]), key=lambda e: (-prob[t, e].item(), e))
        before = 0.0
        for n, e in enumerate(order):
            if (top_k and n >= top_k) or (max_experts and n >= max_experts):
                break
            if not top_k and n and not before < float(threshold):
                break
            chosen[t, e] = True
            before += prob[t, e].item()
    gates = prob * chosen
    if renormalize:
        gates = gates / gates.sum(-1, keepdim=True)
    tokens = max(z.shape[0], 1)
    entropy = -torch.special.xlogy(prob, prob).sum() / tokens
    return gates, chosen, prob.sum(0) / tokens, entropy, z.logsumexp(-1).pow(2).sum() / tokens


def moe_reference(x, gates, gate_up, down):
    y = torch.zeros_like(x, dtype=gates.dtype)
    for e in range(gates.shape[1]):
        gate, up = (x @ gate_up[e].T).chunk(2, -1)
        y = y + gates[:, e : e + 1] * ((torch.nn.functional.silu(gate) * up) @ down[e].T)
    return y


def loss_reference(x, weight, targets, z_weight, ignore_index=-100):
    keep = targets != ignore_index
    logits = x[keep] @ weight.T
    lse = logits.logsumexp(-1)
    count = max(int(keep.sum()), 1)
    nll = (lse - logits.gather(1, targets[keep, None])[:, 0]).sum() / count
    z = lse.pow(2).sum() / count
    return nll + z_weight * z, nll, z


def gates_like(tokens, experts, active, device="cpu", dtype=torch.float32, seed=0):
    """Positive gates of `active` random experts a token; sets of varying size for a fractional number."""
    g = torch.Generator().manual_seed(seed)
    chance = active / experts
    chosen = torch.rand(tokens, experts, generator=g) < chance if chance < 1 else torch.ones(tokens, experts) > 0
    return (chosen * (0.1 + torch.rand(tokens, experts, generator=g))).to(device, dtype)


def randn(*shape, device="cpu", dtype=torch.float32, seed=1, std=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * std).to(device, dtype)


# --- route ----------------------------------------------------------------------------------------------------

ROUTES = [
    dict(normalization="dynamic"),
    dict(normalization="fixed"),
    dict(normalization="none"),
    dict(normalization="dynamic", renormalize=False),
    dict(normalization="dynamic", max_experts=2),
    dict(normalization="fixed", top_k=1),
    dict(normalization="dynamic", top_k=3),
    dict(normalization="none", top_k=3, max_experts=2, renormalize=False),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", ROUTES, ids=str)
@pytest.mark.parametrize("tokens,experts", [(0, 4), (1, 1), (7, 1), (33, 5), (300, 64)])
def test_route_matches_reference(device, options, tokens, experts):
    options = dict(options, top_k=min(options.get("top_k", 0), experts))
    logits = randn(tokens, experts, device=device, std=2.0).requires_grad_()
    scale = torch.tensor(1.3, device=device, requires_grad=True)
    threshold = torch.tensor(0.61, dtype=torch.float64, device=device)
    gates, counts, histogram, prob, entropy, router_z = ops.route(logits, scale, threshold, **options)
    exact = logits.detach().double().requires_grad_()
    exact_scale = scale.detach().double().requires_grad_()
    expected, chosen, *rest = route_reference(exact, exact_scale, threshold, **options)
    assert torch.equal(gates != 0, chosen)
    assert torch.equal(counts, chosen.sum(0))
    assert torch.equal(histogram, torch.bincount(chosen.sum(1), minlength=experts + 1))
    close(gates, expected, torch.float32)
    for actual, reference in zip((prob, entropy, router_z), rest):
        close(actual, reference, torch.float32)
    weights = randn(tokens, experts, device=device, seed=5)
    per_expert = randn(experts, device=device, seed=6)
    ((gates * weights).sum() + (prob * per_expert).sum() + 0.7 * entropy + 0.3 * router_z).backward()
    total = (expected * weights).sum() + (rest[0] * per_expert).sum() + 0.7 * rest[1] + 0.3 * rest[2]
    total.backward()
    close(logits.grad, exact.grad, torch.float32)
    if exact_scale.grad is not None:  # a sum over tokens that cancels: measured against its terms
        assert abs(scale.grad.item() - exact_scale.grad.item()) <= 1e-5 * max(exact.grad.abs().sum().item(), 1e-3)


@pytest.mark.parametrize("options", ROUTES, ids=str)
def test_route_gradients_match_finite_differences(options):
    logits = randn(5, 6, dtype=torch.float64, std=1.5).requires_grad_()
    scale = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(0.55, dtype=torch.float64)

    def differentiable(z, theta):
        out = ops.route(z, theta, threshold, **options)
        return out[0], out[3], out[4], out[5]

    assert torch.autograd.gradcheck(differentiable, (logits, scale))


def test_route_of_no_tokens_is_zero_with_zero_gradients():
    logits = torch.zeros(0, 4, requires_grad=True)
    scale = torch.tensor(1.0, requires_grad=True)
    out = ops.route(logits, scale, torch.tensor(0.5, dtype=torch.float64))
    assert all(not o.any() for o in out)
    (out[3].sum() + out[4] + out[5]).backward()
    assert scale.grad.item() == 0 and logits.grad.shape == (0, 4)


def test_route_sums_do_not_depend_on_the_number_of_threads():
    logits = randn(3000, 16)
    args = (logits, torch.tensor(1.0), torch.tensor(0.4, dtype=torch.float64))
    before = torch.get_num_threads()
    several = ops.route(*args)
    try:
        torch.set_num_threads(1)
        one = ops.route(*args)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, several))


@pytest.mark.parametrize("dtype", DTYPES)
def test_route_gradients_come_in_the_logits_dtype(dtype):
    logits = randn(9, 8).to(dtype).requires_grad_()
    out = ops.route(logits, torch.tensor(1.0), torch.tensor(0.5, dtype=torch.float64))
    assert out[0].dtype == torch.float32
    out[0].square().sum().backward()
    assert logits.grad.dtype == dtype


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_route_carries_non_finite_logits_on(bad):
    logits = randn(4, 6)
    logits[2] = bad
    logits.requires_grad_()
    gates, counts, histogram, prob, entropy, _ = ops.route(
        logits, torch.tensor(1.0), torch.tensor(0.9, dtype=torch.float64)
    )
    assert gates[2].isnan().any() and entropy.isnan() and histogram.sum() == 4 and histogram[0] == 0
    assert torch.isfinite(gates[[0, 1, 3]]).all()
    gates.sum().backward()
    assert logits.grad[2].isnan().all() and torch.isfinite(logits.grad[[0, 1, 3]]).all()


def test_route_of_huge_logits_stays_finite():
    logits = (randn(50, 8) * 1e4).requires_grad_()
    out = ops.route(logits, torch.tensor(1.0), torch.tensor(0.5, dtype=torch.float64), normalization="none")
    sum(o.sum() for o in (out[0], out[3], out[4], out[5])).backward()
    assert all(torch.isfinite(o).all() for o in out) and torch.isfinite(logits.grad).all()
    assert torch.equal(out[2][:2], torch.tensor([0, 50]))


# --- moe_ffn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "tokens,hidden,ffn,experts,active",
    [(0, 8, 4, 3, 1), (1, 8, 4, 1, 1), (40, 16, 8, 1, 1), (65, 24, 12, 6, 2.5), (50, 16, 8, 4, 4), (300, 32, 20, 16, 0.5)],
)
def test_moe_ffn_matches_reference(device, dtype, tokens, hidden, ffn, experts, active):
    inputs = [
        randn(tokens, hidden, device=device, dtype=dtype),
        gates_like(tokens, experts, active, device),
        randn(experts, 2 * ffn, hidden, device=device, dtype=dtype, seed=2, std=hidden**-0.5),
        randn(experts, hidden, ffn, device=device, dtype=dtype, seed=3, std=ffn**-0.5),
    ]
    inputs = [i.requires_grad_() for i in inputs]
    exact = [i.detach().double().requires_grad_() for i in inputs]
    y, expected = ops.moe_ffn(*inputs), moe_reference(*exact)
    assert y.dtype == dtype and y.shape == (tokens, hidden)
    close(y, expected, dtype)
    grad = randn(tokens, hidden, device=device, dtype=dtype, seed=4)
    y.backward(grad)
    expected.backward(grad.double())
    for actual, reference in zip(inputs, exact):
        assert actual.grad.dtype == actual.dtype
        mask = (actual != 0) if actual is inputs[1] else torch.ones_like(actual)
        close(actual.grad, reference.grad * mask, dtype)


def test_moe_ffn_gradients_match_finite_differences():
    f64 = torch.float64
    gates = gates_like(6, 4, 2, dtype=f64)
    chosen = gates != 0
    values = gates[chosen].clone().requires_grad_()  # a gate of 0 means not chosen: only the others may move
    x = randn(6, 5, dtype=f64).requires_grad_()
    gate_up = randn(4, 6, 5, dtype=f64, seed=2).requires_grad_()
    down = randn(4, 5, 3, dtype=f64, seed=3).requires_grad_()

    def run(x, values, gate_up, down):
        return ops.moe_ffn(x, torch.zeros_like(gates).masked_scatter(chosen, values), gate_up, down)

    assert torch.autograd.gradcheck(run, (x, values, gate_up, down))


@pytest.mark.parametrize("needed", range(4))
def test_moe_ffn_gives_gradients_only_where_needed(needed):
    inputs = [randn(9, 8), gates_like(9, 3, 2), randn(3, 8, 8, seed=2), randn(3, 8, 4, seed=3)]
    full = [i.clone().requires_grad_() for i in inputs]
    ops.moe_ffn(*full).sum().backward()
    inputs[needed].requires_grad_()
    ops.moe_ffn(*inputs).sum().backward()
    assert [i.grad is not None for i in inputs] == [n == needed for n in range(4)]
    torch.testing.assert_close(inputs[needed].grad, full[needed].grad)


def test_moe_ffn_saves_its_inputs_and_the_pre_activations_only():
    x, gates = randn(50, 16).requires_grad_(), gates_like(50, 6, 2)
    gate_up, down = randn(6, 16, 16, seed=2).requires_grad_(), randn(6, 16, 8, seed=3).requires_grad_()
    y = ops.moe_ffn(x, gates, gate_up, down)
    saved = y.grad_fn.saved_tensors if hasattr(y.grad_fn, "saved_tensors") else None
    if saved is None:
        pytest.skip("this torch does not show what a C++ function saved")
    pairs = int((gates != 0).sum())
    known = {x.data_ptr(), gates.data_ptr(), gate_up.data_ptr(), down.data_ptr()}
    extra = [s for s in saved if s.data_ptr() not in known]
    assert [tuple(s.shape) for s in extra] == [(pairs, 16)]


# --- linear_cross_entropy and token_log_probs -----------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,hidden,vocabulary", [(0, 8, 11), (1, 8, 1), (37, 16, 101), (1100, 8, 3000), (70, 24, 300_000)])
def test_linear_cross_entropy_matches_reference(device, dtype, tokens, hidden, vocabulary):
    x = randn(tokens, hidden, device=device, dtype=dtype).requires_grad_()
    weight = randn(vocabulary, hidden, device=device, dtype=dtype, seed=2, std=0.5).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(3)).to(device)
    targets[::3] = -100
    exact, exact_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    loss, nll, z = ops.linear_cross_entropy(x, weight, targets, z_weight=0.01)
    reference = loss_reference(exact, exact_weight, targets, 0.01)
    for actual, expected in zip((loss, nll, z), reference):
        assert actual.dtype == torch.float32 and actual.shape == ()
        close(actual.detach(), expected.detach(), torch.float32)
    assert loss.requires_grad and not nll.requires_grad and not z.requires_grad
    (loss * 0.3).backward()
    (reference[0] * 0.3).backward()
    for actual, expected in ((x, exact), (weight, exact_weight)):
        assert actual.grad.dtype == dtype
        close(actual.grad, expected.grad, dtype)


def test_linear_cross_entropy_gradients_match_finite_differences():
    x = randn(6, 5, dtype=torch.float64).requires_grad_()
    weight = randn(7, 5, dtype=torch.float64, seed=2).requires_grad_()
    targets = torch.tensor([0, 6, 3, -1, 2, 2])
    assert torch.autograd.gradcheck(
        lambda a, b: ops.linear_cross_entropy(a, b, targets, z_weight=0.1, ignore_index=-1)[0], (x, weight)
    )


def test_linear_cross_entropy_of_ignored_targets_is_zero_with_zero_gradients():
    x, weight = randn(5, 4).requires_grad_(), randn(9, 4, seed=2).requires_grad_()
    out = ops.linear_cross_entropy(x, weight, torch.full((5,), 8), z_weight=1.0, ignore_index=8)
    assert [o.item() for o in out] == [0, 0, 0]
    out[0].backward()
    assert not x.grad.any() and not weight.grad.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,hidden,vocabulary", [(0, 8, 11), (37, 16, 101), (1100, 8, 3000)])
def test_token_log_probs_matches_reference(dtype, tokens, hidden, vocabulary):
    x, weight = randn(tokens, hidden, dtype=dtype), randn(vocabulary, hidden, dtype=dtype, seed=2)
    targets = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(3))
    log_probs, greedy = ops.token_log_probs(x, weight, targets)
    reference = (x.double() @ weight.double().T).log_softmax(-1)
    assert log_probs.dtype == torch.float32 and greedy.dtype == torch.int64
    close(log_probs, reference.gather(1, targets[:, None])[:, 0], torch.float32)
    assert torch.equal(greedy, reference.argmax(-1))


def test_token_log_probs_takes_the_lowest_id_on_ties():
    weight = torch.zeros(50, 4)
    weight[[7, 30, 49]] = 1.0
    assert ops.token_log_probs(torch.ones(3, 4), weight, torch.tensor([0, 7, 49]))[1].tolist() == [7, 7, 7]


def test_without_gradients_no_gradient_is_formed():
    x, weight = randn(5, 4).requires_grad_(), randn(9, 4, seed=2).requires_grad_()
    targets = torch.arange(5)
    with torch.no_grad():
        assert not ops.linear_cross_entropy(x, weight, targets)[0].requires_grad
    with torch.inference_mode():
        ops.linear_cross_entropy(x, weight, targets)
    assert not ops.token_log_probs(x, weight, targets)[0].requires_grad


# --- all ------------------------------------------------------------------------------------------------------


def samples(dtype):
    grad = lambda t: t.requires_grad_()
    x, weight = randn(20, 8, dtype=dtype), randn(30, 8, dtype=dtype, seed=2)
    targets = torch.arange(20)
    threshold = torch.tensor(0.5, dtype=torch.float64)
    gate_up, down = randn(4, 12, 8, dtype=dtype, seed=3), randn(4, 8, 6, dtype=dtype, seed=4)
    gates = gates_like(20, 4, 2)
    return {
        "route": [
            ((grad(randn(20, 4).to(dtype)), grad(torch.tensor(1.0)), threshold), {}),
            ((randn(20, 4).to(dtype), torch.tensor(1.0), threshold), dict(normalization="none", top_k=2)),
        ],
        "moe_ffn": [
            ((grad(x.clone()), grad(gates.clone()), grad(gate_up.clone()), grad(down.clone())), {}),
            ((x, gates, gate_up, grad(down.clone())), {}),
            ((x, gates, gate_up, down), {}),
        ],
        "moe_ffn_forward": [((x, gates, gates.t().nonzero(), gate_up, down), {})],
        "linear_cross_entropy": [
            ((grad(x.clone()), grad(weight.clone()), targets), dict(z_weight=0.1)),
            ((x, grad(weight.clone()), targets), {}),
            ((x, weight, targets), dict(ignore_index=3)),
        ],
        "linear_cross_entropy_forward": [((x, weight, targets, 0.1, -100, True, False), {})],
        "token_log_probs": [((x, weight, targets), {}), ((grad(x.clone()), weight, targets), {})],
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(samples(torch.float32)))
def test_opcheck(name, dtype):
    for args, kwargs in samples(dtype)[name]:
        torch.library.opcheck(getattr(ops, name).default, args, kwargs, test_utils=OPCHECKS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_functions_give_the_same_gradients(dtype):
    for name, cases in samples(dtype).items():
        args, kwargs = cases[0]
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            continue
        op = getattr(ops, name)

        def loss(*args):
            out = op(*args, **kwargs)
            out = out[0] if isinstance(out, (tuple, list)) else out
            return out.float().square().sum()

        grads = []
        for run in (loss, torch.compile(loss, backend="aot_eager", dynamic=True)):
            for a in args:
                a.grad = None
            run(*args).backward()
            grads.append([a.grad for a in args if a.requires_grad])
        for eager, compiled in zip(*grads):
            torch.testing.assert_close(eager, compiled)


def test_two_runs_give_the_same_bits():
    def once():
        x, weight = randn(700, 64).requires_grad_(), randn(2000, 64, seed=2).requires_grad_()
        gate_up, down = randn(8, 64, 64, seed=3).requires_grad_(), randn(8, 64, 32, seed=4).requires_grad_()
        logits = randn(700, 8, seed=5).requires_grad_()
        gates = ops.route(logits, torch.tensor(1.0), torch.tensor(0.6, dtype=torch.float64))[0]
        y = ops.moe_ffn(x, gates, gate_up, down)
        loss = ops.linear_cross_entropy(y, weight, torch.arange(700))[0]
        loss.backward()
        return [loss.detach(), y.detach()] + [t.grad for t in (x, weight, gate_up, down, logits)]

    first = once()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, once()))


def test_inputs_need_not_be_contiguous():
    x, gates = randn(8, 20).t(), gates_like(3, 20, 8).t()
    gate_up, down = randn(3, 8, 12, seed=2).mT, randn(3, 6, 8, seed=3).mT
    close(ops.moe_ffn(x, gates, gate_up, down), moe_reference(*(t.double() for t in (x, gates, gate_up, down))), x.dtype)
    weight, targets = randn(8, 30, seed=2).t(), torch.arange(40)[::2] % 30
    close(ops.linear_cross_entropy(x, weight, targets)[0], loss_reference(x.double(), weight.double(), targets, 0)[0], x.dtype)
    f64 = torch.tensor(0.5, dtype=torch.float64)
    logits = randn(6, 20, seed=7).t()
    assert torch.equal(ops.route(logits, torch.tensor(1.0), f64)[0], ops.route(logits.contiguous(), torch.tensor(1.0), f64)[0])


F64, ONE = torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.0)
X, GATES, GATE_UP, DOWN = torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(2, 6, 4), torch.zeros(2, 4, 3)
WEIGHT, TARGETS = torch.zeros(5, 4), torch.zeros(3, dtype=torch.int64)
MISTAKES = [
    ("route", (torch.zeros(3), ONE, F64), {}, r"route: expected logits of shape .*got \[3\]"),
    ("route", (torch.zeros(3, 0), ONE, F64), {}, "route: expected logits of at least 1 expert"),
    ("route", (torch.zeros(3, 2, dtype=torch.int64), ONE, F64), {}, "route: .*float32.*got Long"),
    ("route", (torch.zeros(3, 2), torch.ones(1), F64), {}, r"route: expected a scale of shape \[\], got \[1\]"),
    ("route", (torch.zeros(3, 2), ONE.double(), F64), {}, "route: expected a scale of dtype float32, got Double"),
    ("route", (torch.zeros(3, 2), ONE, F64.float()), {}, "route: expected a threshold of dtype float64, got Float"),
    ("route", (torch.zeros(3, 2), ONE, F64[None]), {}, r"route: expected a threshold of shape \[\]"),
    ("route", (torch.zeros(3, 2), ONE, F64 * float("nan")), {}, "route: expected a threshold .*got nan"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(normalization="layer"), "route: expected normalization .*'layer'"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(top_k=3), "route: expected top_k from 0 to .*2, got 3"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(top_k=-1), "route: expected top_k .*got -1"),
    ("route", (torch.zeros(3, 2), ONE, F64), dict(max_experts=-1), "route: expected max_experts .*got -1"),
    ("route", (torch.zeros(3, 2), ONE.to("meta"), F64), {}, "route: expected .*device cpu, got meta"),
    ("moe_ffn", (X[0], GATES, GATE_UP, DOWN), {}, r"moe_ffn: expected x of shape .*got \[4\]"),
    ("moe_ffn", (X.half(), GATES, GATE_UP, DOWN), {}, "moe_ffn: expected x of dtype .*got Half"),
    ("moe_ffn", (X, GATES.double(), GATE_UP, DOWN), {}, "moe_ffn: expected gates of dtype Float, got Double"),
    ("moe_ffn", (X, GATES[:2], GATE_UP, DOWN), {}, r"moe_ffn: expected gates of shape \[3, experts\], got \[2, 2\]"),
    ("moe_ffn", (X, GATES, GATE_UP[:, :5], DOWN), {}, r"moe_ffn: expected gate_up_proj of shape \[2, 6, 4\], got \[2, 5, 4\]"),
    ("moe_ffn", (X, GATES, GATE_UP, DOWN[:1]), {}, r"moe_ffn: expected down_proj of shape .*got \[1, 4, 3\]"),
    ("moe_ffn", (X, GATES, GATE_UP.bfloat16(), DOWN), {}, "moe_ffn: expected .*dtype Float, got BFloat16 and Float"),
    ("moe_ffn", (X, GATES, GATE_UP.to("meta"), DOWN), {}, "moe_ffn: expected .*device cpu, .*meta"),
    ("linear_cross_entropy", (X[0], WEIGHT, TARGETS), {}, "linear_cross_entropy: expected x of shape"),
    ("linear_cross_entropy", (X, WEIGHT.T, TARGETS), {}, "linear_cross_entropy: expected a weight of shape"),
    ("linear_cross_entropy", (X, WEIGHT.double(), TARGETS), {}, "linear_cross_entropy: expected a weight of x's dtype Float, got Double"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS.int()), {}, "linear_cross_entropy: expected targets of dtype int64, got Int"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS[:2]), {}, r"linear_cross_entropy: expected targets of shape \[3\], got \[2\]"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS + 5), {}, "linear_cross_entropy: expected targets from 0 to 4, got 5 at index 0"),
    ("linear_cross_entropy", (X, WEIGHT, TARGETS - 1), {}, "linear_cross_entropy: expected targets .*got -1"),
    ("linear_cross_entropy", (X, WEIGHT.to("meta"), TARGETS), {}, "linear_cross_entropy: expected .*device cpu, got meta"),
    ("token_log_probs", (X, WEIGHT, TARGETS - 100), {}, "token_log_probs: expected targets .*got -100"),
    ("token_log_probs", (X, WEIGHT[0], TARGETS), {}, "token_log_probs: expected a weight of shape"),
]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name,args,kwargs,message", MISTAKES, ids=[m[3] for m in MISTAKES])
def test_mistakes_are_named(name, args, kwargs, message, inference):
    with torch.inference_mode(inference), pytest.raises(RuntimeError) as error:
        getattr(ops, name)(*args, **kwargs)
    assert str(error.value).startswith(name + ":")
    import re

    assert re.search(message, str(error.value).splitlines()[0]), str(error.value).splitlines()[0]
