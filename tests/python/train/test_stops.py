"""A run saves and ends at a request to stop or when its hours are over; the same command resumes it."""

import signal

import pytest
import tiny_run
from needs import for_cpus, needs_program
from rank_process import Process

pytestmark = [needs_program, for_cpus]

ENDLESS = ["training.steps=1000000", "training.micro_batch_size=1", "validation.every=0", "checkpoint.every=0",
           "logging.tensorboard=false"]
PROCESSES = pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["alone", "2 ranks"])


def start(directory, *options, **settings):
    return Process(list(map(str, [tiny_run.BINARY, "train", tiny_run.make(directory), *ENDLESS, *options])), **settings)


def expect_stopped(process, directory):
    """Returns the step of the checkpoint that the run has saved."""
    status, lines = process.end(timeout=60)
    assert status == 75, lines
    assert len([line for line in lines if "stopped at step" in line]) == 1 and not any("error:" in line for line in lines), lines
    (checkpoint,) = (directory / "run/checkpoints").glob("step-*")
    return int(checkpoint.name.removeprefix("step-"))


@PROCESSES
def test_a_closed_terminal_stops_a_run_as_sigterm_does(tmp_path, processes):
    process = start(tmp_path, *processes, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    process.wait_for("step 3/")
    process.process.send_signal(signal.SIGHUP)
    assert expect_stopped(process, tmp_path) >= 3


@PROCESSES
def test_a_run_under_nohup_survives_its_terminal(tmp_path, processes):
    process = start(tmp_path, *processes, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.wait_for("step 3/")
    process.process.send_signal(signal.SIGHUP)
    process.wait_for(f"step {int(process.lines[-1].split()[1].split('/')[0]) + 20}/")
    process.process.send_signal(signal.SIGTERM)
    assert expect_stopped(process, tmp_path) > 20


@PROCESSES
def test_a_run_whose_hours_are_over_saves_and_resumes(tmp_path, processes):
    steps = []
    for options in ([], ["checkpoint.keep=1"]):
        process = start(tmp_path, "training.max_hours=0.0005", *options, *processes)
        steps.append(expect_stopped(process, tmp_path))
        assert any("training.max_hours" in line for line in process.lines)
    assert 0 < steps[0] < steps[1]
    assert [line["step"] for line in tiny_run.metrics(tmp_path / "run")] == list(range(1, steps[1] + 1))
