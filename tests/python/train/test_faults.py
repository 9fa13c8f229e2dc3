"""A checkpoint is complete or absent after any failure: of a system call, the process or the power.

The program under test is checkpoint_driver, which saves a series of checkpoints. fault_shim intercepts its
system calls (tests/faults).
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import tiny_run
from power_loss import crash_states, materialize

BUILD = Path(os.environ.get("DTOPP_BUILD", Path(__file__).parents[3] / "build" / "release"))
DRIVER = BUILD / "bin" / "checkpoint_driver"
SHIM = BUILD / "lib" / "libfault_shim.so"
KEEP = 2
EVERY = 1 if tiny_run.FULL else 3  # stride over the calls to interrupt or to kill before
ITEMS = ["=name: run", "10", "20", "+first", "30", "30v", "=name: changed", "+second", "40"]
FINAL_STEPS = [30, 40]


@pytest.fixture
def scratch():
    """A folder in memory if the system has one: thousands of syncs cost nothing there."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as path:
        yield Path(path)


def save(run, items=ITEMS, **fault):
    environment = dict(os.environ)
    if fault:
        environment |= {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(run)}
        environment |= {f"FAULT_{key.upper()}": str(value) for key, value in fault.items()}
    command = [DRIVER, "save", run, str(KEEP), *items]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def check(runs, verb="check"):
    """checkpoint_driver's report on each run directory; one call handles 500 runs."""
    results = []
    for start in range(0, len(runs), 500):
        done = subprocess.run(
            [DRIVER, verb, *runs[start : start + 500]], capture_output=True, text=True, check=True, timeout=300
        )
        results += [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(runs)
    return results


def saved_items(output):
    return [line.removeprefix("saved ") for line in output.splitlines() if line.startswith("saved ")]


def assert_old_or_new(found, mark, items, where):
    """Expects the text last reported as saved, or a later one. None is allowed only if nothing was reported."""
    saved = [item[1:] for item in items if item.startswith(mark)]
    known = [item[1:] for item in ITEMS if item.startswith(mark)]
    assert found in (known[len(saved) - 1 :] if saved else [None, *known]), where


def assert_nothing_lost(run, result, items, where):
    """Expects only complete checkpoints, and none older than the last one reported as saved."""
    assert result["wrong"] == [], where
    steps = [int(item.rstrip("v")) for item in items if item[0].isdigit()]
    if steps:
        assert result["newest"] is not None and result["newest"] >= steps[-1], where
        assert steps[-1] in result["steps"], where
    config = run / "config.yaml"
    assert_old_or_new(config.read_text() if config.exists() else None, "=", items, where)
    assert_old_or_new(result["tree"], "+", items, where)


def assert_recovers(run):
    """The next start succeeds, and no trace of the failure remains."""
    done = save(run, ["=name: recovered", ITEMS[-1]])
    assert done.returncode == 0, done.stderr
    assert not list((run / "checkpoints").glob(".tmp-*")) and not list(run.glob(".tmp-config.yaml*"))


# Calls on files that are only read; their failure can be harmless.
MAY_GO_UNNOTICED = {"open to read", "open directory", "close after reading"}
MUST_BE_REPORTED = {"open", "write", "fsync", "close", "mkdir", "rename", "exchange", "unlink"}


@pytest.mark.parametrize(
    ("mode", "error"), [("once", errno.EIO), ("forever", errno.ENOSPC)], ids=["one-bad-call", "full-disk"]
)
def test_every_failing_call_leaves_complete_checkpoints(scratch, mode, error):
    runs, outcomes, kinds = [], [], set()
    for at in range(1, 10_000):
        run, fired = scratch / str(at), scratch / f"fired-{at}"
        run.mkdir()
        done = save(run, mode=mode, errno=error, at=at, fired=fired)
        if not fired.exists():
            assert done.returncode == 0
            break
        kind = fired.read_text()
        kinds.add(kind)
        where = f"{kind}, call {at}: {done.stderr}"
        if done.returncode == 0:
            assert kind in MAY_GO_UNNOTICED and saved_items(done.stdout) == ITEMS, where
        else:
            assert done.returncode == 3, where
            assert done.stderr.count("\n") == 1 and str(run) in done.stderr, where
            assert os.strerror(error) in done.stderr, where
        runs.append(run)
        outcomes.append((saved_items(done.stdout), where))
    assert kinds == MUST_BE_REPORTED | MAY_GO_UNNOTICED
    assert len(runs) > 200
    for run, result, (items, where) in zip(runs, check(runs), outcomes, strict=True):
        assert_nothing_lost(run, result, items, where)
        assert_recovers(run)


@pytest.mark.parametrize(("mode", "error"), [("once", errno.EINTR), ("short", 0)])
def test_interrupted_and_short_calls_are_carried_on(scratch, mode, error):
    for at in range(1, 10_000, EVERY):
        run, fired = scratch / str(at), scratch / f"fired-{at}"
        run.mkdir()
        done = save(run, mode=mode, errno=error, at=at, fired=fired)
        if not fired.exists():
            break
        # A signal does not interrupt the calls that change or list names.
        if mode == "short" or fired.read_text() in {"open", "open to read", "write", "fsync", "close"}:
            (result,) = check([run])
            assert done.returncode == 0, f"{fired.read_text()}, call {at}: {done.stderr}"
            assert sorted(result["steps"]) == FINAL_STEPS and result["wrong"] == []
        shutil.rmtree(run)
    assert at > 200


def test_killed_before_every_call(scratch):
    runs, outcomes = [], []
    for at in range(1, 10_000, EVERY):
        run, fired = scratch / str(at), scratch / f"fired-{at}"
        run.mkdir()
        done = save(run, mode="kill", at=at, fired=fired)
        if not fired.exists():
            break
        assert done.returncode == -signal.SIGKILL
        runs.append(run)
        outcomes.append((saved_items(done.stdout), f"{fired.read_text()}, call {at}"))
    assert len(runs) * EVERY > 200
    for run, result, (items, where) in zip(runs, check(runs), outcomes, strict=True):
        assert_nothing_lost(run, result, items, where)
        assert_recovers(run)


def test_killed_where_names_cannot_be_exchanged(scratch):
    """As on NFS, a replaced file is missing for a moment. It returns when the run resumes."""
    items, runs, outcomes, away = ["30", "+first", "30v", "+second"], [], [], 0
    for at in range(1, 10_000):
        run, fired = scratch / str(at), scratch / f"fired-{at}"
        run.mkdir()
        done = save(run, items, mode="kill", at=at, fired=fired, no_exchange=1)
        if not fired.exists():
            assert done.returncode == 0
            break
        runs.append(run)
        outcomes.append((saved_items(done.stdout), f"{fired.read_text()}, call {at}"))
        away += any(folder.exists() and not folder.with_name(folder.name.removeprefix(".replaced-")).exists()
                    for folder in [run / ".replaced-tree", run / "checkpoints" / ".replaced-step-00000030"])
    assert away >= 2  # one of each kind
    for run, result, (saved, where) in zip(runs, check(runs, "resume"), outcomes, strict=True):
        assert_nothing_lost(run, result, saved, where)
        assert not list(run.rglob(".replaced-*")), where


def test_what_a_run_has_said_is_durable_before_its_checkpoint(tmp_path):
    """A resumed run does not rewrite the lines of metrics.jsonl before its checkpoint."""
    config, log = tiny_run.make(tmp_path), tmp_path / "log"
    environment = os.environ | {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(tmp_path / "run"), "FAULT_LOG": str(log)}
    done = tiny_run.dtopp("train", config, "checkpoint.every=3", "logging.tensorboard=true", env=environment)
    assert done.returncode == 0, done.stderr
    opened, synced, checkpoints = {}, set(), 0
    for call, *arguments in (line.split("\t") for line in log.read_text().splitlines()):
        if call == "open":
            opened[arguments[0]] = Path(arguments[3]).name
        elif call == "fsync":
            synced.add(opened[arguments[0]].split(".")[0])
        elif call in {"rename", "exchange"} and "/checkpoints/step-" in arguments[1]:
            assert {"metrics", "events"} <= synced, arguments
            synced, checkpoints = set(), checkpoints + 1
    assert checkpoints >= 4


def test_a_resumed_run_syncs_the_name_of_its_event_file(tmp_path):
    config, run, log = tiny_run.make(tmp_path), tmp_path / "run", tmp_path / "log"
    assert tiny_run.dtopp("train", config).returncode == 0
    shutil.rmtree(run / "checkpoints/step-00000012")
    environment = os.environ | {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(run), "FAULT_LOG": str(log)}
    done = tiny_run.dtopp("train", config, env=environment)
    assert done.returncode == 0, done.stderr
    opened, created, synced, checkpoints = {}, False, False, 0
    for call, *arguments in (line.split("\t") for line in log.read_text().splitlines()):
        if call == "open":
            opened[arguments[0]] = Path(arguments[3])
            created = created or "events.out" in arguments[3]
        elif call == "fsync":
            synced = synced or created and opened[arguments[0]] == run
        elif call in {"rename", "exchange"} and "/checkpoints/step-" in arguments[1]:
            assert created and synced, arguments
            checkpoints += 1
    assert checkpoints == 1


def test_killed_at_random_moments(tmp_path):
    """On a real file system, one run directory is killed and resumed 100 times."""
    generator = random.Random(1)
    run = tmp_path / "run"
    start = time.monotonic()
    assert save(run, ["10", "20", "30", "40", "50"]).returncode == 0
    save_time = (time.monotonic() - start) / 5
    step, killed = 50, 0
    while killed < 100:
        items = [str(step + 10 * i) for i in range(100)]
        command = [DRIVER, "save", run, str(KEEP), *items]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(generator.uniform(0, 3 * save_time))
            process.kill()
            output = process.communicate()[0]
        killed += process.returncode == -signal.SIGKILL
        (result,) = check([run])
        assert_nothing_lost(run, result, saved_items(output), f"kill {killed}")
        assert result["newest"] >= step
        step = result["newest"]
    assert step > 50
    assert save(run, [str(step + 10)]).returncode == 0
    assert not list((run / "checkpoints").glob(".tmp-*"))


def test_a_new_run_syncs_the_directories_it_makes(scratch):
    config = tiny_run.make(scratch, output=scratch / "runs/group/new")
    environment = os.environ | {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(scratch / "runs"), "FAULT_LOG": str(scratch / "log")}
    done = tiny_run.dtopp("train", config, "training.steps=1", "optimizer.warmup_steps=1", env=environment)
    assert done.returncode == 0, done.stderr
    names, synced, made = {}, set(), []
    for line in (scratch / "log").read_text().splitlines():
        call, *fields = line.split("\t")
        if call == "open":
            names[fields[0]] = Path(fields[-1])
        elif call == "mkdir":
            made.append(Path(fields[0]))
        elif call == "fsync":
            synced.add(names[fields[0]])
    assert scratch / "runs/group/new" in made
    for path in made:
        if path.parent != scratch:  # outside the folder that the shim watches
            assert path.parent in synced, path


def test_power_lost_after_every_call(scratch):
    run, log = scratch / "run", scratch / "log"
    run.mkdir()
    done = save(run, log=log)
    assert done.returncode == 0 and saved_items(done.stdout) == ITEMS
    states = list(crash_states(log.read_text(), run, random.Random(1)))
    assert len(states) > 500
    runs = []
    for i, (tree, _, _) in enumerate(states):
        runs.append(scratch / f"state-{i}")
        materialize(tree, runs[-1])
    for path, result, (_, items, where) in zip(runs, check(runs), states, strict=True):
        assert_nothing_lost(path, result, items, where)
    assert any(sorted(result["steps"]) == FINAL_STEPS for result in check(runs[-5:]))
