"""A training run that is small enough for tests: its data, its configuration and a wrapper of the program."""

import json
import os
import pathlib

import numpy as np
import start
from start import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The device of the tests' runs. Tests that compare bits need a CPU.
DEVICE = os.environ.get("DTOPP_DEVICE", "cpu")

# `make nightly` runs every case of tests that repeat over many.
FULL = os.environ.get("DTOPP_FULL") == "1"


def in_full(*cases):
    """Cases that only `make nightly` runs."""
    return cases if FULL else ()


CONFIG = """\
name: tiny
model: {{type: language_model, hidden_size: 32, num_layers: 2, num_heads: 4, ffn_hidden_size: 16, num_experts: 8,
        vocab_size: 256, sequence_length: 32}}
routing: {{method: dtop_p, experts: 3, threshold: 0.3}}
optimizer: {{lr: 1.0e-2, min_lr: 1.0e-4, warmup_steps: 3}}
data: {{train: [{data}/train.npy], validation: [{data}/validation.npy]}}
training: {{steps: 12, global_batch_size: 4, micro_batch_size: 2, seed: 3, precision: fp32, device: {device}, threads: 1}}
validation: {{every: 5, tokens: 256}}
checkpoint: {{every: 4, keep: 0}}
logging: {{console_every: 1}}
output: {output}
"""


# Overrides of runs with other routers, or with another optimizer.
OWN_GATES = ["routing.normalization=none", "routing.renormalize=false", "loss.load_balance=0"]
ROUTERS = {
    "dtop_p_bias": ["routing.method=dtop_p_bias", "routing.bias_rate=0.01", "loss.load_balance=0"],
    "relu": ["routing.method=relu", *OWN_GATES, "routing.lambda_0=0.01"],
    "expert_threshold": ["routing.method=expert_threshold", *OWN_GATES, "routing.cut_decay=0.8"],
    "top_k_bias": ["routing.method=top_k_bias", "routing.normalization=none", "routing.bias_rate=0.01", "routing.bias_until=0.75",
                   "routing.gate_scale=2.5", "loss.load_balance=0", "loss.sequence_balance=0.01"],
    "top_k_bias_quantile": ["routing.method=top_k_bias", "routing.normalization=none", "routing.bias_rule=quantile",
                            "loss.load_balance=0"],
    "dtop_p_bias_quantile": ["routing.method=dtop_p_bias", "routing.bias_rule=quantile", "routing.controller=solve"],
    "hash": ["routing.method=hash", "routing.normalization=none", "loss.load_balance=0", "loss.dynamic=0"],
    "hash_layers": ["routing.hash_layers=1", "routing.expert_normalization=running", "routing.controller=solve"],
    "muon": ["optimizer.method=muon", "model.shared_experts=1"],
    "shared_experts": ["model.shared_experts=2", "model.shared_gate=true", "model.qk_norm=head", "model.qkv_bias=true"],
    "schedule": ["routing.schedule=[1.5, 3]", "routing.schedule_at=[0, 1]", "routing.controller=solve"],
    "schedule_hash": ["routing.method=hash", "routing.normalization=none", "loss.load_balance=0", "loss.dynamic=0",
                      "routing.schedule=[4, 2, 3]", "routing.schedule_at=[0, 0.5, 1]", "routing.schedule_shape=step"],
    "zero_experts": ["model.zero_experts=5", "model.zero_kind=copy"],
    "expert_normalization": ["routing.expert_normalization=running", "model.zero_experts=3"],
    "zero_experts_bias": ["model.zero_experts=4", "routing.method=top_k_bias", "routing.max_experts=5",
                          "routing.bias_rate=0.02", "loss.load_balance=0"],
}


def write_tokens(path, count, seed, vocab_size=256):
    """Writes headerless uint16 ids with learnable structure: each id is near the previous one."""
    steps = np.random.default_rng(seed).integers(0, 4, count)
    (np.cumsum(steps) % vocab_size).astype("<u2").tofile(path)


def make(directory, **replacements):
    """Writes data and config.yaml below `directory`. Returns the path of the configuration."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "train.npy").exists():
        write_tokens(directory / "train.npy", 8000, seed=1)
        write_tokens(directory / "validation.npy", 1000, seed=2)
    config = directory / "run.yaml"
    config.write_text(CONFIG.format(data=directory, device=DEVICE, output=replacements.pop("output", directory / "run")))
    return config


def dtopp(*arguments, **options):
    options = {"text": True, "capture_output": True, "timeout": 120} | options
    return start.run([BINARY, *arguments], **options)


def trained(directory, *overrides):
    """Creates a run below `directory` and trains it on one process. Returns the directory."""
    done = dtopp("train", make(directory), *overrides)
    assert done.returncode == 0, done.stderr
    return directory


def state(run, step):
    """The bytes of a checkpoint's state: parameters, moments, their average and the router's state if there are any,
    and the rest of a step's initial state."""
    folder = pathlib.Path(run) / "checkpoints" / f"step-{step:08d}"
    some = [name for name in ("ema.safetensors", "router.safetensors") if (folder / name).exists()]
    names = ["model.safetensors", "optimizer.safetensors", "state.json", *some]
    return [(folder / name).read_bytes() for name in names]


def metrics(run):
    return [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]


TIMES = ("time", "throughput/", "memory/", "comm/", "checkpoint/")


def timeless(lines):
    """The lines without values that depend on the clock, the machine or the number of ranks."""
    return [{key: value for key, value in line.items() if not key.startswith(TIMES)} for line in lines]
