#!/usr/bin/env python3
"""Prints the arguments of configs/studies/powered/text.yaml that the protocol derives from other studies: rates and the fixed p.

usage: powered_arguments.py RATES.json [FIXED_P.json]

The files are the ledgers of rates.yaml and fixed-p.yaml; without the second, the p is left out. PROTOCOL.md beside the studies states
the two rules, under "Arms"."""

import collections
import json
import math
import pathlib
import sys

TARGET = 4  # experts
SEEDS = 2  # of each rate
NEAR = 0.01  # nats: rates this close to the best count as equal, and the lowest is taken
METHOD_OF = {"dtop-p": "dtop-p", "top-p-matched": "dtop-p", "top-k": "top-k", "top-k-as-dtop-p": "top-k", "dense": "top-k"}


def choose_rates(rows):
    """The learning rate of each method from rows of a ledger."""
    losses = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        losses[row["variant"]][row["grid"]["optimizer.lr"]].append(row["values"].get("val/loss") or math.inf)
    whole = all(len(values) == SEEDS for by_rate in losses.values() for values in by_rate.values())
    if set(losses) != {"top-k", "dtop-p"} or not whole or set(losses["top-k"]) != set(losses["dtop-p"]):
        raise SystemExit("rates: a method, rate or seed is missing; finish the study first")
    rates = {}
    for method, by_rate in losses.items():
        means = {rate: sum(values) / len(values) for rate, values in by_rate.items()}
        rates[method] = min(rate for rate, mean in means.items() if mean <= min(means.values()) + NEAR)
    return rates


def choose_threshold(rows):
    """The p at which the experts, averaged over the run, are TARGET: linear in their logarithm between two values of p."""
    means = {}
    for row in rows:
        experts = row["curves"]["moe/active_experts"]["value"]
        means[row["grid"]["routing.threshold"]] = sum(experts) / len(experts)
    points = sorted(means.items())
    for (p, below), (next_p, above) in zip(points, points[1:]):
        if below <= TARGET <= above:
            share = math.log(TARGET / below) / math.log(above / below)
            return round(p + share * (next_p - p), 3)
    raise SystemExit(f"fixed p: {TARGET} experts lie outside those of all p: {means}")


def arguments_of(rates, threshold=None):
    lines = []
    for variant, method in METHOD_OF.items():
        lines.append(f"variants.{variant}.optimizer.lr={rates[method]:g}")
        lines.append(f"variants.{variant}.optimizer.min_lr={rates[method] / 100:g}")
    return lines if threshold is None else [*lines, f"variants.top-p-matched.routing.threshold={threshold:g}"]


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__.split("\n\n")[1])
    rates, *fixed = (json.loads(pathlib.Path(path).read_text())["runs"] for path in sys.argv[1:])
    print("\n".join(arguments_of(choose_rates(rates), *map(choose_threshold, fixed))))


if __name__ == "__main__":
    main()
