"""Tests the ops of libdtopp_ops.so against double-precision PyTorch and finite differences.

The file is long because it holds the tests of all of them.
"""

import pytest
import torch
from ops_reference import DTYPES, close, default_device, gates_like, loss_reference, moe_reference, ops, randn, seeded
from route_reference import route_reference

pytestmark = pytest.mark.usefixtures("default_device")

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
    dict(normalization="none", gate="relu", renormalize=False),
    dict(normalization="dynamic", gate="relu", renormalize=False),
    dict(normalization="none", gate="sigmoid", cut=0.3, top_k=3, renormalize=False),
    dict(normalization="none", gate="sigmoid", cut=float("nan"), top_k=3, renormalize=False),
]


def options_of(row, experts, dtype=torch.float32):
    """The options of route: a row of ROUTES with top_k within bounds and cuts, if it has one, per expert."""
    options = dict(row, top_k=min(row.get("top_k", 0), experts))
    cut = options.pop("cut", None)
    return options if cut is None else options | {"cut_E": torch.linspace(-1, 1, experts, dtype=dtype) + cut}


@pytest.mark.parametrize("options", ROUTES, ids=str)
@pytest.mark.parametrize("tokens,experts", [(0, 4), (1, 1), (7, 1), (33, 5), (300, 64)])
def test_route_matches_reference(options, tokens, experts):
    options = options_of(options, experts)
    logits = randn(tokens, experts, std=2.0).requires_grad_()
    scale = torch.tensor(1.3, requires_grad=True)
    threshold = torch.tensor(0.61, dtype=torch.float64)
    gates, counts, histogram, prob, entropy, router_z, mass = ops.route(logits, scale, threshold, **options)
    exact = logits.detach().double().requires_grad_()
    exact_scale = scale.detach().double().requires_grad_()
    expected, chosen, *rest = route_reference(exact, exact_scale, threshold, **options)
    assert torch.equal(gates != 0, chosen)
    assert torch.equal(counts, chosen.sum(0))
    assert torch.equal(histogram, torch.bincount(chosen.sum(1), minlength=experts + 1))
    assert not mass.any()
    close(gates, expected, torch.float32)
    for actual, reference in zip((prob, entropy, router_z), rest):
        close(actual, reference, torch.float32)
    weights = randn(tokens, experts, seed=5)
    per_expert = randn(experts, seed=6)
    ((gates * weights).sum() + (prob * per_expert).sum() + 0.7 * entropy + 0.3 * router_z).backward()
    total = (expected * weights).sum() + (rest[0] * per_expert).sum() + 0.7 * rest[1] + 0.3 * rest[2]
    total.backward()
    close(logits.grad, exact.grad, torch.float32)
    if exact_scale.grad is not None:  # a sum over tokens that cancels: compared with the size of its terms
        assert abs(scale.grad.item() - exact_scale.grad.item()) <= 1e-5 * max(exact.grad.abs().sum().item(), 1e-3)


@pytest.mark.parametrize("options", ROUTES, ids=str)
def test_route_gradients_match_finite_differences(options):
    logits = randn(5, 6, dtype=torch.float64, std=1.5).requires_grad_()
    scale = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor(0.55, dtype=torch.float64)
    options = options_of(options, 6, torch.float64)

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


