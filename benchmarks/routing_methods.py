"""Measures whether each routing method costs more than Top-k, and whether solving for the threshold costs more than the
paper's controller. With --imbalance, it measures how much slower a step becomes as the load of the experts becomes
uneven.

Compares whole training steps of each method and of Top-k, in turn: seconds per step, seconds per active FLOP, because tokens
do not select exactly 8 experts, and on a CPU processor seconds per active FLOP, which other work disturbs less. Each ratio
has its standard error over the rounds. relu starts from a checkpoint at which tokens select about 8 experts. On a CPU: hidden 256, 4 layers, 64 experts of 128, 8 active,
vocabulary 8,192, 4 x 512 tokens. On a CUDA device: hidden 1,024, 8 layers, 64 experts of 512, 8 x 1,024 tokens; a method
needs 18 GB of its memory.

--imbalance: the router is hash, whose choice depends on the token only, so each token has exactly 8 experts. A share of
the tokens is the same one, so its experts have more tokens than the others. With --ranks N, N ranks have one expert each
(parallel.expert_parallel) and a token selects one, so the imbalance of experts is that of ranks; each round trains --steps steps
per share in runs of their own, on N times --threads cores that nothing else may use.

Each method trains in a process of its own, stopped while the others run; a step interrupted by a stop is left
out. Ratios compare medians of the same round, and the median over rounds counts. Prints one JSON line.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from training_side import BINARY, language_run, start_dtopp, start_run, without_pauses

CASE = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 128, "num_experts": 64, "active": 8,
        "vocab_size": 8192, "sequence_length": 512, "batch": 4}
CUDA_CASE = CASE | {"hidden_size": 1024, "num_layers": 8, "num_heads": 16, "ffn_hidden_size": 512, "sequence_length": 1024,
                    "batch": 8}
QUICK_CASE = CASE | {"hidden_size": 32, "num_layers": 2, "ffn_hidden_size": 16, "num_experts": 16, "vocab_size": 256, "sequence_length": 64}
METHODS = ("top_k", "top_k_bias", "dtop_p", "solve", "dtop_p_bias", "relu", "expert_threshold", "hash")
SHARES = (0.0, 0.2, 0.5, 1.0)  # of equal tokens
RANK_SHARES = (0.0, 0.03, 0.06, 0.1, 0.2, 0.4)
SLOWER = 1.05
WARM = 2  # steps


def start_relu(case, precision, threads, folder, device):
    """Starts relu at a checkpoint at which tokens select about the target's number of experts. From there neither λ nor the
    parameters change, so the number stays."""
    config = language_run(case, "relu", precision, threads, folder, device=device)
    falling = folder / "falling"
    falling.mkdir()
    with start_run(config, falling) as side:
        while side.steps(1)[-1]["moe/active_experts"] > 1.1 * case["active"]:
            pass
        steps = len(side.read())
    first = folder / "first"
    first.mkdir()
    subprocess.run([BINARY, "train", without_pauses(config, first), f"training.steps={steps}"], check=True, capture_output=True)
    config["training"]["initialize_from"] = str(first / "run")
    config["optimizer"] |= {"lr": 1e-12, "min_lr": 1e-12}
    config["routing"]["lambda_0"] = 1e-12
    return start_run(config, folder)


def measure(sides, rounds, count):
    """The metrics of each side's steps, and its processor seconds per step, per round. Every other round goes backwards, so that
    no side always follows the same one."""
    steps = {name: [] for name in sides}
    cpu = {name: [] for name in sides}
    order = list(sides.items())
    for _ in range(rounds):
        order.reverse()
        for name, side in order:
            before, done = side.cpu_seconds(), len(side.read())
            steps[name].append(side.steps(count))
            cpu[name].append((side.cpu_seconds() - before) / (len(side.read()) - done))
    return steps, cpu


def over_rounds(values, others):
    """[the median over rounds of the ratio, its standard error]"""
    ratios = [a / b for a, b in zip(values, others)]
    error = round(statistics.stdev(ratios) / len(ratios) ** 0.5, 4) if len(ratios) > 1 else None
    return [round(statistics.median(ratios), 4), error]


def ratio(steps, name, other, cost):
    """The cost of a step against another side's."""
    return over_rounds(*([statistics.median(map(cost, taken)) for taken in steps[side]] for side in (name, other)))


def cpu_ratio(steps, cpu, name, other):
    """The processor seconds per active FLOP of a step against another side's."""
    flops = {side: statistics.mean(step["throughput/tflops"] / step["throughput/tokens_per_second"] for taken in steps[side] for step in taken)
             for side in (name, other)}
    return over_rounds(*([seconds / flops[side] for seconds in cpu[side]] for side in (name, other)))


