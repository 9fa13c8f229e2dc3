"""--restarts: after a rank dies, the group starts again from the newest checkpoint and ends with the same bits. So do runs whose processes
are killed at random moments."""

import json
import os
import re
import signal
import socket

import pytest
import tiny_run
from needs import SHIM, for_cpus, needs_program, needs_shim, needs_torchrun
from random_kills import kill_runs
from rank_process import OVERRIDES, STEPS, Process, command, torchrun
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES)


def start(reference, run, restarts, *options, **environment):
    return Process(command(reference, run, "--processes", 2, "--restarts", restarts, "checkpoint.every=5", *options),
                   env=os.environ | environment)


def restarts_of(run):
    return json.loads((run / "run.json").read_text())["about"]["restarts"]


@pytest.mark.parametrize("victim, how", [(1, signal.SIGKILL), *tiny_run.in_full((0, signal.SIGKILL), (1, signal.SIGSTOP))])
def test_a_lost_rank_restarts_the_group(reference, tmp_path, victim, how):
    run = tmp_path / "run"
    launcher = start(reference, run, 2)
    launcher.wait_for("step 12/")
    first = launcher.ranks()
    os.kill(first[victim], how)
    launcher.wait_for(f"dtopp: rank {victim} ")
    assert not any(os.path.exists(f"/proc/{rank}") for rank in first)
    status, lines = launcher.end(timeout=60)
    assert status == 0, lines
    cause = r"was killed by signal 9 \(Killed\), " if how == signal.SIGKILL else ""
    at = r" (?:saving |validating )?at step \d+, .*; restart 1 of 2 from step (\d+)"
    losses = [re.fullmatch(rf"dtopp: rank {victim} {cause}on {socket.gethostname()}{at}", line) for line in lines]
    steps = [int(loss[1]) for loss in losses if loss]
    assert len(steps) == 1 and steps[0] >= 5, lines
    assert any(line.endswith(f"resuming from {run}/checkpoints/step-{steps[0]:08d}") for line in lines), lines
    assert restarts_of(run) == 1
    assert tiny_run.state(run, STEPS) == tiny_run.state(reference / "run", STEPS)


@needs_shim
def test_a_group_that_dies_twice_without_a_newer_checkpoint_stays_down(reference, tmp_path):
    """Rank 0 dies at its first call that changes the run's folder."""
    run, plan = tmp_path / "run", tmp_path / "plan"
    plan.write_text("0 1")
    launcher = start(reference, run, 9, LD_PRELOAD=str(SHIM), FAULT_ROOT=str(run), FAULT_MODE="kill", FAULT_PLAN=str(plan),
                     FAULT_FIRED=str(tmp_path / "fired"))
    status, lines = launcher.end(timeout=60)
    assert status == 5, lines
    assert len(lines) == 2 and all("rank 0 was killed by signal 9 (Killed)" in line for line in lines), lines
    assert lines[0].startswith("dtopp: rank 0 ") and lines[0].endswith("; restart 1 of 9 from step 0")
    assert lines[1].startswith("dtopp: error: rank 0 ") and lines[1].endswith("; not restarted: two attempts in a row saved no newer checkpoint")


def test_a_group_that_lost_more_ranks_than_it_may_restart_stays_down(reference, tmp_path):
    launcher = start(reference, tmp_path / "run", 1)
    for step in (12, 24):
        launcher.wait_for(f"step {step}/")
        os.kill(launcher.ranks()[0], signal.SIGKILL)
    status, lines = launcher.end(timeout=60)
    assert status == 5, lines
    assert lines[-1].endswith("; not restarted: all 1 restarts are used")


def test_neither_an_error_nor_a_stop_restarts_the_group(reference, tmp_path):
    status, lines = start(reference, tmp_path / "run", 3, "data.train=[missing.npy]").end(timeout=60)
    assert status == 3 and not any("restart" in line for line in lines), lines
    launcher = start(reference, tmp_path / "run", 3)
    launcher.wait_for("step 12/")
    os.kill(launcher.ranks()[1], signal.SIGTERM)
    status, lines = launcher.end(timeout=60)
    assert status == 75 and not any("restart" in line for line in lines), lines


def test_restarts_need_processes(reference, tmp_path):
    done = tiny_run.dtopp("train", reference / "run.yaml", "--restarts", 1, f"output={tmp_path / 'run'}")
    assert_refused(done, 2, "--restarts")


@needs_torchrun
def test_torchrun_restarts_the_ranks_and_they_resume(reference, tmp_path):
    run = tmp_path / "run"
    launcher = Process([*torchrun("--max-restarts", "2"), *command(reference, run, "checkpoint.every=5")])
    for victim, step in [(1, 20), (0, 40)]:
        launcher.wait_for(f"step {step}/")  # the newest checkpoint may still be written
        os.kill(launcher.ranks()[victim], signal.SIGKILL)
    status, lines = launcher.end(timeout=60)
    assert status == 0, lines
    resumed = [line for line in lines if line.startswith("dtopp: resuming from")]
    assert len(resumed) == 2, lines
    assert len([line for line in lines if line.startswith("dtopp: error: rank 1 on")]) <= 1
    assert restarts_of(run) == 2
    assert tiny_run.state(run, STEPS) == tiny_run.state(reference / "run", STEPS)


KILLS = 10_000 if tiny_run.FULL else 60

@needs_shim
def test_killed_runs_end_with_the_same_bytes():
    total = kill_runs(seed=0, kills=KILLS, jobs=6)
    assert not total.failures, total
    phases = {phase for phase in ("start", "step", "save", "validation") if total.counts[f"during {phase}"] == 0}
    assert not phases, total
