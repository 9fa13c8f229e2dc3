#!/usr/bin/env python3
"""Compares two diffusion transformers by the dumps of `dtopp evaluate images --dump`.

Both models evaluated the same images with the same noise at the same t, so images are compared one by one.
The result is the difference of the mean losses, second minus first, with a 95 % interval from a paired
bootstrap over images; also for each tenth of the images by t.

Usage: compare_dumps.py FIRST.safetensors SECOND.safetensors [--samples 10000] [--seed 0] [--json]
"""

import argparse
import json
import sys

import numpy as np
from safetensors import safe_open

PIECE = 256  # images per read
BUCKETS = 10


def fail(message):
    print(f"compare_dumps: {message}", file=sys.stderr)
    sys.exit(2)


def losses(paths):
    """Returns the mean squared errors f64 [2, N] and t [N]. Reads both files in parallel."""
    first, second = files = [safe_open(path, "np") for path in paths]
    if first.metadata().get("objective") != second.metadata().get("objective"):
        fail("the dumps have different objectives; compare models with the same diffusion.objective")
    shapes = [file.get_slice("x0").get_shape() for file in files]
    if shapes[0] != shapes[1]:
        fail(f"the dumps are of images {shapes[0]} and {shapes[1]}")
    t, other_t = (file.get_tensor("t") for file in files)
    if not np.array_equal(t, other_t):
        fail("the dumps differ in t; evaluate both models on the same images, with runs of the same training.seed")
    flow = first.metadata().get("objective") == "flow"
    out = np.empty((2, len(t)))
    for begin in range(0, len(t), PIECE):
        piece = slice(begin, min(begin + PIECE, len(t)))
        x0, noise = (first.get_slice(name)[piece] for name in ("x0", "noise"))
        for name, own in (("x0", x0), ("noise", noise)):
            if not np.array_equal(second.get_slice(name)[piece], own):
                fail(f"the dumps differ in {name}; evaluate both models on the same images, with runs of the same training.seed")
        target = noise - x0 if flow else noise
        for i, file in enumerate(files):
            error = file.get_slice("prediction")[piece].astype(np.float64) - target
            out[i, piece] = (error**2).mean((1, 2, 3))
    return out, t


def bootstrap(values, samples, rng):
    """The mean, and the ends of the middle 95 % of the means of resampled values."""
    counts = (rng.multinomial(len(values), np.full(len(values), 1 / len(values))) for _ in range(samples))
    means = np.array([count @ values for count in counts]) / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"difference": float(values.mean()), "low": float(low), "high": float(high)}


def compare(dumps, samples=10000, seed=0):
    """Returns the output of --json for two files."""
    try:
        (first, second), t = losses(dumps)
    except Exception as error:  # a missing file, or not a dump
        fail(error)
    rng = np.random.default_rng(seed)
    difference = second - first
    result = {"images": len(t), "first": float(first.mean()), "second": float(second.mean())}
    result |= bootstrap(difference, samples, rng)
    parts = [part for part in np.array_split(np.argsort(t, kind="stable"), BUCKETS) if len(part)]
    result["by_t"] = [{"from": float(t[part].min()), "to": float(t[part].max())}
                      | bootstrap(difference[part], samples, rng) for part in parts]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs=2)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = compare(options.dumps, options.samples, options.seed)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['images']} images, loss {result['first']:.6f} and {result['second']:.6f}")
    print(f"difference {result['difference']:+.6f}, 95 % from {result['low']:+.6f} to {result['high']:+.6f}")
    for part in result["by_t"]:
        print(f"t {part['from']:.3f} to {part['to']:.3f}: {part['difference']:+.6f} ({part['low']:+.6f} to "
              f"{part['high']:+.6f})")


if __name__ == "__main__":
    main()
