"""A run on several ranks, under any launcher, equals the run on one to the bit, and all ranks end together."""

import os
import signal
import subprocess
import time

import pytest
import tiny_run
import torch
from needs import for_cpus, needs_program, needs_torchrun
from rank_process import free_port, torchrun
from refusal import assert_refused


pytestmark = [needs_program, for_cpus]

OVERRIDES = ["training.micro_batch_size=1"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES)


def train(reference, run, *options):
    return ["train", reference / "run.yaml", *OVERRIDES, f"output={run}", *options]


def expect_the_same(run, reference):
    assert tiny_run.state(run, 12) == tiny_run.state(reference / "run", 12)
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(reference / "run"))


@pytest.mark.parametrize("processes, expert_parallel", [(2, 1), (4, 2), *tiny_run.in_full((1, 1), (2, 2), (4, 1), (4, 4))])
def test_processes_give_the_same_bits(reference, tmp_path, processes, expert_parallel):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run", "--processes", processes,
                                 f"parallel.expert_parallel={expert_parallel}"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("checkpoint ") == 1
    expect_the_same(tmp_path / "run", reference)


def test_a_run_goes_on_with_any_ranks_and_blocks(reference, tmp_path):
    run, grids = tmp_path / "run", [(4, 4), (1, 1), (4, 2), (3, 1), *tiny_run.in_full((2, 2), (2, 1))]
    for (processes, expert_parallel), done_steps in zip(grids, [*range(2, 2 * len(grids), 2), 12]):
        # The run is stopped as if by a signal: a run of fewer steps would have another schedule.
        with started([*train(reference, run, "--processes", processes,
                             f"parallel.expert_parallel={expert_parallel}")]) as process:
            if done_steps < 12:
                wait_for_step(process, done_steps)
                process.send_signal(signal.SIGTERM)
            stderr = process.stderr.read()
        assert process.returncode in (0, 75), stderr
    expect_the_same(run, reference)


def test_auto_shares_no_experts_where_memory_suffices(reference, tmp_path):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run", "--processes", 2, "parallel.expert_parallel=auto"))
    assert done.returncode == 0, done.stderr
    expect_the_same(tmp_path / "run", reference)


@pytest.mark.parametrize("processes, expert_parallel", [(4, 3), (1, 2), (2, 4)])
def test_blocks_that_do_not_divide_are_refused(reference, tmp_path, processes, expert_parallel):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run", "--processes", processes,
                                 f"parallel.expert_parallel={expert_parallel}"))
    assert done.returncode == 2
    assert "parallel.expert_parallel" in done.stderr  # another rank may report that it cannot reach this one
    assert not (tmp_path / "run").exists()


@needs_torchrun
def test_torchrun_starts_ranks(reference, tmp_path):
    done = subprocess.run([*torchrun(), tiny_run.BINARY, *train(reference, tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expect_the_same(tmp_path / "run", reference)


@needs_torchrun
def test_torchrun_starts_ranks_of_two_nodes(reference, tmp_path):
    port = free_port()
    nodes = [subprocess.Popen([*torchrun("--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", port=port),
                               tiny_run.BINARY, *train(reference, tmp_path / "run")], stderr=subprocess.PIPE, text=True)
             for node in (0, 1)]
    for node in nodes:
        _, error = node.communicate(timeout=120)
        assert node.returncode == 0, error
    expect_the_same(tmp_path / "run", reference)


def started(command):
    return subprocess.Popen([tiny_run.BINARY, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)


def wait_for_step(process, step):
    for line in process.stderr:
        if line.startswith("step") and int(line.split()[1].split("/")[0]) >= step:
            return
    raise AssertionError("ended before that step")


def ranks_of(launcher):
    """The process ids of the launcher's ranks, in order."""
    path = f"/proc/{launcher.pid}/task/{launcher.pid}/children"
    with open(path) as children:
        return [int(number) for number in children.read().split()]


@pytest.mark.parametrize("whom", ["launcher", "rank 1"])
def test_a_stopped_run_goes_on_with_another_number_of_ranks(reference, tmp_path, whom):
    run = tmp_path / "run"
    process = started(train(reference, run, "--processes", 2))
    wait_for_step(process, 3)
    os.kill(process.pid if whom == "launcher" else ranks_of(process)[1], signal.SIGTERM)
    error = process.stderr.read()
    assert process.wait(timeout=20) == 75, error
    assert error.count("stopped at step") == 1
    done = tiny_run.dtopp(*train(reference, run, "--processes", 4))
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(run, 12) == tiny_run.state(reference / "run", 12)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_which_goes_on_from_its_checkpoint(reference, tmp_path, victim):
    run = tmp_path / "run"
    process = started(train(reference, run, "--processes", 2))
    wait_for_step(process, 6)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    begin = time.monotonic()
    error = process.stderr.read()
    assert process.wait(timeout=20) == 5
    assert time.monotonic() - begin < 10
    lines = [line for line in error.splitlines() if "rank " in line]
    assert len(lines) == 1 and lines[0].startswith(f"dtopp: error: rank {victim} was killed by signal 9 (Killed), on "), lines
    done = tiny_run.dtopp(*train(reference, run))
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(run, 12) == tiny_run.state(reference / "run", 12)


def test_a_launcher_that_is_killed_takes_its_ranks_along(reference, tmp_path):
    process = started(train(reference, tmp_path / "run", "--processes", 2))
    wait_for_step(process, 2)
    ranks = ranks_of(process)
    process.kill()
    process.wait()
    end = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{rank}") for rank in ranks) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(os.path.exists(f"/proc/{rank}") for rank in ranks)


@pytest.mark.parametrize("environment, word", [
    ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, "RANK"),
    ({"RANK": "0"}, "WORLD_SIZE"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
    ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "MASTER_ADDR"),
])
def test_variables_that_contradict_each_other_are_named(reference, tmp_path, environment, word):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run"), env=os.environ | environment)
    assert_refused(done, 2, word)
    assert not (tmp_path / "run").exists()


def test_ranks_without_work_are_refused(reference, tmp_path):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run", "--processes", 5))
    assert_refused(done, 2, "training.global_batch_size", alone=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_ranks_without_a_cuda_device_are_refused(reference, tmp_path):
    done = tiny_run.dtopp(*train(reference, tmp_path / "run", "training.device=cuda", "--processes", 2))
    assert_refused(done, 2, "training.device: cuda", alone=False)


def test_another_configuration_on_one_rank_is_found(reference, tmp_path):
    port = 20000 + os.getpid() % 12000  # below those that the system gives to connections
    ranks = []
    for rank in range(2):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen([tiny_run.BINARY, *map(str, train(reference, tmp_path / "run")),
                                       f"training.seed={rank + 1}"], env=environment, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert ranks[1].returncode == 2, errors
    assert "another configuration" in "".join(errors)
