"""Tests the op cumulative_prob_histogram against double-precision PyTorch and against the experts that route selects."""

import pytest
import torch
from ops_reference import default_device, ops, randn

pytestmark = pytest.mark.usefixtures("default_device")


def cumulative_prob_edges():
    """The lower edges of the 4,096 bins: 32 octaves of 64 bins towards 0, and the same mirrored towards 1."""
    lower = [2.0 ** (octave - 33) * (1 + n / 64) for octave in range(32) for n in range(64)]
    lower[0] = 0.0
    return torch.tensor(lower + [0.5] + [1 - edge for edge in reversed(lower)], dtype=torch.float64)


def cumulative_probs_reference(logits, scale, normalization, max_experts=0):
    """The probability before every expert but the most likely one, [tokens, experts - 1], in double
    precision."""
    s = logits.double()
    if normalization != "none":
        s = s - s.mean(-1, keepdim=True)
        s = s / (s.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    if normalization == "dynamic":
        s = s * scale.double()
    before = s.softmax(-1).sort(-1, descending=True).values.cumsum(-1)[:, :-1]
    return before[:, : max_experts - 1] if max_experts else before


@pytest.mark.parametrize("max_experts", [0, 3])
@pytest.mark.parametrize("normalization", ["none", "fixed", "dynamic"])
@pytest.mark.parametrize("tokens,experts", [(0, 4), (7, 1), (300, 5), (300, 64), (100, 200)])
def test_cumulative_prob_histogram_matches_reference(tokens, experts, normalization, max_experts):
    logits, scale = randn(tokens, experts, std=2.0), torch.tensor(1.3)
    counts = ops.cumulative_prob_histogram(logits, scale, normalization=normalization, max_experts=max_experts)
    cumulative_probs = cumulative_probs_reference(logits, scale, normalization, min(max_experts, experts)).flatten()
    assert counts.dtype == torch.int64 and counts.shape == (4096,) and counts.sum() == cumulative_probs.numel()
    # fp32 adds up to 200 probabilities, so a sum near an edge may lie on its other side.
    edges, near = cumulative_prob_edges().to(cumulative_probs.device)[1:], 2e-6
    below, sorted_probs = counts.cumsum(0), cumulative_probs.sort().values
    assert (below[:-1] >= torch.searchsorted(sorted_probs, edges - near)[:-1]).all()
    assert (below <= torch.searchsorted(sorted_probs, edges + near, right=True)).all()


@pytest.mark.parametrize("experts", [8, 64, 160])
@pytest.mark.parametrize("bin", [300, 1500, 2048, 2300, 2600])
def test_cumulative_prob_histogram_counts_who_route_would_choose(bin, experts):
    logits, scale = randn(500, experts, std=1.5), torch.tensor(2.0)
    threshold = cumulative_prob_edges()[bin].to(logits.device)
    chosen = ops.route(logits, scale, threshold)[1].sum()
    below = ops.cumulative_prob_histogram(logits, scale)[:bin].sum()
    assert abs(500 + below - chosen) <= 1  # one sum may round across the edge


def test_cumulative_prob_histogram_takes_every_stride_th_token():
    logits, scale = randn(100, 16), torch.tensor(1.0)
    assert torch.equal(ops.cumulative_prob_histogram(logits, scale, stride=4), ops.cumulative_prob_histogram(logits[::4], scale))


def test_cumulative_prob_histogram_orders_equal_experts_by_index():
    counts = ops.cumulative_prob_histogram(torch.zeros(3, 4), torch.tensor(1.0), normalization="none")
    bins = torch.searchsorted(cumulative_prob_edges(), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    assert counts.sum() == 9 and all(counts[b - 1 : b + 1].sum() == 3 for b in bins)


def test_cumulative_prob_histogram_leaves_out_tokens_that_are_not_finite():
    logits = randn(5, 8)
    logits[1, 2], logits[3] = float("nan"), float("inf")
    assert ops.cumulative_prob_histogram(logits, torch.tensor(1.0)).sum() == 3 * 7


def test_cumulative_prob_histogram_does_not_depend_on_the_number_of_threads():
    logits, scale = randn(3000, 16), torch.tensor(1.0)
    before = torch.get_num_threads()
    several = ops.cumulative_prob_histogram(logits, scale)
    try:
        torch.set_num_threads(1)
        assert torch.equal(ops.cumulative_prob_histogram(logits, scale), several)
    finally:
        torch.set_num_threads(before)