@pytest.mark.parametrize("normalization", ["none", "dynamic"])
@pytest.mark.parametrize("bias_on", ["logit", "score", "probability"])
def test_mass_is_the_probability_of_the_experts_and_of_as_many_likeliest(normalization, bias_on):
    logits, scale, threshold = randn(500, 16), torch.tensor(1.2), torch.tensor(0.6, dtype=torch.float64)
    logits[7] = float("nan")  # adds nothing
    gates, *_, mass = ops.route(logits, scale, threshold, normalization=normalization, bias_E=randn(16, seed=2), bias_on=bias_on)
    s, chosen = logits.double(), gates != 0
    if normalization == "dynamic":
        s = (s - s.mean(-1, keepdim=True)) * (s.var(-1, keepdim=True, correction=0) + 1e-6).rsqrt() * scale
    prob = s.softmax(-1)
    likeliest = prob.sort(-1, descending=True).values.cumsum(-1).gather(1, chosen.sum(1, keepdim=True) - 1)
    expected = torch.stack([(prob * chosen)[s.isfinite().all(-1)].sum(), likeliest.nansum()])
    torch.testing.assert_close(mass.double() * 2**-30, expected, rtol=1e-5, atol=0)
    assert mass[0] < mass[1]


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
    gates, counts, histogram, prob, entropy, _, _ = ops.route(
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "tokens,hidden,ffn,experts,active",
    [(0, 8, 4, 3, 1), (1, 8, 4, 1, 1), (40, 16, 8, 1, 1), (65, 24, 12, 6, 2.5), (50, 16, 8, 4, 4), (300, 32, 20, 16, 0.5)],
)
def test_moe_ffn_matches_reference(dtype, tokens, hidden, ffn, experts, active):
    inputs = [
        randn(tokens, hidden, dtype=dtype),
        gates_like(tokens, experts, active),
        randn(experts, 2 * ffn, hidden, dtype=dtype, seed=2, std=hidden**-0.5),
        randn(experts, hidden, ffn, dtype=dtype, seed=3, std=ffn**-0.5),
    ]
    inputs = [i.requires_grad_() for i in inputs]
    exact = [i.detach().double().requires_grad_() for i in inputs]
    y, expected = ops.moe_ffn(*inputs), moe_reference(*exact)
    assert y.dtype == dtype and y.shape == (tokens, hidden)
    close(y, expected, dtype)
    grad = randn(tokens, hidden, dtype=dtype, seed=4)
    y.backward(grad)
    expected.backward(grad.double())
    for actual, reference in zip(inputs, exact):
        assert actual.grad.dtype == actual.dtype
        mask = (actual != 0) if actual is inputs[1] else torch.ones_like(actual)
        close(actual.grad, reference.grad * mask, dtype)


@pytest.mark.parametrize("recompute", [False, True])
def test_moe_ffn_gradients_match_finite_differences(recompute):
    f64 = torch.float64
    gates = gates_like(6, 4, 2, dtype=f64)
    chosen = gates != 0
    values = gates[chosen].clone().requires_grad_()  # a gate of 0 means not selected, so only the others are varied
    x = randn(6, 5, dtype=f64).requires_grad_()
    gate_up = randn(4, 6, 5, dtype=f64, seed=2).requires_grad_()
    down = randn(4, 5, 3, dtype=f64, seed=3).requires_grad_()

    def run(x, values, gate_up, down):
        gates_TE = torch.zeros_like(gates).masked_scatter(chosen, values)
        return ops.moe_ffn(x, gates_TE, gate_up, down, recompute=recompute)

    assert torch.autograd.gradcheck(run, (x, values, gate_up, down))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden,ffn", [(16, 8), (13, 7)])
def test_moe_ffn_with_room_for_more_pairs_gives_the_same_bits(dtype, hidden, ffn):
    def run(capacity):
        inputs = [randn(70, hidden, dtype=dtype), gates_like(70, 5, 2), randn(5, 2 * ffn, hidden, dtype=dtype, seed=2),
                  randn(5, hidden, ffn, dtype=dtype, seed=3)]
        inputs = [i.requires_grad_() for i in inputs]
        y = ops.moe_ffn(*inputs, capacity=capacity)
        y.backward(randn(70, hidden, dtype=dtype, seed=4))
        return [y.detach(), *(i.grad for i in inputs)]

    assert all(torch.equal(a, b) for a, b in zip(run(0), run(300)))


@pytest.mark.parametrize("needed", range(4))
def test_moe_ffn_gives_gradients_only_where_needed(needed):
    inputs = [randn(9, 8), gates_like(9, 3, 2), randn(3, 8, 8, seed=2), randn(3, 8, 4, seed=3)]
    full = [i.clone().requires_grad_() for i in inputs]
    ops.moe_ffn(*full).sum().backward()
    inputs[needed].requires_grad_()
    ops.moe_ffn(*inputs).sum().backward()
    assert [i.grad is not None for i in inputs] == [n == needed for n in range(4)]
    torch.testing.assert_close(inputs[needed].grad, full[needed].grad)


