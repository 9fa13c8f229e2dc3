"""Tests the ops on random shapes, options and values against plain PyTorch in double precision. A failure
names its seed, which determines the case. `make nightly` tries 10,000."""

import random

import pytest
import torch
from ops_reference import close, default_device, loss_reference, moe_reference, ops, randn, seeded
from route_reference import route_reference
from tiny_run import FULL

pytestmark = pytest.mark.usefixtures("default_device")

CASES = 3334 if FULL else 67  # for each of three groups
# Double inputs use the same code with other tiles, and both sides round alike. Thousands of sums of bf16
# roundings deviate more than the few of test_ops.py.
TOLERANCE_SCALE = {torch.float32: 1.0, torch.bfloat16: 2.0, torch.float64: 1e-7}


@pytest.fixture
def draw(seed):
    return random.Random(seed)


def size(draw, most):
    """Often a small number, otherwise any up to `most`, to cover the strips, panels and blocks of the
    kernels."""
    return draw.choice([draw.randint(1, min(4, most)), draw.randint(1, min(40, most)), draw.randint(1, most)])


def dtype(draw):
    return draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float64])


def check(actual, expected, kind):
    close(actual, expected, kind, TOLERANCE_SCALE[kind])


def near(actual, expected, bound, terms):
    """Expects values within `bound` of the largest one, or of the terms whose difference it is."""
    if actual.numel() == 0:
        return
    worst = (actual.double() - expected.double()).abs().max().item()
    assert worst <= bound * max(expected.abs().max().item(), terms), (worst, bound, expected.abs().max().item(), terms)


def some_need_gradients(draw, tensors):
    needed = [draw.random() < 0.75 for _ in tensors]
    return [t.requires_grad_(n) for t, n in zip(tensors, needed)]


