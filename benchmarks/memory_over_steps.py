"""Measures the resident memory of a training run over many steps with the program's allocator settings and
others, and the speed cost of each. The model is a small DTop-p model, whose number of token-expert pairs
varies by step and layer. The runs take turns of a few seconds while the others are stopped (SIGSTOP).

Prints one JSON line per setting: resident bytes at steps 1, 50, 100 ..., the ratio of the largest to the
smallest from step 50 on, the median step and its ratio to the program's own, the measured peak and `dtopp
plan`'s.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import tempfile

from training_side import plan, start_dtopp

CASE = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 64, "num_experts": 16, "active": 4,
        "sequence_length": 256}
# Values of MALLOC_CONF, which overrides the compiled-in settings (cli/main.cpp).
SETTINGS = {"own": "", "large blocks left whole": "lg_extent_max_active_fit:6"}


def steps_of(side):
    return [line for line in side.read() if "memory/resident_bytes" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5, help="seconds per turn")
    parser.add_argument("--setting", action="append", metavar="NAME=MALLOC_CONF", help="setting to measure instead of the two built-in ones")
    args = parser.parse_args()
    settings = dict(text.split("=", 1) for text in args.setting) if args.setting else SETTINGS
    case = CASE | {"vocab_size": args.vocabulary, "batch": args.batch, "micro_batch": args.micro_batch}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = pathlib.Path(name)
        sides, timed = {}, {}
        for index, (setting, value) in enumerate(settings.items()):
            os.environ["MALLOC_CONF"] = value
            sides[setting] = running.enter_context(
                start_dtopp(case, "dtop_p", "fp32", args.threads, folder / str(index)))
            timed[setting] = []
        os.environ.pop("MALLOC_CONF")
        while any(len(steps_of(side)) < args.steps for side in sides.values()):
            for setting, side in sides.items():
                timed[setting] += side.steps(args.steps, args.seconds)
        tokens = args.batch * CASE["sequence_length"]
        seconds = {setting: tokens / statistics.median(step["throughput/tokens_per_second"] for step in steps)
                   for setting, steps in timed.items()}
        first = next(iter(settings))
        for index, (setting, side) in enumerate(sides.items()):
            resident = {step["step"]: step["memory/resident_bytes"] for step in steps_of(side)[:args.steps]}
            peak, planned = max(resident.values()), plan(folder / str(index) / "run.yaml")["memory_bytes"]["total"]
            later = [size for step, size in resident.items() if step >= 50]
            print(json.dumps({
                "case": "memory_over_steps", "setting": setting, "malloc_conf": settings[setting],
                "threads": args.threads, "steps": args.steps, "vocabulary": args.vocabulary,
                "resident_bytes": {s: size for s, size in resident.items() if s == 1 or s % 50 == 0},
                "most_over_least_after_50": round(max(later) / min(later), 4) if later else None,
                "seconds": round(seconds[setting], 4), "speed_against_first": round(seconds[first] / seconds[setting], 4),
                "peak_bytes": peak, "planned_bytes": planned, "peak_against_plan": round(peak / planned, 3)}), flush=True)


if __name__ == "__main__":
    main()
