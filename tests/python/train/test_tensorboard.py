"""Reads the event files back with TensorBoard itself, which verifies every checksum."""

import subprocess

import numpy as np
import pytest

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                                        reason="tensorboard is not installed")


@pytest.fixture
def write_events(program, tmp_path):
    tool = program("write_events")

    def write(resume_step, first, last):
        subprocess.run([tool, tmp_path, *map(str, (resume_step, first, last))], check=True, timeout=20)

    return write


def scalars(directory, tag="train/loss"):
    accumulator = event_accumulator.EventAccumulator(str(directory))
    accumulator.Reload()
    return {event.step: event for event in accumulator.Scalars(tag)}, accumulator


def test_values_steps_and_times_read_back(write_events, tmp_path):
    write_events(-1, 1, 300)
    events, accumulator = scalars(tmp_path)
    assert sorted(accumulator.Tags()["scalars"]) == ["moe/threshold", "train/loss"]
    assert accumulator.file_version == 2
    assert sorted(events) == list(range(1, 301))
    for step, event in events.items():
        assert event.value == np.float32(1 / step - 1)
        assert event.wall_time == 1.0e9 + 0.25 * step


def test_each_step_appears_once_when_a_run_resumes_within_the_second(write_events, tmp_path):
    write_events(-1, 1, 9)
    write_events(4, 5, 8)
    write_events(6, 7, 12)
    events, accumulator = scalars(tmp_path)
    assert [event.step for event in accumulator.Scalars("train/loss")] == list(range(1, 13))
    offsets = [-1] * 4 + [4] * 2 + [6] * 6  # the attempt that each step must come from
    for step, offset in enumerate(offsets, start=1):
        assert events[step].value == np.float32(1 / step + offset)


def test_a_run_started_afresh_purges_everything(write_events, tmp_path):
    write_events(-1, 1, 9)
    write_events(-1, 1, 3)
    assert sorted(scalars(tmp_path)[0]) == [1, 2, 3]


def test_a_damaged_event_is_noticed(write_events, tmp_path):
    """TensorBoard's reader verifies checksums; otherwise the tests above would not prove that dtopp's are
    right."""
    write_events(-1, 1, 9)
    path, = tmp_path.glob("events.out.tfevents.*")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # inside the last event
    path.write_bytes(data)
    assert sorted(scalars(tmp_path)[0]) == list(range(1, 9))