def measure_ranks(case, shares, folder, args):
    """The metrics of runs of several ranks, per share and round. The first steps of a run warm up."""
    case = case | {"num_experts": args.ranks, "active": 1, "ffn_hidden_size": 8 * case["ffn_hidden_size"], "batch": 4 * args.ranks,
                   "micro_batch": 4}
    paths = {}
    for share in shares:
        place = folder / str(share)
        paths[share] = place, without_pauses(language_run(case, "hash", args.precision, args.threads, place, share), place)
    steps = {share: [] for share in shares}
    for _ in range(args.rounds):
        for share, (place, path) in paths.items():
            shutil.rmtree(place / "run", ignore_errors=True)
            subprocess.run([BINARY, "train", path, f"training.steps={args.steps + WARM}", f"parallel.expert_parallel={args.ranks}",
                            "--processes", str(args.ranks)], check=True, capture_output=True)
            lines = (place / "run/metrics.jsonl").read_text().splitlines()
            steps[share].append([json.loads(line) for line in lines[WARM:]])
    return steps


def mean(steps, key):
    return round(statistics.mean(step[key] for taken in steps for step in taken), 3)


def seconds_per_token(step):
    return 1 / step["throughput/tokens_per_second"]


def per_flop(step):
    return 1 / step["throughput/tflops"]


def methods_report(steps, cpu, tokens):
    others = [name for name in steps if name != "top_k"]
    return {"active_experts": {name: mean(taken, "moe/active_experts") for name, taken in steps.items()},
            "imbalance": {name: mean(taken, "moe/imbalance") for name, taken in steps.items()},
            "seconds": {name: round(tokens * statistics.median(seconds_per_token(s) for r in taken for s in r), 4) for name, taken in steps.items()},
            "against_top_k": {name: ratio(steps, name, "top_k", seconds_per_token) for name in others},
            "per_active_flop_against_top_k": {name: ratio(steps, name, "top_k", per_flop) for name in others},
            "cpu_seconds": {name: round(statistics.median(taken), 3) for name, taken in cpu.items()},
            "cpu_per_active_flop_against_top_k": {name: cpu_ratio(steps, cpu, name, "top_k") for name in others}}


def imbalance_report(steps):
    imbalance = [mean(taken, "moe/imbalance") for taken in steps.values()]
    ratios = [ratio(steps, name, 0.0, seconds_per_token) for name in steps]
    slower = [value for value, _ in ratios]
    rising = np.maximum.accumulate(slower)
    return {"active_experts": [mean(taken, "moe/active_experts") for taken in steps.values()], "imbalance": imbalance,
            "against_balanced": ratios,
            "imbalance_that_costs_5_percent": round(float(np.interp(SLOWER, rising, imbalance)), 2) if rising[-1] >= SLOWER else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imbalance", action="store_true")
    parser.add_argument("--ranks", type=int, default=1, help="of --imbalance")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="steps per method and round")
    parser.add_argument("--quick", action="store_true", help="a small model: does the benchmark run?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    args = parser.parse_args()
    case = QUICK_CASE if args.quick else CUDA_CASE if args.device == "cuda" else CASE
    if args.ranks > 1 and not args.imbalance:
        parser.error("--ranks needs --imbalance")
    names = SHARES if args.imbalance else list(dict.fromkeys(["top_k", *args.methods]))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        def start(name):
            if name == "relu":
                return running.enter_context(start_relu(case, args.precision, args.threads, pathlib.Path(folder) / name, args.device))
            method, equal = ("hash", name) if args.imbalance else (name, 0.0)
            return running.enter_context(start_dtopp(case, method, args.precision, args.threads,
                                                     pathlib.Path(folder) / str(name), equal, args.device))

        if args.ranks > 1:
            steps = measure_ranks(case, RANK_SHARES, pathlib.Path(folder), args)
        else:
            # A start takes seconds. The first one on a CUDA device may time kernels, so it has the device for itself.
            sides = {names[0]: start(names[0])}
            with ThreadPoolExecutor() as starting:
                sides |= zip(names[1:], starting.map(start, names[1:]))
            steps, cpu = measure(sides, args.rounds, args.steps)
        report = imbalance_report(steps) if args.imbalance else methods_report(steps, cpu, case["batch"] * case["sequence_length"])
    print(json.dumps({"case": "imbalance" if args.imbalance else "routing_methods", "device": args.device, "ranks": args.ranks,
                      "precision": args.precision, "threads": args.threads,
                      "steps": sum(len(taken) for rounds in steps.values() for taken in rounds)} | report))


if __name__ == "__main__":
    main()
