"""Writes statistics_golden.json: intervals and paired t tests from scipy, and Holm's p-values from their
definition."""

import json
import pathlib

import numpy as np
from scipy import stats


def interval(values):
    return {"mean": float(np.mean(values)), "half_width": float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))}


def difference(values, baseline):
    return interval(values - baseline) | {"p": float(stats.ttest_rel(values, baseline).pvalue)}


def holm(p):
    """Holm's p-value: the largest of m·p_(1), (m − 1)·p_(2), … up to p's own rank, at most 1."""
    ordered = sorted(p)
    return [min(1, max((len(p) - i) * ordered[i] for i in range(len(p)) if ordered[i] <= own)) for own in p]


random = np.random.default_rng(20261123)
cases = []
for n in (2, 3, 4, 5, 10, 100):
    for scale in (1e-6, 1, 1e6):
        baseline = 3 + scale * random.standard_normal(n)
        values = baseline + scale * (0.5 + random.standard_normal(n) * random.choice([0.01, 1]))
        cases.append({"values": values.tolist(), "baseline": baseline.tolist(), "interval": interval(values),
                      "difference": difference(values, baseline)})
p_values = [random.random(m) ** 3 for m in (1, 2, 5, 20)] + [np.array([0.01, 0.01, 0.04, 0.04]), np.zeros(3)]
golden = {"cases": cases, "holm": [{"p": p.tolist(), "adjusted": [float(x) for x in holm(p)]} for p in p_values]}
path = pathlib.Path(__file__).with_name("statistics_golden.json")
path.write_text(json.dumps(golden) + "\n")
