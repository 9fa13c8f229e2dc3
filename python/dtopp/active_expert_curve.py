"""The number of experts that tokens would select at every threshold in a step, from the counts of
dtopp.functional.cumulative_prob_histogram. Within a bin, probabilities are taken as evenly spread. C: controllers, M:
bins.
"""

import torch
from torch import Tensor

MIN_THRESHOLD, MAX_THRESHOLD = 1e-6, 1.0 - 1e-6


def bin_edges(device: torch.device) -> Tensor:
    """Edges of the bins, f64 [M + 1]: 32 octaves of 64 bins towards 0, and the same mirrored towards 1."""
    octave = 2.0 ** torch.arange(-33, -1, dtype=torch.float64, device=device)
    step = torch.arange(64, dtype=torch.float64, device=device) / 64
    lower = (octave[:, None] * (1 + step)).flatten()
    lower[0] = 0.0
    return torch.cat([lower, lower.new_full((1,), 0.5), 1 - lower.flip(0)])


class ActiveExpertCurve:
    """The curve a(p) of a step, shifted so that at the step's threshold it equals the number that was
    counted.

    Args:
        masses_CM: f64 [C, M].
        threshold_C, active_C: p of the step, and the mean number of experts its tokens selected.
        tokens_C: the number of tokens in the histogram.
    """

    def __init__(self, prob_histogram_CM: Tensor, threshold_C: Tensor, active_C: Tensor, tokens_C: Tensor) -> None:
        self._edges = bin_edges(prob_histogram_CM.device)
        self._prob_histogram_CM, self._up_to_CM = prob_histogram_CM, prob_histogram_CM.cumsum(1)
        self._active_C, self._tokens_C = active_C, tokens_C
        self._below_C = self._below(threshold_C)

    def threshold(self, experts_C: Tensor) -> Tensor:
        """p at which a token has this many experts, within [MIN_THRESHOLD, MAX_THRESHOLD]."""
        return self._at_count(self._below_C + (experts_C - self._active_C) * self._tokens_C)

    def _below(self, p_C: Tensor) -> Tensor:
        bin_C = (torch.searchsorted(self._edges, p_C, right=True) - 1).clamp(0, self._prob_histogram_CM.shape[1] - 1)
        begin_C, end_C = self._edges[bin_C], self._edges[bin_C + 1]
        return _at(self._up_to_CM, bin_C) - _at(self._prob_histogram_CM, bin_C) * ((end_C - p_C) / (end_C - begin_C))

    def _at_count(self, count_C: Tensor) -> Tensor:
        bin_C = torch.searchsorted(self._up_to_CM, count_C[:, None])[:, 0]
        bin_C = bin_C.clamp(0, self._prob_histogram_CM.shape[1] - 1)
        begin_C, end_C = self._edges[bin_C], self._edges[bin_C + 1]
        beyond_C = (_at(self._up_to_CM, bin_C) - count_C) / _at(self._prob_histogram_CM, bin_C)
        p_C = (end_C - (end_C - begin_C) * beyond_C).clamp(MIN_THRESHOLD, MAX_THRESHOLD)
        p_C = torch.where(count_C <= 0, MIN_THRESHOLD, p_C)
        return torch.where(count_C >= self._up_to_CM[:, -1], MAX_THRESHOLD, p_C)


def _at(values_CM: Tensor, place_C: Tensor) -> Tensor:
    return values_CM.gather(1, place_C[:, None])[:, 0]
