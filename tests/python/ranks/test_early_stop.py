"""A request to stop before the first step ends the run, with nothing left behind."""

import json
import os
import shutil
import signal
import time

import pytest
import tiny_run
from manifests import write_manifest
from needs import for_cpus, needs_program
from rank_process import OVERRIDES, STEPS, Process, catches_sigterm, command, free_port

pytestmark = [needs_program, for_cpus]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("reference"), *OVERRIDES)


def make_hole(path):
    """Makes a file that takes more than a minute to hash and almost no disk space. Returns its entry in a manifest."""
    path.touch()
    os.truncate(path, 1 << 38)
    return {path.name: {"size": 1 << 38, "xxh3_128": "0" * 32}}


def request_to_stop_early(process, count=1, whom=None):
    """Signals the process or its rank `whom`, once `count` ranks, or the process itself, catch the signal."""
    end = time.monotonic() + 60
    while sum(map(catches_sigterm, process.ranks() if count > 1 else [process.pid])) < count:
        assert time.monotonic() < end and process.process.poll() is None, process.lines
        time.sleep(0.01)
    time.sleep(1)
    os.kill(process.pid if whom is None else process.ranks()[whom], signal.SIGTERM)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_to_stop_ends_the_wait_for_other_ranks(reference, tmp_path, rank):
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                "MASTER_PORT": str(free_port())}
    waiting = Process(command(reference, tmp_path / "run"), env=environment)
    request_to_stop_early(waiting)
    status, lines = waiting.end(timeout=5)
    assert status == 75 and len(lines) == (rank == 0), lines
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["data without a manifest", "data of one rank", "data of two ranks",
                                  "data of two ranks, of which rank 1 stops", "a text", "a folder of images"])
def test_a_request_to_stop_ends_the_reading_of_inputs(reference, tmp_path, what):
    data = tmp_path / "data"
    data.mkdir()
    large = data / ("large.npy" if what.startswith("data") else "large.txt")
    write_manifest(data, "dtopp token data 2", files=make_hole(large))
    if what == "a text":
        arguments = ["prepare", "text", large, "--tokenizer", tiny_run.ROOT / "assets/tokenizer/english-4k.tokenizer.json"]
    elif what == "a folder of images":
        for depth in range(15):  # 4^15 paths; Linux follows at most 40 links of one
            folder = tmp_path / f"images{depth}"
            folder.mkdir()
            for name in "abcd":
                (folder / name).symlink_to(tmp_path / f"images{depth + 1}")
        (tmp_path / "images15").mkdir()
        arguments = ["prepare", "images", tmp_path / "images0"]
    if what.startswith("data"):
        arguments = command(reference, tmp_path / "run", f"data.train=[{large if 'without' in what else data}]")
        arguments += ["--processes", "2"] if "two ranks" in what else []
    else:
        arguments = [tiny_run.BINARY, *arguments, "--output", tmp_path / "run"]
    reading = Process(list(map(str, arguments)))
    request_to_stop_early(reading, count=2 if "two ranks" in what else 1, whom=1 if "rank 1" in what else None)
    status, lines = reading.end(timeout=5)
    assert status == 75 and len(lines) == 1 and "stopped before anything was written" in lines[0], lines
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_request_to_stop_ends_the_reading_of_a_checkpoint(reference, tmp_path, verb):
    shutil.copytree(reference, tmp_path / "copy")
    run = tmp_path / "copy/run"
    checkpoint = run / f"checkpoints/step-{STEPS:08d}"
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    write_manifest(checkpoint, "dtopp checkpoint 1", files=files | make_hole(checkpoint / "zero.txt"))
    before = contents_without_holes(run)
    arguments = command(reference, run) if verb == "train" else [tiny_run.BINARY, "evaluate", "text", run, "--text",
                                                                 reference / "validation.npy"]
    reading = Process(list(map(str, arguments)))
    request_to_stop_early(reading)
    status, lines = reading.end(timeout=5)
    assert status == 75 and len(lines) == 1 and "stopped before anything was written" in lines[0], lines
    assert contents_without_holes(run) == before


def contents_without_holes(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 1 << 38}


def test_a_request_to_stop_ends_the_reading_of_the_text_to_evaluate(reference, tmp_path):
    write_manifest(tmp_path, "dtopp token data 2", files=make_hole(tmp_path / "large.npy"))
    reading = Process([tiny_run.BINARY, "evaluate", "text", reference / "run", "--text", tmp_path])
    request_to_stop_early(reading)
    status, lines = reading.end(timeout=5)
    assert status == 75 and len(lines) == 1 and "stopped before anything was written" in lines[0], lines
