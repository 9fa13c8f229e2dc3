"""A table of finished runs, from their metrics.jsonl. Usage: compare_runs.py RUN_DIRECTORY…

Active experts: mean over the last half of training, and the mean of the standard deviation over tokens there. Tokens/s is the
median step's.
"""

import json
import pathlib
import statistics
import sys

HEADER = ("| run | held-out loss | active experts, mean | deviation over tokens | p at the end | tokens/s |\n"
          "|---|---|---|---|---|---|")


def row(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    validation = [line for line in lines if "val/loss" in line][-1]
    half = steps[len(steps) // 2:]

    def mean(name, digits):
        return f"{statistics.mean(line[name] for line in half):.{digits}f}" if name in half[0] else "–"

    layers = sorted(name for name in steps[-1] if name.endswith("/threshold") and "layer" in name)
    thresholds = [steps[-1][name] for name in layers]
    p = "–"
    if thresholds:
        low, high = min(thresholds), max(thresholds)
        p = f"{low:.3f}" if high - low < 1e-9 else f"{low:.3f} to {high:.3f}"
    rate = statistics.median(line["throughput/tokens_per_second"] for line in steps)
    return (f"| {directory.name} | {validation['val/loss']:.4f} | {mean('moe/active_experts', 3)} | "
            f"{mean('moe/active_experts_std', 2)} | {p} | {rate:,.0f} |")


print(HEADER)
for name in sys.argv[1:]:
    print(row(pathlib.Path(name)))
