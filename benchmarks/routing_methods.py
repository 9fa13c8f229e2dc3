"""Measures whether each routing method costs more than Top-k, and whether solving for the threshold costs more than the
paper's controller.

Compares whole training steps of each method and of Top-k at the same mean, 300 in turn (hidden 256, 4 layers, 64
experts of 128, 8 active, vocabulary 8,192, 4 x 512 tokens). relu keeps half of all experts active and is compared with
Top-k of 32. Prints one JSON line.

Each method trains in a process of its own, stopped while the others run; a step interrupted by a stop is left
out. Ratios compare medians of the same round, and the median over rounds counts.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import tempfile

from training_side import start_dtopp

CASE = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 128, "num_experts": 64, "active": 8,
        "vocab_size": 8192, "sequence_length": 512, "batch": 4}
METHODS = ("top_k", "top_k_of_half", "top_k_bias", "dtop_p", "solve", "dtop_p_bias", "relu", "expert_threshold")


def start(method, args, folder):
    active = {"active": CASE["num_experts"] // 2} if method in ("top_k_of_half", "relu") else {}
    return start_dtopp(CASE | active, method.removesuffix("_of_half"), args.precision, args.threads, folder / method)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="steps per method and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        sides = {method: running.enter_context(start(method, args, pathlib.Path(folder))) for method in args.methods}
        steps = {method: [] for method in sides}
        for _ in range(args.rounds):
            for method, side in sides.items():
                steps[method].append(side.steps(args.steps))
    tokens = CASE["batch"] * CASE["sequence_length"]
    seconds = {method: [statistics.median(tokens / step["throughput/tokens_per_second"] for step in taken) for taken in rounds]
               for method, rounds in steps.items()}
    steps = {method: [step for taken in rounds for step in taken] for method, rounds in steps.items()}

    def ratio(method, other):
        return round(statistics.median(a / b for a, b in zip(seconds[method], seconds[other])), 4)

    print(json.dumps({
        "case": "routing_methods", "precision": args.precision, "threads": args.threads,
        "steps": sum(map(len, steps.values())),
        "active_experts": {m: round(statistics.mean(s["moe/active_experts"] for s in taken), 3)
                           for m, taken in steps.items()},
        "seconds": {method: round(statistics.median(values), 4) for method, values in seconds.items()},
        "against_top_k": {method: ratio(method, other) for method in args.methods
                          if (other := "top_k_of_half" if method == "relu" else "top_k") in args.methods and method != other}}))


if __name__ == "__main__":
    main()
