"""The yardstick g of every benchmark here, and the way cases are timed: alternately with it, median of rounds."""

import argparse
import json
import os
import statistics
import time

import torch

YARDSTICK_FLOPS = 20 * 2 * 4096 * 768 * 768


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the case's tokens, for a quick look")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.ops.load_library(os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so")))
    return args


def make_yardstick(dtype):
    """20 products of 4096 x 768 x 768. A CPU without bf16 multiply instructions is measured in fp32 as well."""
    a, b = torch.randn(4096, 768).to(dtype), torch.randn(768, 768).to(dtype)

    def run():
        for _ in range(20):
            torch.mm(a, b)

    return run


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def alternate(runs, rounds):
    """Median seconds of each named run, taken in turns after one unmeasured round."""
    times = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            elapsed = seconds(run)
            if turn:
                times[name].append(elapsed)
    return {name: statistics.median(t) for name, t in times.items()}


def report(**values):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}), flush=True)
