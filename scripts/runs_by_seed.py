"""Finished runs by configuration and seed, and means over seeds with their 95 % confidence intervals."""

import math
import re
import statistics

from scipy import stats


def half_width(values):
    """Half the 95 % confidence interval of the mean of independent values, two or more."""
    return stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def with_interval(values, digits):
    if values[0] is None:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):.{digits}f}"


def read_configuration(directory):
    """(training.seed, the lines of config.yaml but seed and output)."""
    config = (directory / "config.yaml").read_text().splitlines()
    seed = next(int(line.split(":")[1]) for line in config if line.startswith("  seed:"))
    return seed, tuple(line for line in config if not line.startswith(("  seed:", "output:")))


def group_by_configuration(runs):
    """The runs (name, seed, configuration) of each configuration, by seed; configurations in the order of their first run."""
    groups = {}
    for run in runs:
        other = groups.setdefault(run.configuration, {}).setdefault(run.seed, run)
        if other is not run:
            raise ValueError(f"{other.name} and {run.name} are of one configuration and seed")
    return list(groups.values())


def name_of(group):
    first = next(iter(group.values()))
    return first.name if len(group) == 1 else re.sub(r"-seed\d+$", "", first.name)


def is_top_k(group):
    lines = next(iter(group.values())).configuration
    return "  method: top_k" in lines and "  num_experts: 1" not in lines
