"""Trains the paper's model on a CUDA device with the largest micro-batch that fits according to `dtopp plan`, without
keeping the experts' activations; if none fits, it uses a smaller model. Prints one JSON line: the median step, tokens/s and MFU, the measured
peak with plan's total and parts, the loss at both ends (means of 10 steps), and active experts with their
target. Active experts are the mean over the last 100 steps, or over the last half of fewer than 200.

The controller solves for the threshold, so the steps have the target's number of experts from the second on.
A step has a global batch of 24 sequences unless an override sets another. 24 has many divisors, and AdamW's
share of so short a step is larger than with the paper's 512. A step that runs again because it exceeded its
capacity counts as one slow step.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import yaml
from training_side import BINARY, Side, run_program
from yardstick import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The larger model fits an H200 with a micro-batch of 24 if it recomputes the experts' activations.
PRESETS = [(ROOT / "configs/moe-1.3b-6.9b-64e8a.yaml", ["training.recompute=moe"]), (ROOT / "configs/moe-0.4b-3.7b-64e8a.yaml", [])]
BATCH, MICRO_BATCH = "training.global_batch_size", "training.micro_batch_size"
# Runs in a process of its own, because a context occupies device memory as long as it exists.
ASK_DEVICE = "import torch as t; t.cuda.is_available() and print(t.cuda.mem_get_info()[0], t.cuda.get_device_name())"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", type=pathlib.Path, help="the run's YAML file; default: the first that fits of moe-1.3b-6.9b-64e8a "
                                                            "and moe-0.4b-3.7b-64e8a")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of training; later steps are missing")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--text", type=pathlib.Path, action="append", metavar="FILE",
                        help="may be repeated; default: the novels of configs/lab.yaml")
    parser.add_argument("--trace", action="store_true", help="also print the parts of a traced step (trace_breakdown.py); needs a CUDA device")
    parser.add_argument("overrides", nargs="*", help="key.path=value, as in `dtopp train`")
    return parser.parse_intermixed_args()


def find_device(wish):
    """Returns (available bytes, name)."""
    if wish == "cpu":
        return json.loads(run_program(BINARY, "plan", PRESETS[0][0], "--device", "cpu", "--json").stdout)["device_memory_bytes"], "cpu"
    answer = run_program(sys.executable, "-c", ASK_DEVICE).stdout.strip()
    if not answer:
        sys.exit("gpu_training: no CUDA device; run it on a machine with one")
    free, name = answer.split(" ", 1)
    return int(free), name


def fused_kernels():
    """The expert GEMMs with fused kernels on the first device; grouped_mm if there are none or on a CPU."""
    devices = json.loads(run_program(BINARY, "devices", "--json").stdout)["cuda"]["devices"][:1]
    return ",".join(gemm["gemm"] for device in devices for gemm in device["expert_gemms"]
                    if gemm["kernel"] == "fused") or "grouped_mm"


def find_fitting(presets, overrides, free):
    """Returns the first preset that fits, its overrides with the largest micro-batch that fits, and the plan. The
    micro-batch is a divisor of the global batch, or that of an override."""
    given = dict(override.split("=", 1) for override in overrides if "=" in override)
    batch = int(given[BATCH])
    divisors = [n for n in range(batch, 0, -1) if batch % n == 0]
    for preset, own in presets:
        for micro_batch in [int(given[MICRO_BATCH])] if MICRO_BATCH in given else divisors:
            these = [*own, *overrides, f"{MICRO_BATCH}={micro_batch}"]
            plan = json.loads(run_program(BINARY, "plan", preset, *these, "--json").stdout)
            if plan["memory_bytes"]["total"] <= free:
                return preset, these, plan
    sys.exit(f"gpu_training: {preset.stem} with a micro-batch of {micro_batch} needs "
             f"{plan['memory_bytes']['total'] / 2**30:.1f} GiB, {free / 2**30:.1f} are free")


def train(preset, overrides, text, steps, seconds, trace):
    """Returns the lines of metrics.jsonl, one per step, and the run's configuration. Prints the parts of the middle step if `trace`."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run_program(BINARY, "prepare", "text", *text, "--tokenizer", ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json",
                    "--output", folder / "text")
        # The run is killed, because the last step of a run would write a checkpoint.
        command = [BINARY, "train", preset, *overrides, f"data.train=[{folder / 'text'}]", "data.validation=[]",
                   "training.steps=100000", "validation.every=0", "validation.tasks=[]", "checkpoint.every=0",
                   "logging.every=1", "logging.tensorboard=false", f"logging.trace_step={steps // 2 if trace else 0}", f"output={folder / 'run'}"]
        with Side(command, folder / "log", folder / "run/metrics.jsonl") as side:
            side.steps(steps - 2, seconds)
            traced = folder / "run/trace.json"
            if traced.exists():  # the time did not end before that step
                print(run_program(sys.executable, ROOT / "benchmarks/trace_breakdown.py", traced, "--kernels", 10).stdout, end="")
            return side.read()[:steps], yaml.safe_load((folder / "run/config.yaml").read_text())


def main():
    args = arguments()
    if args.steps < 4:
        sys.exit("gpu_training: --steps: at least 4")
    free, device = find_device(args.device)
    overrides = [f"{BATCH}=24", "routing.controller=solve", *args.overrides, f"training.device={args.device}"]
    presets = [(args.preset, [])] if args.preset else PRESETS
    preset, overrides, plan = find_fitting(presets, overrides, free)
    text = args.text or [ROOT / "assets/text/lab-train.jsonl.zst"]
    lines, config = train(preset, overrides, text, args.steps, args.seconds, args.trace)
    late = lines[-min(100, max(len(lines) // 2, 1)):]
    ends = min(10, len(lines))

    def median(name):
        return statistics.median(line[name] for line in lines)

    def mean(name, some):
        return statistics.mean(line[name] for line in some)

    seconds = [plan["tokens_per_step"] / line["throughput/tokens_per_second"] for line in lines]
    planned, peak = plan["memory_bytes"], lines[-1]["memory/peak_bytes"]
    routed = "moe/active_experts" in lines[0]
    targets = config["routing"]["experts"]
    report(case="gpu_training", preset=preset.stem, overrides=args.overrides, device=device, precision=config["training"]["precision"],
           products=os.environ.get("DTOPP_MOE_KERNELS") or fused_kernels(), steps=len(lines),
           global_batch_size=config["training"]["global_batch_size"],
           micro_batch_size=config["training"]["micro_batch_size"], recompute=config["training"]["recompute"],
           sequence_length=config["model"]["sequence_length"], milliseconds=1e3 * statistics.median(seconds),
           slowest_milliseconds=1e3 * max(seconds[1:]), tokens_per_second=median("throughput/tokens_per_second"),
           tflops=median("throughput/tflops"),
           mfu_of_peak=median("throughput/mfu") if "throughput/mfu" in lines[0] else None, free_bytes=free, peak_bytes=int(peak),
           peak_against_plan=peak / planned["total"], planned=planned, loss_first=mean("train/loss", lines[:ends]),
           loss_last=mean("train/loss", lines[-ends:]),
           active_experts=mean("moe/active_experts", late) if routed else None,
           target_experts=statistics.mean(targets if isinstance(targets, list) else [targets]) if routed else None,
           skipped_steps=int(lines[-1]["train/skipped_steps"]))


if __name__ == "__main__":
    main()