@pytest.mark.parametrize("recompute", [False, True])
def test_moe_ffn_saves_its_inputs_and_the_pre_activations_or_pairs_only(recompute):
    x, gates = randn(50, 16).requires_grad_(), gates_like(50, 6, 2)
    gate_up, down = randn(6, 16, 16, seed=2).requires_grad_(), randn(6, 16, 8, seed=3).requires_grad_()
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.moe_ffn(x, gates, gate_up, down, recompute=recompute)
    pairs = int((gates != 0).sum())
    known = {t.data_ptr() for t in (x, gates, gate_up, down)}
    assert known <= {t.data_ptr() for t in saved}
    extra = [t for t in saved if t.data_ptr() not in known]
    assert [tuple(t.shape) for t in extra] == [(pairs, 2 if recompute else 16)]


# --- linear_cross_entropy and token_log_probs -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,hidden,vocabulary", [(0, 8, 11), (1, 8, 1), (37, 16, 101), (1100, 8, 3000), (70, 24, 300_000)])
def test_linear_cross_entropy_matches_reference(dtype, tokens, hidden, vocabulary):
    x = randn(tokens, hidden, dtype=dtype).requires_grad_()
    weight = randn(vocabulary, hidden, dtype=dtype, seed=2, std=0.5).requires_grad_()
    targets = seeded(torch.randint, vocabulary, (tokens,), seed=3)
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
    targets = seeded(torch.randint, vocabulary, (tokens,), seed=3)
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

# --- orthogonalize --------------------------------------------------------------------------------------------

SHAPES = [(1, 2, 2), (3, 16, 16), (5, 16, 40), (2, 200, 70), (1, 300, 300)]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_orthogonalize_brings_singular_values_near_one(shape, bf16):
    matrices = randn(*shape)
    result = ops.orthogonalize(matrices, bf16)
    U, S, Vh = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = U.mT @ result.double() @ Vh.mT  # the iteration keeps singular vectors
    off = values - torch.diag_embed(values.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < (0.06 if bf16 else 1e-4)
    share = S / matrices.double().norm(dim=(-2, -1)).unsqueeze(-1)
    kept = values.diagonal(dim1=-2, dim2=-1)[share > 0.01]
    assert 0.6 < kept.min() and kept.max() < 1.3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_orthogonalize_has_the_numbers_of_torch(shape):
    """torch computes in bf16, and so its numbers have an error of about 2^-8 per product."""
    matrices = randn(*shape)
    want = torch.stack([torch.optim._muon._zeropower_via_newtonschulz(m, (3.4445, -4.7750, 2.0315), 5, 1e-7) for m in matrices])
    for bf16 in (False, True):
        difference = ops.orthogonalize(matrices, bf16) - want.float()
        assert difference.norm() < 0.1 * want.float().norm()


@pytest.mark.parametrize("bf16", [False, True])
def test_orthogonalize_of_extreme_matrices(bf16):
    zero = torch.zeros(2, 5, 7)
    assert torch.equal(ops.orthogonalize(zero, bf16), zero)
    assert ops.orthogonalize(torch.empty(0, 5, 7), bf16).shape == (0, 5, 7)
    left, right = randn(5, 1), randn(1, 7, seed=2)
    values = torch.linalg.svdvals(ops.orthogonalize((left @ right)[None], bf16)[0])
    # The iteration also raises the singular values of bf16's rounding errors.
    assert 0.6 < values[0] < 1.3 and values[1:].max() < (1.3 if bf16 else 0.05)
    matrices = randn(1, 20, 30)
    want = ops.orthogonalize(matrices, bf16)
    for factor in (1e-3, 1e30):
        assert (ops.orthogonalize(factor * matrices, bf16) - want).norm() < (0.1 if bf16 else 1e-4) * want.norm()
    assert ops.orthogonalize(torch.full((1, 3, 3), torch.inf), bf16).isnan().any()


@pytest.mark.parametrize("bf16", [False, True])
def test_orthogonalize_gives_a_matrix_the_same_bits_in_any_batch(bf16):
    matrices = randn(37, 80, 48)
    together = ops.orthogonalize(matrices, bf16)
    for begin, count in ((0, 1), (3, 16), (20, 17)):
        assert torch.equal(ops.orthogonalize(matrices[begin:begin + count], bf16), together[begin:begin + count])


def test_orthogonalize_refuses_other_shapes_and_types():
    for matrices in (randn(3, 4), randn(1, 3, 4).double()):
        with pytest.raises(RuntimeError, match="orthogonalize: expected f32 matrices"):
            ops.orthogonalize(matrices, False)
