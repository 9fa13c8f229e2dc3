"""A table of finished runs, from their metrics.jsonl. Usage: compare_runs.py RUN_DIRECTORY…

Training loss: the cross entropy, mean over the last tenth of training. Active experts: mean over its last half, and the mean
of the standard deviation over tokens there. Tokens/s is the median step's.

Runs whose config.yaml differs in training.seed (and output) alone are one row: means, for losses and active experts
with the half-width of the mean's 95 % confidence interval. Where top-k has several seeds too, a second table has the
differences of held-out loss from it: each run less top-k's of the same seed, so that what a seed does to both drops out.
"""

import json
import math
import pathlib
import re
import statistics
import sys
from dataclasses import dataclass

HEADER = ("| run | held-out loss | training loss | active experts, mean | deviation over tokens | p at the end | tokens/s |\n"
          "|---|---|---|---|---|---|---|")
DIFFERENCES = ("| run | held-out loss less top-k's | seeds |\n"
               "|---|---|---|")
# Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom.
T_95 = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281]


def student_t_95(degrees):
    if degrees <= len(T_95):
        return T_95[degrees - 1]
    # Its expansion in 1 / degrees around the normal distribution's quantile (Abramowitz and Stegun 26.7.5), here good to 2e-4.
    z = statistics.NormalDist().inv_cdf(0.975)
    return (z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3))


def half_width(values):
    """Of the 95 % confidence interval of the mean of independent values, two or more."""
    return student_t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


@dataclass
class Run:
    name: str
    seed: int
    configuration: tuple  # the lines of config.yaml, but seed and output
    loss: float
    training_loss: float
    active: float | None
    deviation: float | None
    thresholds: list  # p of every layer that has one of its own, at the end
    rate: float


def read_configuration(directory):
    """(training.seed, the lines of config.yaml but seed and output)."""
    config = (directory / "config.yaml").read_text().splitlines()
    seed = next(int(line.split(":")[1]) for line in config if line.startswith("  seed:"))
    return seed, tuple(line for line in config if not line.startswith(("  seed:", "output:")))


def read_run(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    validation = [line for line in lines if "val/loss" in line][-1]
    half = steps[len(steps) // 2:]
    tenth = steps[-max(1, len(steps) // 10):]

    def mean(name):
        return statistics.mean(line[name] for line in half) if name in half[0] else None

    seed, same = read_configuration(directory)
    thresholds = [steps[-1][name] for name in sorted(steps[-1]) if name.endswith("/threshold") and "layer" in name]
    return Run(directory.name, seed, same, validation["val/loss"],
               statistics.mean(line["train/lm_loss"] for line in tenth), mean("moe/active_experts"),
               mean("moe/active_experts_std"), thresholds,
               statistics.median(line["throughput/tokens_per_second"] for line in steps))


def group_by_configuration(runs):
    """The runs of each configuration, by seed; configurations in the order of their first run."""
    groups = {}
    for run in runs:
        other = groups.setdefault(run.configuration, {}).setdefault(run.seed, run)
        if other is not run:
            sys.exit(f"compare_runs: {other.name} and {run.name} are of one configuration and seed")
    return list(groups.values())


def name_of(group):
    first = next(iter(group.values()))
    return first.name if len(group) == 1 else re.sub(r"-seed\d+$", "", first.name)


def with_interval(values, digits):
    if values[0] is None:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):.{digits}f}"


def row(group):
    runs = list(group.values())
    seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
    deviation = "–" if runs[0].deviation is None else f"{statistics.mean(run.deviation for run in runs):.2f}"
    p = "–"
    if thresholds := [p for run in runs for p in run.thresholds]:
        low, high = min(thresholds), max(thresholds)
        p = f"{low:.3f}" if high - low < 1e-9 else f"{low:.3f} to {high:.3f}"
    return (f"| {name_of(group)}{seeds} | {with_interval([run.loss for run in runs], 4)} | "
            f"{with_interval([run.training_loss for run in runs], 4)} | "
            f"{with_interval([run.active for run in runs], 3)} | {deviation} | {p} | "
            f"{statistics.median(run.rate for run in runs):,.0f} |")


def is_top_k(group):
    lines = next(iter(group.values())).configuration
    return "  method: top_k" in lines and "  num_experts: 1" not in lines


def difference_rows(groups):
    """One for each group that shares two seeds or more with top-k."""
    reference = next((group for group in groups if is_top_k(group)), {})
    rows = []
    for group in groups:
        seeds = sorted(set(group) & set(reference))
        if group is reference or len(seeds) < 2:
            continue
        differences = [group[seed].loss - reference[seed].loss for seed in seeds]
        rows.append(f"| {name_of(group)} | {statistics.mean(differences):+.4f} ± {half_width(differences):.4f} | "
                    f"{', '.join(map(str, seeds))} |")
    return rows


def main():
    groups = group_by_configuration([read_run(pathlib.Path(name)) for name in sys.argv[1:]])
    print(HEADER)
    for group in groups:
        print(row(group))
    if rows := difference_rows(groups):
        print("\n" + DIFFERENCES, *rows, sep="\n")


if __name__ == "__main__":
    main()
