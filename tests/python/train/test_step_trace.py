"""Tests the trace of one step on a CUDA device."""

import json

import pytest
import tiny_run
from refusal import assert_refused


@pytest.mark.skipif(tiny_run.DEVICE == "cpu", reason="records a CUDA device")
def test_the_trace_shows_one_step(dtopp_binary, tmp_path):
    tiny_run.trained(tmp_path, "logging.trace_step=3")
    names = [event.get("name") for event in json.loads((tmp_path / "run/trace.json").read_text())["traceEvents"]]
    assert sum(name.startswith("micro-batch") for name in names if name) == 2
    assert "dtopp::route" in names and "dtopp::moe_ffn" in names


@pytest.mark.skipif(tiny_run.DEVICE != "cpu", reason="refused on a CPU")
def test_a_cpu_points_to_the_profile(dtopp_binary, tmp_path):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), "logging.trace_step=3"), 2, ["logging.trace_step", "--profile"])


def test_a_negative_step_is_refused(dtopp_binary, tmp_path):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), "logging.trace_step=-1"), 2, "logging.trace_step")
