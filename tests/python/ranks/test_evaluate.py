"""evaluate on several ranks, under any launcher, writes the same bytes as one process. A stopped evaluation
resumes on any number of ranks, and all ranks end together."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
import start
import tiny_language_run
import tiny_run
from needs import TASK_DATA, for_cpus, needs_program, needs_task_data, needs_torchrun
from rank_process import catches_sigterm, torchrun
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp("run"), "dtop_p", 512)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_language_run.TEXT * 12 + "Caf\u00e9s in 1984, antidisestablishmentarianism!")
    return path


# Batches of 512 tokens give several per task and four windows of the text, the last of them shorter.
BATCHES = ["--batch-size", "1", "--threads", "1"]
TASKS = ["tasks", "--data", TASK_DATA, *BATCHES, "--tasks"]


def written(run, folder, *arguments, launcher=(tiny_run.BINARY,)):
    """Returns all files that a command writes into `folder`, and its standard output."""
    folder.mkdir()
    dumps = ["--dump", folder / "dump.jsonl"] if "--data" in arguments and "--sweep-target" not in arguments else []
    done = start.run([*map(str, launcher), "evaluate", arguments[0], run, *map(str, arguments[1:]), "--output", folder / "results.json",
                      *dumps], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"standard output": done.stdout}


def expect_the_same(run, tmp_path, numbers, *arguments):
    alone = written(run, tmp_path / "alone", *arguments)
    assert len(alone) >= 2 and all(alone.values())
    for processes in numbers:
        assert written(run, tmp_path / str(processes), *arguments, "--processes", processes) == alone
    return alone


@needs_task_data
def test_tasks_have_the_same_bytes(run, tmp_path):
    alone = expect_the_same(run, tmp_path, (1, 2, 3), *TASKS, "copa,svamp", "--limit", "7")
    assert set(alone) == {"results.json", "dump.jsonl", "standard output"}
    items = [json.loads(line) for line in alone["dump.jsonl"].splitlines()]
    assert [(item["task"], item["index"]) for item in items] == [(task, n) for task in ("svamp", "copa") for n in range(7)]


def test_the_perplexity_of_a_text_has_the_same_bytes(run, text, tmp_path):
    expect_the_same(run, tmp_path, (3,), "text", *BATCHES, "--text", text, "--sweep-target", "2,4")


def test_the_perplexity_of_token_files_has_the_same_bytes(run, tmp_path):
    tiny_run.write_tokens(tmp_path / "tokens.npy", 1500, seed=4)
    expect_the_same(run, tmp_path, (2, 3), "text", *BATCHES, "--text", tmp_path / "tokens.npy", "--json")


def test_activations_have_the_same_bytes(run, text, tmp_path):
    expect_the_same(run, tmp_path, (3,), "experts", *BATCHES, "--text", text)


@needs_torchrun
def test_torchrun_starts_ranks(run, text, tmp_path):
    arguments = ["experts", *BATCHES, "--text", text]
    assert written(run, tmp_path / "ranks", *arguments, launcher=[*torchrun(), tiny_run.BINARY]) == written(run, tmp_path / "alone", *arguments)


LONG = [*TASKS, "copa,hellaswag", "--limit", "100"]


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    return written(run, tmp_path_factory.mktemp("whole") / "all", *LONG)


def started(run, folder, *options):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen([tiny_run.BINARY, "evaluate", LONG[0], run, *map(str, LONG[1:]), "--output", folder / "results.json", "--dump",
                             folder / "dump.jsonl", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process, path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def ranks_of(launcher):
    """The process ids of the launcher's ranks, in order."""
    children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    return [int(number) for number in children.split()]


def finish(run, folder, whole, *options):
    """Resumes to the end. The output equals that of a run that was never stopped."""
    process = started(run, folder, *options)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors.count("copa: finished by an earlier run") == 1, errors
    assert {path.name: path.read_bytes() for path in folder.iterdir()} | {"standard output": output} == whole


@needs_task_data
@pytest.mark.parametrize("before, after, whom", [
    (["--processes=3"], ["--processes=2"], "rank 1"),
    *tiny_run.in_full(([], ["--processes=2"], "launcher"), (["--processes=2"], [], "launcher"))])
def test_a_stopped_evaluation_goes_on_with_another_number_of_ranks(run, whole, tmp_path, before, after, whom):
    process = started(run, tmp_path, *before)
    wait_for(process, tmp_path / "results.json.parts/copa.jsonl")
    os.kill(process.pid if whom == "launcher" else ranks_of(process)[1], signal.SIGTERM)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 75 and output == "", errors
    assert errors.count("stopped in hellaswag after 1 finished tasks") == 1, errors
    finish(run, tmp_path, whole, *after)


@needs_task_data
@pytest.mark.parametrize("victim", [0, *tiny_run.in_full(1)])
def test_a_killed_rank_ends_all_and_finished_tasks_stay(run, whole, tmp_path, victim):
    process = started(run, tmp_path, "--processes=2")
    wait_for(process, tmp_path / "results.json.parts/copa.jsonl")
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    begin = time.monotonic()
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 5 and output == "" and time.monotonic() - begin < 10
    lines = [line for line in errors.splitlines() if "rank " in line]
    assert len(lines) == 1 and lines[0].startswith(f"dtopp: error: rank {victim} was killed by signal 9 (Killed), on "), lines
    assert "evaluating" in lines[0]
    finish(run, tmp_path, whole)


def is_ready_to_stop(process):
    """Whether the process has become a rank that handles SIGTERM: its command line has no --processes."""
    return b"--processes" not in pathlib.Path(f"/proc/{process}/cmdline").read_bytes() and catches_sigterm(process)


def test_a_stopped_perplexity_ends_all_with_75(run, text):
    process = subprocess.Popen([tiny_run.BINARY, "evaluate", "text", run, *BATCHES, "--text", text, "--processes", "2"],
                               stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while (len(ranks_of(process)) < 2 or not is_ready_to_stop(ranks_of(process)[1])) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(ranks_of(process)[1], signal.SIGTERM)
    errors = process.stderr.read()
    assert process.wait(timeout=20) == 75, errors
    assert errors.count("stopped before") == 1, errors


def test_ranks_with_other_work_are_refused(run, text):
    port = 20000 + (os.getpid() + 7) % 20000
    ranks = []
    for rank in range(2):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen([tiny_run.BINARY, "evaluate", "text", run, "--text", text,
                                       "--batch-size", str(rank + 1)], env=environment, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    for rank, error in zip(ranks, errors):
        assert rank.returncode == 2 and "rank 1 would not measure the same as rank 0" in "".join(errors), errors


@pytest.mark.parametrize("options, names", [
    (["tasks", "--data", "/nowhere", "--dry-run"], "--processes"),
    (["tasks", "--tasks", "copaa", "--data", "/nowhere"], ["copaa", "copa?"]),
    (["text"], "--text"),
    (["tasks", "--data", "/nowhere", "--sweep-target", "2,3", "--paper"], "--sweep-target"),
])
def test_wrong_calls_are_refused_before_ranks_start(run, options, names):
    assert_refused(tiny_run.dtopp("evaluate", options[0], run, *options[1:], "--processes", "2"), 2, names)
