"""Ranks that are killed, stopped or fail end the whole run. Its last checkpoint is complete, and the run
resumes from it."""

import fcntl
import os
import random
import re
import shutil
import signal
import socket
import time

import pytest
import start
import tiny_run
from needs import for_cpus, needs_program
from rank_process import OVERRIDES, STEPS, Process, command, free_port

CASES = 30 if tiny_run.FULL else 2  # random moments
LATEST = 60  # seconds until a run ends by itself; longer on a busy machine than parallel.timeout

pytestmark = [needs_program, for_cpus]

# Data files in each rank's working directory.
BESIDE = ["data.train=[train.npy]", "data.validation=[]"]
LONG = ["training.steps=1000000", "checkpoint.every=0", "logging.every=50", "logging.console_every=50"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES)


def naming_a_rank(lines):
    return [line for line in lines if re.search(r"\brank \d", line)]


def start_ranks(commands, folders=None, on_one_host=True):
    """Starts ranks without a launcher that would report their ends. Rank r has its own command and working
    directory."""
    port = free_port()
    ranks = []
    for rank, arguments in enumerate(commands):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1",
                                    "MASTER_PORT": str(port)}
        if on_one_host:
            environment |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(commands))}
        ranks.append(Process(arguments, env=environment, cwd=folders[rank] if folders else None))
    return ranks


@pytest.mark.parametrize("victim, how", [
    (0, signal.SIGKILL), (1, signal.SIGSTOP), *tiny_run.in_full((0, signal.SIGSTOP), (1, signal.SIGKILL))])
def test_the_launcher_names_a_rank_that_is_killed_or_stopped(reference, tmp_path, victim, how):
    launcher = Process(command(reference, tmp_path / "run", "--processes", 2, *LONG))
    launcher.wait_for("step 50")
    os.kill(launcher.ranks()[victim], how)
    status, lines = launcher.end(timeout=LATEST)
    assert status == 5
    named = naming_a_rank(lines)
    assert len(named) == 1, lines
    assert named[0].startswith(f"dtopp: error: rank {victim} ") and f"on {socket.gethostname()} at step " in named[0]
    assert ("killed by signal 9" if how == signal.SIGKILL else "silent for 2 s") in named[0]
    assert re.search(r"(waiting in|after) \w+", named[0])


@pytest.mark.parametrize("victim", [0, 1])
def test_the_collective_of_a_rank_that_is_stopped_while_saving_is_named(reference, tmp_path, victim):
    """Its own last message is older than the collectives of the save."""
    run = tmp_path / "run"
    launcher = Process(command(reference, run, "--processes", 2, *LONG, "checkpoint.every=1", "checkpoint.keep=1",
                               "checkpoint.asynchronous=false"))
    launcher.wait_for("step 50")
    rank = launcher.ranks()[victim]
    while not any(name.startswith(".tmp-step-") for name in os.listdir(run / "checkpoints")):
        pass
    os.kill(rank, signal.SIGSTOP)
    status, lines = launcher.end(timeout=LATEST)
    assert status == 5
    named = naming_a_rank(lines)
    assert len(named) == 1, lines
    assert re.search(rf"rank {victim} on \S+ (saving )?at step \d+, .*, while others wait in \w+$", named[0]), named


@pytest.mark.parametrize("victim, how, on_one_host", [
    (2, signal.SIGKILL, False), (0, signal.SIGSTOP, True),
    *tiny_run.in_full((0, signal.SIGKILL, True), (2, signal.SIGSTOP, True))])
def test_without_a_launcher_each_surviving_rank_names_the_lost_one(reference, tmp_path, victim, how, on_one_host):
    ranks = start_ranks([command(reference, tmp_path / "run", *LONG)] * 3, on_one_host=on_one_host)
    ranks[0].wait_for("step 50")
    os.kill(ranks[victim].pid, how)
    for rank, process in enumerate(ranks):
        if rank == victim:
            continue
        status, lines = process.end(timeout=LATEST)
        assert status == 5
        named = naming_a_rank(lines)
        assert len(named) == 1, lines
        assert named[0].startswith(f"dtopp: error: rank {victim} on {socket.gethostname()} at step ")
    ranks[victim].process.kill()
    ranks[victim].process.wait()


