"""Measures how a training step's time and memory grow, compared with `dtopp plan` for the same configuration:
over tokens, experts, active experts, hidden size and sequence length, around hidden 256, 4 layers, 32 experts
of 128, 4 active, vocabulary 8,192, 4 x 512 tokens. Five configurations of other kinds follow. Each trains
alone, in its own process.

Prints one JSON line per configuration: the median step, the rate in GFLOP/s of plan's FLOPs, its ratio to the
rate of the central configuration (1: time is proportional to FLOPs), the measured peak and plan's.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from training_side import BINARY, start_dtopp

CENTRE = {"hidden_size": 256, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 128, "num_experts": 32, "active": 4,
          "vocab_size": 8192, "sequence_length": 512, "batch": 4}
GROWTH = {
    "tokens": [{"batch": n} for n in (1, 2, 8, 16)],
    "experts": [{"num_experts": n} for n in (8, 16, 64, 128)],
    "active experts": [{"active": n} for n in (1, 2, 8, 16)],
    "hidden size": [{"hidden_size": n, "ffn_hidden_size": n // 2} for n in (128, 512, 1024)],
    "sequence length": [{"sequence_length": n, "batch": 4096 // n} for n in (256, 512, 1024, 2048, 4096)],
}
KINDS = {
    "dense": {"method": "dense", "ffn_hidden_size": 512, "num_layers": 8, "batch": 16},
    "top_k, large vocabulary": {"method": "top_k", "vocab_size": 50432},
    "bf16": {"precision": "bf16", "num_layers": 8, "batch": 16, "sequence_length": 1024},
    "micro-batches": {"micro_batch": 4, "batch": 16, "num_experts": 64, "active": 8},
    "benchmark's": {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "ffn_hidden_size": 256, "num_experts": 64,
                    "active": 8, "vocab_size": 50432, "sequence_length": 1024},
}


def plan(folder):
    done = subprocess.run([BINARY, "plan", folder / "run.yaml", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(what, change, args):
    case = CENTRE | change
    method, precision = case.pop("method", "dtop_p"), case.pop("precision", args.precision)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "run"
        with start_dtopp(case, method, precision, args.threads, folder) as side:
            steps = side.steps(args.steps)
            peak = side.peak_bytes()
        planned = plan(folder)
    tokens = case["batch"] * case["sequence_length"]
    seconds = statistics.median(tokens / step["throughput/tokens_per_second"] for step in steps)
    return {"case": "training_cost", "grows": what, "changed": change, "threads": args.threads, "precision": precision,
            "active_experts": round(statistics.mean(s.get("moe/active_experts", 0) for s in steps), 2),
            "seconds": round(seconds, 4), "gflops": round(planned["flops_per_token"] * tokens / seconds / 1e9, 1),
            "peak_bytes": peak, "planned_bytes": planned["memory_bytes"]["total"],
            "peak_against_plan": round(peak / planned["memory_bytes"]["total"], 3), "planned": planned["memory_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kinds-only", action="store_true", help="measure only the five configurations of other kinds")
    args = parser.parse_args()
    if not args.kinds_only:
        centre = measure("centre", {}, args)
        print(json.dumps(centre), flush=True)
        for what, changes in GROWTH.items():
            for change in changes:
                result = measure(what, change, args)
                result["rate_against_centre"] = round(result["gflops"] / centre["gflops"], 3)
                print(json.dumps(result), flush=True)
    for what, change in KINDS.items():
        print(json.dumps(measure(what, change, args)), flush=True)


if __name__ == "__main__":
    main()
