"""A checkpoint that is written while training continues has the bytes of one for which training waits. After any
failure the last complete one stands."""

import errno
import itertools
import json
import os
import random
import resource
import signal
import time

import pytest
import tiny_diffusion_run
import tiny_run
from needs import SHIM, for_cpus, needs_program, needs_shim
from rank_process import Process
from refusal import assert_refused

OVERRIDES = ["training.steps=6", "checkpoint.every=1", "validation.every=0"]
BACKGROUND = "checkpoint.asynchronous=true"

pytestmark = [needs_program, for_cpus, needs_shim]


def files(run):
    """The bytes of all checkpoints without config.yaml, whose key differs, and the manifest with its checksum."""
    return {str(path.relative_to(run)): path.read_bytes() for path in run.glob("checkpoints/*/*")
            if path.name not in ("config.yaml", "manifest.json")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES, "checkpoint.asynchronous=false")


def faulty(reference, run, *overrides, **fault):
    """Starts the run with fault_shim's settings."""
    environment = os.environ | {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(run / "checkpoints")}
    environment |= {f"FAULT_{key.upper()}": str(value) for key, value in fault.items()}
    command = [tiny_run.BINARY, "train", reference / "run.yaml", *OVERRIDES, BACKGROUND, f"output={run}", *overrides]
    return Process(list(map(str, command)), env=environment)


def assert_goes_on(reference, run):
    done = tiny_run.dtopp("train", reference / "run.yaml", *OVERRIDES, BACKGROUND, f"output={run}")
    assert done.returncode == 0 and "passed over" not in done.stderr, done.stderr
    assert files(run) == files(reference / "run")
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(reference / "run"))
    assert not list((run / "checkpoints").glob(".tmp-*"))


@pytest.mark.parametrize("ranks", [1, 2, *tiny_run.in_full(4)])
@pytest.mark.parametrize("make, method", [(tiny_run.make, "adamw"), (tiny_run.make, "muon"), (tiny_diffusion_run.make, "adamw")],
                         ids=["language", "muon", "with an average"])
def test_the_bytes_are_those_of_a_save_at_once(tmp_path, make, method, ranks):
    config = make(tmp_path)
    options = [*OVERRIDES, f"optimizer.method={method}", "validation.every=2", "training.micro_batch_size=1", "--processes", ranks]
    for asynchronous in ("true", "false"):
        done = tiny_run.dtopp("train", config, *options, f"checkpoint.asynchronous={asynchronous}", f"output={tmp_path}/{asynchronous}")
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("true/checkpoints/*"))) == 6
    assert files(tmp_path / "true") == files(tmp_path / "false")
    assert tiny_run.timeless(tiny_run.metrics(tmp_path / "true")) == tiny_run.timeless(tiny_run.metrics(tmp_path / "false"))


def test_training_waits_for_a_slow_disk_when_the_next_checkpoint_is_due(reference, tmp_path):
    """No checkpoint is left out."""
    status, lines = faulty(reference, tmp_path / "run", mode="slow", at=1, milliseconds=25).end(timeout=60)
    assert status == 0, lines
    assert len([line for line in lines if line.startswith("dtopp: warning: ") and "checkpoint.every" in line]) == 1, lines
    assert files(tmp_path / "run") == files(reference / "run")
    times = [line for line in tiny_run.metrics(tmp_path / "run") if "checkpoint/stall_seconds" in line]
    assert all(0 < line["checkpoint/stall_seconds"] < line["checkpoint/write_seconds"] + 1 for line in times)
    assert len(times) >= 3 and max(line["checkpoint/write_seconds"] for line in times) > 1


def test_training_continues_while_a_slow_disk_writes(reference, tmp_path):
    run = tmp_path / "run"
    training = faulty(reference, run, "checkpoint.every=2", mode="slow", at=1, milliseconds=30)
    training.wait_for("step 4/")  # the checkpoint of step 2 takes more than a second
    assert not (run / "checkpoints/step-00000002").exists()
    status, lines = training.end(timeout=60)
    assert status == 0, lines
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-{step:08d}" for step in (2, 4, 6)]


def test_a_request_to_stop_abandons_the_save_of_an_older_step(reference, tmp_path):
    run = tmp_path / "run"
    training = faulty(reference, run, "checkpoint.every=500", "training.steps=1000000", mode="slow", at=1, milliseconds=50)
    training.wait_for("step 500/")
    while not list(run.glob("checkpoints/.tmp-*")):
        time.sleep(0.001)
    training.process.send_signal(signal.SIGTERM)
    status, lines = training.end(timeout=60)
    assert status == 75, lines
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert int(checkpoint.name.removeprefix("step-")) > 500
    assert str(checkpoint) in lines[-1]


@pytest.mark.parametrize("at", [1, 30, 75])
def test_a_full_disk_ends_the_run_at_the_next_step(reference, tmp_path, at):
    run, fired = tmp_path / "run", tmp_path / "fired"
    status, lines = faulty(reference, run, mode="forever", errno=errno.ENOSPC, at=at, fired=fired).end(timeout=60)
    assert fired.exists(), lines
    assert status == 3 and "No space left on device" in lines[-1] and str(run) in lines[-1], lines
    assert_goes_on(reference, run)


@pytest.mark.parametrize("at", random.Random(1).sample(range(1, 140), 12 if tiny_run.FULL else 4))
def test_killed_in_a_background_save(reference, tmp_path, at):
    run, fired = tmp_path / "run", tmp_path / "fired"
    status, lines = faulty(reference, run, mode="kill", at=at, fired=fired).end(timeout=60)
    assert fired.exists() and status == -signal.SIGKILL, lines
    assert_goes_on(reference, run)


@pytest.mark.skipif(not tiny_run.FULL, reason="searches the address space with ten runs: make nightly")
def test_training_waits_for_its_saves_where_a_snapshot_does_not_fit(tmp_path):
    config = tiny_run.make(tmp_path)
    options = [config, "model.hidden_size=256", "model.ffn_hidden_size=512", "model.num_experts=12", "training.steps=2",
               "optimizer.warmup_steps=0", "checkpoint.every=1", "validation.every=0"]
    figures = json.loads(tiny_run.dtopp("plan", *options, "--json").stdout)
    total, snapshot = figures["memory_bytes"]["total"], figures["checkpoint_snapshot_bytes"]
    assert snapshot > 100e6

    runs = map(str, itertools.count())

    def train(limit, asynchronous):
        return tiny_run.dtopp("train", *options, f"checkpoint.asynchronous={asynchronous}", f"output={tmp_path / next(runs)}",
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    # Finds address space that suffices for the run, but not for the run and its snapshot.
    too_little, enough = total, total + (16 << 30)
    while enough - too_little > snapshot // 2:
        limit = (too_little + enough) // 2
        done = train(limit, "auto")
        assert done.returncode in (0, 5), done.stderr
        too_little, enough = (limit, enough) if done.returncode else (too_little, limit)
    line = "training waits while checkpoints are written"
    done = train(enough, "auto")
    assert done.returncode == 0 and done.stderr.count(line) == 1, done.stderr
    assert_refused(train(enough, "true"), 5, ["checkpoint.asynchronous"], alone=False)
    assert line not in train(enough + snapshot, "auto").stderr
