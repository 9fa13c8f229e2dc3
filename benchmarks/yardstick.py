"""The yardstick g of every benchmark here, the timing of cases (alternately with g, median over rounds), and random gates."""

import argparse
import ctypes.util
import json
import os
import statistics
import sys
import time

import torch

YARDSTICK_FLOPS = 20 * 2 * 4096 * 768 * 768


def use_the_programs_allocator():
    """Restarts this program with the allocator that dtopp links, configured as in cli/main.cpp. Fresh memory
    for every result, which no training step needs, costs a tenth of moe_ffn. All compared code runs with this
    allocator."""
    jemalloc = ctypes.util.find_library("jemalloc")
    if jemalloc is None or "LD_PRELOAD" in os.environ:
        return
    os.environ |= {"LD_PRELOAD": jemalloc,
                   "MALLOC_CONF": "oversize_threshold:0,lg_extent_max_active_fit:30,dirty_decay_ms:-1,"
                                  "muzzy_decay_ms:-1,narenas:1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--glibc", action="store_true", help="keep the C library's allocator")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the case's tokens, for a quick look")
    args = parser.parse_args()
    if not args.glibc:
        use_the_programs_allocator()
    torch.set_num_threads(args.threads)
    torch.ops.load_library(os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so")))
    return args


def make_yardstick(dtype):
    """20 products of 4096 x 768 x 768. A CPU without bf16 multiply instructions is also measured in fp32."""
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
    """Median seconds of each named run. Runs take turns, after one unmeasured round."""
    times = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            elapsed = seconds(run)
            if turn:
                times[name].append(elapsed)
    return {name: statistics.median(t) for name, t in times.items()}


def random_gates(tokens, experts, active, varying):
    """Random sets of experts: sizes around `active` with a standard deviation of 1.5 (like DTop-p's) and a mean of exactly
    `active`, or `active` for every token."""
    sizes = torch.full((tokens,), active)
    if varying:
        sizes = (active + 1.5 * torch.randn(tokens)).round().clamp(1, experts).long()
        while (excess := int(sizes.sum()) - active * tokens) != 0:
            pick = torch.randint(tokens, (abs(excess),)).unique()
            sizes[pick] = (sizes[pick] - (1 if excess > 0 else -1)).clamp(1, experts)
    rank = torch.rand(tokens, experts).argsort(-1).argsort(-1)
    gates = (rank < sizes[:, None]) * torch.rand(tokens, experts).add(0.1)
    return gates / gates.sum(-1, keepdim=True)


def report(**values):
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}), flush=True)
