"""Measures the throughput that a second program leaves: `dtopp train`, `generate` and `evaluate text` alone and beside
one busy process (a shell that runs an empty loop, on no core in particular). It compares ways in which
threads wait for each other: the program's own, and others set through OMP_WAIT_POLICY and GOMP_SPINCOUNT.

Prints one JSON line per case: tokens per second alone and beside the other process, as medians over a few
turns, and their ratio.

    .venv/bin/python benchmarks/beside_others.py runs/quickstart      # the run of `make quickstart`
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

from training_side import BINARY, HERE, run_program, start_dtopp

CASE = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "ffn_hidden_size": 64, "num_experts": 16, "active": 4,
        "vocab_size": 8192, "sequence_length": 256, "batch": 4}
TEXT = HERE.parent / "assets/text/novels-validation.jsonl.zst"
WAITING = {"own": {}, "asleep": {"OMP_WAIT_POLICY": "passive"}} | {
    f"GOMP_SPINCOUNT={n}": {"GOMP_SPINCOUNT": n} for n in ("30000", "100000", "300000")}


@contextlib.contextmanager
def busy_process():
    process = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def environment(extra):
    before = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        os.environ.pop(name, None)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def generate(args, tokens):
    done = run_program(BINARY, "generate", args.run, "--prompt", "The fog came down", "--max-tokens", tokens, "--temperature", "1",
                       "--top-p", "1", "--threads", args.threads)
    return float(re.search(r"([\d.]+) tok/s", done.stderr).group(1))


def evaluate(args, _):
    start = time.perf_counter()
    done = run_program(BINARY, "evaluate", "text", args.run, "--text", TEXT, "--json", "--threads", args.threads)
    return json.loads(done.stdout)["tokens"] / (time.perf_counter() - start)


def report(what, waiting, alone, beside):
    alone, beside = statistics.median(alone), statistics.median(beside)
    print(json.dumps({"case": "beside_others", "what": what, "waiting": waiting, "alone": round(alone, 1),
                      "beside": round(beside, 1), "ratio": round(beside / alone, 3)}), flush=True)


def train(args):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        sides = {}
        for name in args.waiting:
            with environment(WAITING[name]):
                sides[name] = running.enter_context(
                    start_dtopp(CASE, "dtop_p", "fp32", args.threads, pathlib.Path(folder) / name))

        def rates(steps):
            result = {name: [] for name in sides}
            for _ in range(args.rounds):
                for name, side in sides.items():
                    result[name] += [step["throughput/tokens_per_second"] for step in side.steps(steps)]
            return result

        alone = rates(args.steps)
        with busy_process():
            beside = rates(max(args.steps // 4, 1))
    for name in sides:
        report("train", name, alone[name], beside[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a trained run with a tokenizer; without it, only training is measured")
    parser.add_argument("--waiting", nargs="+", choices=WAITING, default=list(WAITING))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="training steps per turn; a quarter of them beside the other process")
    parser.add_argument("--tokens", type=int, default=100, help="tokens to generate; a tenth of them if threads spin beside another program")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    train(args)
    if args.run is None:
        return
    for measured in (generate, evaluate):
        def rates(name, tokens):
            with environment(WAITING[name]):
                return [measured(args, tokens) for _ in range(args.rounds)]

        alone = {name: rates(name, args.tokens) for name in args.waiting}
        with busy_process():
            for name in args.waiting:
                report(measured.__name__, name, alone[name], rates(name, args.tokens if name == "own" else args.tokens // 10))


if __name__ == "__main__":
    main()