def test_a_rank_with_an_error_of_its_own_gives_it_and_the_others_name_the_rank(reference, tmp_path):
    """Rank 1 reads damaged data."""
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        shutil.copytree(reference, folder, ignore=shutil.ignore_patterns("run"))
    (folders[1] / "train.npy").write_bytes(b"\x93NUMPY\x01\x00")
    ranks = start_ranks([command(reference, tmp_path / "run", *BESIDE)] * 2, folders)
    status, lines = ranks[1].end(timeout=LATEST)
    assert status == 3 and len(lines) == 1 and "train.npy" in lines[0], lines
    status, lines = ranks[0].end(timeout=LATEST)
    assert status == 5
    assert len(naming_a_rank(lines)) == 1 and "rank 1 on" in lines[-1], lines
    assert "ended with status 3" in lines[-1] and "train.npy" in lines[-1]
    assert not (tmp_path / "run").exists()


def test_ranks_with_unlike_copies_of_a_checkpoint_end(reference, tmp_path):
    """Each rank has a copy of the data and the run in its own folder."""
    folders = [tmp_path / str(rank) for rank in range(2)]
    options = [*BESIDE, "training.steps=6", "checkpoint.every=2", "checkpoint.keep=0"]
    train = command(reference, "run", *options)
    for folder, seed in zip(folders, (3, 4), strict=True):
        shutil.copytree(reference, folder, ignore=shutil.ignore_patterns("run"))
        status, lines = Process([*train, f"training.seed={seed}"], cwd=folder).end(timeout=60)
        assert status == 0, lines
        shutil.rmtree(folder / "run/checkpoints/step-00000006")
    ranks = start_ranks([train] * 2, folders)
    ends = [rank.end(timeout=LATEST) for rank in ranks]
    assert [status for status, _ in ends] == [4, 4], ends
    errors = [line for _, lines in ends for line in lines if "error:" in line]
    assert len(errors) == 1 and "rank 1 has another run/checkpoints/step-00000004" in errors[0], ends
    shutil.rmtree(folders[1] / "run")
    shutil.copytree(folders[0] / "run", folders[1] / "run")
    ends = [rank.end(timeout=LATEST) for rank in start_ranks([train] * 2, folders)]
    assert [status for status, _ in ends] == [0, 0], ends


def test_the_launcher_leaves_the_error_of_a_rank_to_the_rank(reference, tmp_path):
    """Rank 0 finds the directory locked."""
    run = tmp_path / "run"
    run.mkdir()
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        status, lines = Process(command(reference, run, "--processes", 2)).end(timeout=LATEST)
    assert status == 2, lines
    assert len(lines) == 1 and lines[0].startswith("dtopp: error: ") and str(run) in lines[0], lines


@pytest.mark.parametrize("options, status, word", [
    (["model.num_experts=16", "parallel.expert_parallel=16"], 2, "parallel.expert_parallel"),
    (["training.micro_batch_size=4"], 2, "training.global_batch_size"),
    (["data.train=[missing.npy]"], 3, "missing.npy"),
    (["model.ffn_hidden_size=10000000"], 5, "of memory"),
    (["training.initialize_from=missing"], 2, "missing")], ids=lambda value: value[-1] if isinstance(value, list) else "")
def test_an_error_that_all_ranks_share_is_one_line(reference, tmp_path, options, status, word):
    ended, lines = Process(command(reference, tmp_path / "run", "--processes", 2, *options)).end(timeout=LATEST)
    assert ended == status, lines
    assert len(lines) == 1 and lines[0].startswith("dtopp: error: ") and word in lines[0], lines
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what, status, word", [("data", 3, "train.npy"), ("configuration", 2, "training.seed"),
                                                ("program", 2, "another dtopp")])
