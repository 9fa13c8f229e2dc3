"""Distances between sets of pictures, from their features [N, D]: KID, Fréchet distance, precision and
recall, and a linear probe. All computations use float64 and no random numbers."""

from functools import cached_property

import numpy as np
import torch

BLOCK = 1000  # rows of a kernel or distance matrix in memory at once


def blocks(count):
    return (slice(begin, begin + BLOCK) for begin in range(0, count, BLOCK))


def cubic_kernel(x, y):
    """(x·y / D + 1)³ for every pair, [N, M]."""
    root = x @ y.T / x.shape[1] + 1
    return root * root * root


def kernel_sums_within(x):
    """Per row, the sum of its kernel with all other rows, [N]."""
    sums = np.concatenate([cubic_kernel(x[rows], x).sum(1) for rows in blocks(len(x))])
    root = (x * x).sum(1) / x.shape[1] + 1
    return sums - root**3


def jackknife_variance(values):
    """The jackknife variance of an estimate, from its values with one observation left out."""
    return (len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum()


def kid(samples, reference, within_reference=None):
    """Returns the unbiased estimate of the squared maximum mean discrepancy, and its standard error by the
    jackknife over both sets.

    Binkowski et al. 2018, computed from all pairs instead of random subsets. `within_reference` takes the
    reference's kernel_sums_within if they are already known.
    """
    n, m = len(samples), len(reference)
    within = kernel_sums_within(samples)
    within_reference = kernel_sums_within(reference) if within_reference is None else within_reference
    across, across_reference = np.empty(n), np.zeros(m)
    for rows in blocks(n):
        kernel = cubic_kernel(samples[rows], reference)
        across[rows] = kernel.sum(1)
        across_reference += kernel.sum(0)
    own, other, both = within.sum(), within_reference.sum(), across.sum()

    def estimate(own, n, other, m, both):
        return own / (n * (n - 1)) + other / (m * (m - 1)) - 2 * both / (n * m)

    left_out = jackknife_variance(estimate(own - 2 * within, n - 1, other, m, both - across))
    left_out += jackknife_variance(estimate(own, n, other - 2 * within_reference, m - 1, both - across_reference))
    return float(estimate(own, n, other, m, both)), float(np.sqrt(left_out))


class Gaussian:
    """mean [D], covariance [D, D]."""

    def __init__(self, mean, covariance):
        self.mean, self.covariance = mean, covariance

    @classmethod
    def of(cls, x):
        return cls(x.mean(0), np.cov(x, rowvar=False))

    @cached_property
    def root(self):
        """A matrix with root rootᵀ equal to the covariance, up to rounding."""
        values, vectors = np.linalg.eigh(self.covariance)
        return vectors * np.sqrt(np.maximum(values, 0))


def frechet_distance(first, second):
    """|μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½): the squared 2-Wasserstein distance of two Gaussians."""
    eigenvalues = np.linalg.eigvalsh(first.root.T @ second.covariance @ first.root)  # the eigenvalues of Σ₁ Σ₂
    trace = np.trace(first.covariance + second.covariance) - 2 * np.sqrt(np.maximum(eigenvalues, 0)).sum()
    return float(((first.mean - second.mean) ** 2).sum() + trace)


def squared_distances(x, y):
    return np.maximum((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.T), 0)


def squared_radii(x, neighbours):
    """Per row, the squared distance to its k-th nearest other row."""
    radii = np.empty(len(x))
    for rows in blocks(len(x)):
        distances = squared_distances(x[rows], x)
        np.fill_diagonal(distances[:, rows], np.inf)
        radii[rows] = np.partition(distances, neighbours - 1, axis=1)[:, neighbours - 1]
    return radii


def precision_recall(samples, reference, neighbours=3):
    """Returns the share of samples within the k-th nearest neighbour's distance of some reference, and the
    reverse.

    Kynkäänniemi et al. 2019. Both depend on the sizes of the sets, which should be equal.
    """
    radii, reference_radii = squared_radii(samples, neighbours), squared_radii(reference, neighbours)
    precise, recalled = np.empty(len(samples), bool), np.zeros(len(reference), bool)
    for rows in blocks(len(samples)):
        distances = squared_distances(samples[rows], reference)
        precise[rows] = (distances <= reference_radii).any(1)
        recalled |= (distances <= radii[rows, None]).any(0)
    return float(precise.mean()), float(recalled.mean())


class LinearProbe:
    """Logistic regression on standardised features: the minimum of the mean cross entropy + decay / 2 |W|²."""

    def __init__(self, features, labels, classes, decay=0.01):
        self.mean, deviation = features.mean(0), features.std(0)
        self.deviation = np.where(deviation > 0, deviation, 1)
        x, y = torch.from_numpy(self.standardised(features)), torch.from_numpy(labels)
        self.weight = torch.zeros(features.shape[1], classes, dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([self.weight, self.bias], max_iter=500, tolerance_grad=1e-6,
                                      tolerance_change=0, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(x @ self.weight + self.bias, y)
            loss = loss + decay / 2 * (self.weight**2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def standardised(self, features):
        return (features - self.mean) / self.deviation

    def accuracy(self, features, labels):
        scores = self.standardised(features) @ self.weight.detach().numpy() + self.bias.detach().numpy()
        return float((scores.argmax(1) == labels).mean())
