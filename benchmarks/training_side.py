"""A process that trains and is stopped (SIGSTOP) while another one runs, so that two can be timed in turn."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import yaml

HERE = pathlib.Path(__file__).resolve().parent
BINARY = pathlib.Path(os.environ.get("DTOPP_BINARY", HERE.parent / "build/release/bin/dtopp"))


def run_program(*command):
    """Returns what a command that ends well leaves (CompletedProcess, text)."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {' '.join(map(str, command[:2]))}: {done.stderr.strip()[-2000:]}")
    return done


def plan(config, *options):
    return json.loads(run_program(BINARY, "plan", config, *options, "--json").stdout)


def starting_threshold(experts, active):
    """p_0 that selects about `active` of the experts at initialization, when normalized logits are Gaussian."""
    logits = np.random.default_rng(1).standard_normal((4000, experts))
    logits = (logits - logits.mean(-1, keepdims=True)) / logits.std(-1, keepdims=True)
    prob = -np.sort(-np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    before = prob.cumsum(-1) - prob
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if (before < middle).sum(-1).mean() < active else (low, middle)
    return round(max(low, 0.05), 4)


class Side:
    """A process that trains and writes a line per step. It runs only inside steps()."""

    def __init__(self, command, log, lines):
        self.log, self.lines, self.parsed, self.end = log, lines, [], 0
        with open(log, "w") as out, open(log.with_suffix(".err"), "w") as errors:
            self.process = subprocess.Popen(command, stdout=out, stderr=errors)
        try:
            self.wait_for(1)  # the first step warms up caches and allocators
        except BaseException:
            self.process.kill()
            raise
        self.process.send_signal(signal.SIGSTOP)

    def read(self):
        """The complete lines, parsed."""
        if self.lines.exists():
            with open(self.lines) as file:
                file.seek(self.end)
                added = file.read()
            complete = added[:added.rfind("\n") + 1]
            self.parsed += map(json.loads, complete.splitlines())
            self.end += len(complete)
        return self.parsed

    def wait_for(self, count, seconds=float("inf")):
        end = time.monotonic() + seconds
        while len(self.read()) < count and time.monotonic() < end:
            if self.process.poll() is not None:
                sys.exit(f"a side ended early: {self.log.with_suffix('.err').read_text()[-2000:]}")
            time.sleep(0.01)

    def steps(self, count, seconds=float("inf")):
        """Runs the next `count` whole steps, or as many as end within `seconds`, and returns their lines."""
        done = len(self.read())
        self.process.send_signal(signal.SIGCONT)
        self.wait_for(done + 1 + count, seconds)
        self.process.send_signal(signal.SIGSTOP)
        return self.read()[done + 1:done + 1 + count]

    def peak_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def cpu_seconds(self):
        """CPU seconds of all its threads so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def routing_of(method, experts, active):
    """The `routing` section with which a token selects `active` experts. `method` is dense, a routing.method, or solve:
    DTop-p with a solved threshold. A new model's relu begins with half of the experts; its first weight is large, so
    that it soon comes near `active`."""
    if method == "dense":
        return {}
    routing = {"method": "dtop_p" if method == "solve" else method, "experts": active}
    if method in ("top_k_bias", "relu", "expert_threshold", "hash"):
        routing["normalization"] = "none"
    if method in ("relu", "expert_threshold"):
        routing["renormalize"] = False
    if method == "relu":
        routing["lambda_0"] = 0.1
    if "p" in method.split("_") or method == "solve":
        routing |= {"threshold": starting_threshold(experts, active), "controller": "solve" if method == "solve" else "pi"}
    return routing


def without_pauses(config, folder):
    """Writes `config` as a run in `folder` without validation and checkpoints. Returns its path."""
    config = config | {
        "validation": {"every": 0, "tasks": []}, "checkpoint": {"every": 0}, "logging": {"tensorboard": False},
        "output": str(folder / "run"),
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def start_run(config, folder, options=()):
    """Trains `config` in `folder` with these options of `dtopp train`, without validation and checkpoints."""
    return Side([BINARY, "train", without_pauses(config, folder), *options], folder / "dtopp.log", folder / "run/metrics.jsonl")


def language_run(case, method, precision, threads, folder, equal=0.0, device="cpu"):
    """The configuration of a language model on random tokens, of which the share `equal` are the same one. `case` holds the
    model's keys, `active` experts per token, the `batch` and, for several micro-batches, the `micro_batch`. `method` is as
    in routing_of. Writes the tokens to `folder`."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    tokens = random.integers(0, case["vocab_size"], 2_000_000)
    tokens[random.random(tokens.size) < equal] = 0
    tokens.astype("<u2" if case["vocab_size"] <= 1 << 16 else "<u4").tofile(folder / "train.npy")
    model = {k: v for k, v in case.items() if k not in ("active", "batch", "micro_batch")}
    if method == "dense":
        model["num_experts"] = 1
    return {
        "name": "training_step", "model": model | {"tie_embeddings": True},
        "routing": routing_of(method, case["num_experts"], case["active"]),
        "loss": {"load_balance": 1e-4 if method in ("dense", "top_k", "top_p", "dtop_p", "solve") else 0.0,
                 "dynamic": 1e-3 if method in ("top_p", "dtop_p", "solve", "dtop_p_bias") else 0.0},
        "optimizer": {"lr": 1e-4, "min_lr": 1e-4, "warmup_steps": 0}, "data": {"train": [str(folder / "train.npy")]},
        "training": {"steps": 100000, "global_batch_size": case["batch"], "micro_batch_size": case.get("micro_batch", case["batch"]),
                     "precision": precision, "device": device, "threads": threads},
    }


def start_dtopp(case, method, precision, threads, folder, equal=0.0, device="cpu", options=()):
    """Trains the model of language_run()."""
    return start_run(language_run(case, method, precision, threads, folder, equal, device), folder, options)
