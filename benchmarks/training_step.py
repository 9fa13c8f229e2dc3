"""Times a whole training step of dtopp against Hugging Face OLMoE on the same machine: hidden 512, 8 layers,
8 heads, 64 experts of 256, 8 active, tied vocabulary of 50,432, 4 x 1024 tokens; bf16 (autocast for OLMoE)
and fp32, fused AdamW and clipping on both sides. OLMoE computes the language model's loss alone; dtopp adds
its auxiliary losses.

Each side trains in a process of its own, stopped (SIGSTOP) while the other one runs. Sides run a few steps in
turn, steps interrupted by a stop are left out, and the median of all others counts. Prints one JSON line per
case: tokens/s, the ratio, and the peak resident memory.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile

from training_side import Side, start_dtopp

HERE = pathlib.Path(__file__).resolve().parent
FULL = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "ffn_hidden_size": 256, "num_experts": 64, "active": 8,
        "vocab_size": 50432, "sequence_length": 1024, "batch": 4}
QUICK = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 64, "num_experts": 16, "active": 4,
         "vocab_size": 4096, "sequence_length": 256, "batch": 2}

def start_hugging_face(case, precision, implementation, threads, folder):
    log = folder / f"{implementation}.jsonl"
    command = [sys.executable, HERE / "olmoe_steps.py", json.dumps(case), "--implementation", implementation,
               "--precision", precision, "--threads", str(threads)]
    return Side(command, log, log)


def faster_implementation(case, precision, args, folder):
    """Returns Hugging Face's fastest expert implementation and the times of all. Each runs alone, because two
    do not fit into memory; its best of a few steps counts."""
    seconds = {}
    for name in args.implementations:
        with start_hugging_face(case, precision, name, args.threads, folder) as side:
            seconds[name] = min(step["seconds"] for step in side.steps(args.steps))
    return min(seconds, key=seconds.get), seconds


def measure(case, precision, args, folder):
    tokens = case["batch"] * case["sequence_length"]
    implementation, alone = faster_implementation(case, precision, args, folder)
    with contextlib.ExitStack() as running:
        start = running.enter_context
        sides = {"hugging_face": start(start_hugging_face(case, precision, implementation, args.threads, folder))}
        if not args.hugging_face_only:
            sides["dtopp"] = start(start_dtopp(case, "dtop_p", precision, args.threads, folder / "dtopp"))
        steps = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, side in sides.items():
                steps[name] += side.steps(args.steps)
        peaks = {name: side.peak_bytes() for name, side in sides.items()}
    result = {"case": "training_step" + (" quick" if args.quick else ""), "precision": precision,
              "threads": args.threads, "implementation": implementation,
              "hugging_face_tokens_per_second":
                  round(tokens / statistics.median(step["seconds"] for step in steps["hugging_face"]), 1),
              "hugging_face_peak_bytes": peaks["hugging_face"],
              "hugging_face_alone": {name: round(tokens / s, 1) for name, s in alone.items()}}
    if "dtopp" in sides:
        rate = statistics.median(step["throughput/tokens_per_second"] for step in steps["dtopp"])
        result |= {"dtopp_tokens_per_second": round(rate, 1), "dtopp_peak_bytes": peaks["dtopp"],
                   "dtopp_active_experts": round(statistics.mean(s["moe/active_experts"] for s in steps["dtopp"]), 3),
                   "dtopp_data_share": round(statistics.median(s["throughput/data_share"] for s in steps["dtopp"]), 5),
                   "ratio": round(rate / result["hugging_face_tokens_per_second"], 2),
                   "memory_ratio": round(peaks["dtopp"] / peaks["hugging_face"], 2)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, to try the benchmark itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps per side and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--implementations", nargs="+", default=["eager", "grouped_mm"],
                        help="implementations of Hugging Face's experts; dtopp: with dtopp's operators (dtopp.huggingface)")
    parser.add_argument("--hugging-face-only", action="store_true")
    args = parser.parse_args()
    for precision in args.precisions:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(QUICK if args.quick else FULL, precision, args, pathlib.Path(folder))), flush=True)


if __name__ == "__main__":
    main()