def deviation(logits):
    return ((logits - logits.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1e-6).sqrt()


def clear_rows(logits, scale, threshold, normalization, top_k):
    """The rows in which no rounding changes the selected experts."""
    s = logits.double()
    if normalization != "none":
        s = (s - s.mean(-1, keepdim=True)) / deviation(s)
    if normalization == "dynamic":
        s = s * scale.double()
    prob = s.softmax(-1).sort(-1, descending=True).values
    before = prob.cumsum(-1) - prob
    gaps = (prob[:, :-1] - prob[:, 1:]).amin(-1) if prob.shape[1] > 1 else torch.ones(len(prob))
    margin = torch.ones(len(prob)) if top_k else (before - threshold).abs().amin(-1)
    return (gaps > 1e-6) & (margin > 1e-5)


@pytest.mark.parametrize("seed", range(CASES))
def test_route(seed, draw):
    experts = size(draw, 130)
    options = {"normalization": draw.choice(["dynamic", "fixed", "none"]), "renormalize": draw.random() < 0.7,
               "top_k": draw.choice([0, 0, draw.randint(1, experts)]),
               "max_experts": draw.choice([0, 0, draw.randint(1, experts)])}
    threshold = torch.tensor(draw.choice([0.0, 1.0, draw.random(), draw.random()]), dtype=torch.float64)
    scale = torch.tensor(draw.uniform(0.1, 3))
    logits = randn(draw.randint(0, 200), experts, seed=seed, std=10 ** draw.uniform(-2, 1.3))
    logits = logits[clear_rows(logits, scale, threshold, options["normalization"], options["top_k"])]
    logits.requires_grad_()
    scale.requires_grad_()
    exact, exact_scale = logits.detach().double().requires_grad_(), scale.detach().double().requires_grad_()
    gates, counts, histogram, *sums, _ = ops.route(logits, scale, threshold, **options)
    expected, chosen, *exact_sums, _ = route_reference(exact, exact_scale, threshold, **options)
    assert torch.equal(gates != 0, chosen)
    assert torch.equal(counts, chosen.sum(0))
    assert torch.equal(histogram, torch.bincount(chosen.sum(1), minlength=experts + 1))
    close(gates, expected, torch.float32)
    for actual, reference in zip(sums, exact_sums):
        near(actual.detach(), reference.detach(), 1e-5, 1e-2)
    weights = [seeded(torch.randn, t.shape, seed=seed + n) * (draw.random() < 0.8)
               for n, t in enumerate((gates, *sums))]
    if len(logits) == 0:
        return
    sum((t * w).sum() for t, w in zip([gates, *sums], weights)).backward()
    sum((t * w).sum() for t, w in zip([expected, *exact_sums], weights)).backward()
    # The gradient of a normalized logit is a difference of terms of size theta / sigma.
    largest = exact.grad.abs().max().clamp_min(1e-3)
    if options["normalization"] != "none":
        largest = torch.maximum(largest, 0.1 * exact_scale.detach() / deviation(exact.detach()))
    assert ((logits.grad.double() - exact.grad).abs() <= 1e-5 * largest).all()
    if exact_scale.grad is not None:
        terms = max(exact.grad.abs().sum().item(), exact_scale.grad.abs().item(), 1e-2)
        assert abs(scale.grad - exact_scale.grad) <= 1e-5 * terms


def random_gates(draw, seed, tokens, experts):
    """Gates of every kind: none, all, few, one expert for all tokens, half of the tokens without any."""
    chance = torch.full((tokens, experts), draw.choice([0.0, 1.0, 1 / experts, draw.random()]))
    if draw.random() < 0.3:
        chance[:, draw.randrange(experts)] = 1
    if draw.random() < 0.2:
        chance[: tokens // 2] = 0
    values = seeded(torch.rand, 2, tokens, experts, seed=seed)
    return (values[0] < chance) * (0.05 + values[1])


@pytest.mark.parametrize("seed", range(CASES))
def test_moe_ffn(seed, draw):
    kind = dtype(draw)
    tokens, hidden, ffn, experts = draw.randint(0, 300), size(draw, 150), size(draw, 120), size(draw, 24)
    if draw.random() < 0.2:  # many rows per expert, few columns: the work is split in other ways
        tokens, experts = draw.randint(300, 1500), size(draw, 4)
    gates = random_gates(draw, seed, tokens, experts).to(torch.float64 if kind == torch.float64 else torch.float32)
    inputs = some_need_gradients(draw, [
        randn(tokens, hidden, dtype=kind, seed=seed), gates,
        randn(experts, 2 * ffn, hidden, dtype=kind, seed=seed + 1, std=hidden**-0.5),
        randn(experts, hidden, ffn, dtype=kind, seed=seed + 2, std=ffn**-0.5)])
    exact = [i.detach().double().requires_grad_(i.requires_grad) for i in inputs]
    y, expected = ops.moe_ffn(*inputs), moe_reference(*exact)
    check(y, expected, kind)
    assert y.requires_grad == any(i.requires_grad for i in inputs)
    if not y.requires_grad:
        return
    grad = randn(tokens, hidden, dtype=kind, seed=seed + 3)
    y.backward(grad)
    expected.backward(grad.double())
    # With one column, the largest gradient of a weight may be the remainder of a thousand terms that cancel.
    cancels = 4 if hidden == 1 else 1
    for actual, reference in zip(inputs, exact):
        assert (actual.grad is not None) == actual.requires_grad
        if actual.requires_grad:
            mask = actual != 0 if actual is inputs[1] else torch.ones_like(actual)
            close(actual.grad, reference.grad * mask, kind, TOLERANCE_SCALE[kind] * cancels)


@pytest.mark.parametrize("seed", range(CASES))
def test_linear_cross_entropy_and_token_log_probs(seed, draw):
    kind = dtype(draw)
    tokens, hidden, vocabulary = draw.randint(0, 300), size(draw, 150), draw.choice([size(draw, 700), size(draw, 3000)])
    x = randn(tokens, hidden, dtype=kind, seed=seed)
    weight = randn(vocabulary, hidden, dtype=kind, seed=seed + 1, std=draw.choice([0.02, 0.5, 2.0]))
    targets = seeded(torch.randint, vocabulary, (tokens,), seed=seed)

    logits = x.double() @ weight.double().T
    log_probs, greedy = ops.token_log_probs(x, weight, targets)
    real = torch.float64 if kind == torch.float64 else torch.float32
    # A logit of 100 is off by 6e-6 in fp32, and so is its exponential.
    largest = logits.abs().max().item() if tokens else 1.0
    bound = 1e-5 * max(1.0, largest / 16) * TOLERANCE_SCALE[real]
    near(log_probs, logits.log_softmax(-1).gather(1, targets[:, None])[:, 0], bound, 1.0)
    assert torch.all(logits.gather(1, greedy[:, None])[:, 0] >= logits.amax(-1) - 1e-5 * logits.abs().amax()) if tokens else True

    targets[seeded(torch.rand, tokens, seed=seed + 2) < draw.choice([0.0, 0.3, 1.0])] = -1
    some_need_gradients(draw, [x, weight])
    z_weight = draw.choice([0.0, 1e-4, 0.1])
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in (x, weight)]
    actual = ops.linear_cross_entropy(x, weight, targets, z_weight=z_weight, ignore_index=-1)
    expected = loss_reference(*exact, targets, z_weight, ignore_index=-1)
    for one, reference in zip(actual, expected):
        near(one.detach(), reference.detach(), bound, 1.0)
    if not actual[0].requires_grad:
        return
    actual[0].backward()
    expected[0].backward()
    count = max(int((targets != -1).sum()), 1)
    for one, reference, other in zip((x, weight), exact, exact[::-1]):
        assert (one.grad is not None) == one.requires_grad
        if one.requires_grad:
            # The gradient of a confident prediction is a difference of terms of the other operand's size,
            # divided by the tokens.
            terms = 0.1 * other.detach().abs().max().item() / count if tokens else 0.0
            near(one.grad, reference.grad, 2.0**-5 if kind == torch.bfloat16 else bound, terms)
