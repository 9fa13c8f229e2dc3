"""Runs a small version of benchmarks/gpu_training.py on the device of the tests."""

import json
import os
import subprocess
import sys

import pytest
from refusal import assert_refused
from tiny_run import BINARY, DEVICE, ROOT

SAMPLE = ROOT / "assets/text/novels-validation.jsonl.zst"
SMALL = ["training.global_batch_size=4", "model.sequence_length=64", "model.num_layers=2", "training.threads=1"]


def benchmark(*arguments):
    return subprocess.run([sys.executable, ROOT / "benchmarks/gpu_training.py", "--device", DEVICE, "--text", SAMPLE,
                           "--preset", ROOT / "configs/small.yaml", *arguments],
                          capture_output=True, text=True, timeout=120, env=os.environ | {"DTOPP_BINARY": str(BINARY)})


def plan(*overrides):
    done = subprocess.run([BINARY, "plan", ROOT / "configs/small.yaml", *overrides, "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_prints_one_line_that_adds_up(dtopp_binary):
    done = benchmark("--steps", "13", *SMALL)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    assert (line["steps"], line["micro_batch_size"], line["global_batch_size"]) == (13, 4, 4)
    planned = plan(*SMALL, "training.micro_batch_size=4", f"training.device={DEVICE}")
    assert line["planned"] == planned["memory_bytes"]
    assert abs(line["peak_against_plan"] - line["peak_bytes"] / planned["memory_bytes"]["total"]) < 1e-3
    # Medians of reciprocals agree because the number of steps is odd.
    assert line["milliseconds"] / 1e3 * line["tokens_per_second"] == pytest.approx(planned["tokens_per_step"], rel=1e-3)
    assert line["slowest_milliseconds"] >= line["milliseconds"]
    assert line["mfu_of_peak"] is None or (DEVICE != "cpu" and 0 < line["mfu_of_peak"] < 1)
    # Chance is ln 50,432 = 10.83. The windows of the two means overlap, and all 13 steps lie in the warm-up.
    assert 9 < line["loss_last"] < line["loss_first"] < 11.2
    assert line["target_experts"] == 4 and 1 <= line["active_experts"] <= 32
    assert line["skipped_steps"] == 0


def test_takes_the_micro_batch_an_override_names_and_says_when_none_fits(dtopp_binary):
    done = benchmark("--steps", "4", *SMALL, "model.num_layers=1", "model.hidden_size=32", "training.micro_batch_size=2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["micro_batch_size"] == 2
    done = benchmark(*SMALL, "model.hidden_size=1048576")
    assert_refused(done, 1, "micro-batch of 1", begins="gpu_training: small")
