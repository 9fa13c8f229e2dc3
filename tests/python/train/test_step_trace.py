"""Tests the trace of one step."""

import json

import pytest
import tiny_run
from refusal import assert_refused


@pytest.mark.parametrize("processes", [1, 2])
def test_the_trace_shows_one_step_and_changes_no_bit(dtopp_binary, tmp_path, processes):
    if processes > 1 and tiny_run.DEVICE != "cpu":
        pytest.skip("several ranks need several devices")
    tiny_run.trained(tmp_path)
    tiny_run.trained(tmp_path, "logging.trace_step=3", f"output={tmp_path}/traced", "--processes", processes)
    events = json.loads((tmp_path / "traced/trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    # The micro-batches of rank 0: two, or one of two ranks' two.
    assert sum(name.startswith("micro-batch") for name in names if name) == 2 // processes
    assert "dtopp::route" in names and "dtopp::moe_ffn" in names
    assert tiny_run.state(tmp_path / "traced", 12) == tiny_run.state(tmp_path / "run", 12)


def test_a_negative_step_is_refused(dtopp_binary, tmp_path):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), "logging.trace_step=-1"), 2, "logging.trace_step")