def test_rank_0_prints_how_ranks_differ_before_the_first_step(reference, tmp_path, what, status, word):
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        shutil.copytree(reference, folder, ignore=shutil.ignore_patterns("run"))
    if what == "data":  # one id in the middle
        changed = bytearray((folders[1] / "train.npy").read_bytes())
        changed[len(changed) // 2 & ~1] ^= 1
        (folders[1] / "train.npy").write_bytes(changed)
    binary = tiny_run.BINARY
    if what == "program":
        build = tmp_path / "build"
        (build / "bin").mkdir(parents=True)
        (build / "lib").symlink_to(tiny_run.BINARY.parent.parent / "lib")
        binary = build / "bin/dtopp"
        binary.write_bytes(tiny_run.BINARY.read_bytes() + b"another build")
        binary.chmod(0o755)
    commands = [command(reference, tmp_path / "run", *BESIDE) for _ in range(2)]
    commands[1][0] = str(binary)
    if what == "configuration":
        commands[1].append("training.seed=1")
    ranks = start_ranks(commands, folders)
    ends = [process.end(timeout=LATEST) for process in ranks]
    assert [end[0] for end in ends] == [status] * 2, ends
    assert ends[1][1] == [], ends
    assert len(ends[0][1]) == 1 and "rank 1 " in ends[0][1][0] and word in ends[0][1][0], ends
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options, status, word", [
    (["data.train=[missing.npy]"], 3, "missing.npy"),  # after the ranks have joined
    (["model.num_layers=nine"], 2, "model.num_layers"),  # before they join
    (["parallel.expert_parallel=2", "model.num_experts=7"], 2, "expert_parallel")])
def test_an_error_of_all_ranks_is_printed_once(reference, tmp_path, options, status, word):
    ranks = start_ranks([command(reference, tmp_path / "run", *options)] * 2)
    ends = [process.end(timeout=LATEST) for process in ranks]
    assert [end[0] for end in ends] == [status] * 2, ends
    lines = [line for end in ends for line in end[1]]
    assert len(lines) == 1 and lines[0].startswith("dtopp: error: ") and word in lines[0], ends
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("whom", ["launcher", "all twice", *tiny_run.in_full("rank 0", "rank 1")])
def test_a_request_to_stop_saves_once_and_ends_all(reference, tmp_path, whom):
    """scancel signals every process, and the launcher forwards the signal it receives itself."""
    launcher = Process(command(reference, tmp_path / "run", "--processes", 2, *LONG))
    launcher.wait_for("step 50")
    ranks = launcher.ranks()
    if whom == "all twice":
        for process in [*ranks, launcher.pid, *ranks]:
            os.kill(process, signal.SIGTERM)
    else:
        os.kill(launcher.pid if whom == "launcher" else ranks[int(whom[-1])], signal.SIGTERM)
    status, lines = launcher.end(timeout=LATEST)
    assert status == 75, lines
    assert len([line for line in lines if "stopped at step" in line]) == 1
    assert not naming_a_rank(lines)
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1


def expect_to_go_on(reference, run):
    """The remaining checkpoint is complete. The resumed run ends with the bits of an uninterrupted run."""
    done = start.run(command(reference, run), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(run, STEPS) == tiny_run.state(reference / "run", STEPS)


@pytest.mark.parametrize("case", range(CASES))
def test_a_loss_at_any_moment_leaves_a_run_that_goes_on(reference, tmp_path, case):
    """Every other step is saved, so half of the moments fall into a save."""
    dice = random.Random(case)
    run = tmp_path / "run"
    launcher = Process(command(reference, run, "--processes", 2, "checkpoint.every=2", "checkpoint.keep=2"))
    launcher.wait_for(f"step {dice.randrange(1, STEPS - 20)}/")
    time.sleep(dice.random() * 0.1)
    victims = [launcher.pid, *launcher.ranks()]
    victim = dice.choice(victims)
    try:
        os.kill(victim, signal.SIGKILL)
        status, lines = launcher.end(timeout=LATEST)
        assert status == (-signal.SIGKILL if victim == launcher.pid else 5), lines
    except ProcessLookupError:
        pass  # it had already ended
    end = time.monotonic() + LATEST
    while any(os.path.exists(f"/proc/{rank}") for rank in victims[1:]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(os.path.exists(f"/proc/{rank}") for rank in victims[1:])
    expect_to_go_on(reference, run)
