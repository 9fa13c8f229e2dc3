"""A rank that dies or cannot write in the middle of a save leaves the last checkpoint complete."""

import errno
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
import tiny_run
from needs import for_cpus, needs_program

BUILD = Path(os.environ.get("DTOPP_BUILD", tiny_run.ROOT / "build/release"))
SHIM = BUILD / "lib" / "libfault_shim.so"
OVERRIDES = ["training.micro_batch_size=1", "training.steps=6", "checkpoint.every=1"]

pytestmark = [needs_program, for_cpus, pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built: make test")]


def files(run, step):
    folder = run / "checkpoints" / f"step-{step:08d}"
    # config.yaml contains the run's folder, and manifest.json its checksum.
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("config.yaml", "manifest.json")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES)


def train(reference, run, port, faults):
    """The run on two ranks, each started separately. `faults` gives fault_shim's settings by rank."""
    ranks = []
    for rank in range(2):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if rank in faults:
            environment |= {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(run / "checkpoints")}
            environment |= {f"FAULT_{key.upper()}": str(value) for key, value in faults[rank].items()}
        command = [tiny_run.BINARY, "train", reference / "run.yaml", *OVERRIDES, f"output={run}"]
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    return [rank.returncode for rank in ranks], errors


def goes_on(reference, run):
    """The run resumes on one rank, from a newest checkpoint that is complete, and ends with the same bits."""
    done = tiny_run.dtopp("train", reference / "run.yaml", *OVERRIDES, f"output={run}")
    assert done.returncode == 0, done.stderr
    assert "passed over" not in done.stderr
    assert files(run, 6) == files(reference / "run", 6)
    assert not list((run / "checkpoints").glob(".tmp-*"))


PORT = 22000 + os.getpid() % 20000
# Calls of rank 0 in six saves, and of rank 1, which opens, writes, syncs and closes one file per save.
MOMENTS = [(0, at) for at in random.Random(1).sample(range(3, 150), 4)] + [(1, at) for at in random.Random(2).sample(range(2, 24), 4)]


@pytest.mark.parametrize(("victim", "at"), MOMENTS)
def test_a_rank_killed_while_it_saves_leaves_the_last_checkpoint_whole(reference, tmp_path, victim, at):
    run, fired = tmp_path / "run", tmp_path / "fired"
    status, errors = train(reference, run, PORT + at, {victim: {"mode": "kill", "at": at, "fired": fired}})
    assert fired.exists(), errors
    assert status[victim] == -signal.SIGKILL
    assert status[1 - victim] == 5, errors
    goes_on(reference, run)


@pytest.mark.parametrize(("victim", "at"), [(0, 70), (1, 12)])
def test_a_rank_whose_disk_is_full_ends_all_with_its_own_line(reference, tmp_path, victim, at):
    run, fired = tmp_path / "run", tmp_path / "fired"
    status, errors = train(reference, run, PORT + 200 + victim, {victim: {"mode": "forever", "errno": errno.ENOSPC, "at": at, "fired": fired}})
    assert fired.exists(), errors
    assert status[victim] == 3
    assert "No space left on device" in errors[victim].splitlines()[-1]
    assert status[1 - victim] == 5
    assert f"rank {victim} " in errors[1 - victim].splitlines()[-1]
    goes_on(reference, run)
