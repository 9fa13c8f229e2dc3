"""A run folder with random damage never leads to a crash, a hang or a wrong result.

Each seed damages a copy of a small run, and then resumes, evaluates and reports it. A failure names its seed, which
determines the damage. `make nightly` tries 2,000."""

import json
import os
import random
import re
import shutil

import pytest
import tiny_run
from manifests import sealed, xxh3_128
from needs import for_cpus, needs_program
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]

CASES = 2000 if tiny_run.FULL else 20
STATUSES = (2, 3, 4, 5, 6)
HUGE = ["1e308", "99999999999999999999", "-1", "9223372036854775807", "0", "0.5", "null", '"a"', "[]", "[[[[1]]]]", "1e-400"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with other seeds: their folder of data and configuration, `run` and `other`. `run` lacks its last
    checkpoint, so that it resumes. Also the states and losses that it leads to."""
    folder = tmp_path_factory.mktemp("runs")
    config = tiny_run.make(folder)
    for overrides in ([], ["training.seed=4", f"output={folder}/other"]):
        done = tiny_run.dtopp("train", config, *overrides)
        assert done.returncode == 0, done.stderr
    final = tiny_run.state(folder / "run", 12)
    losses = [evaluate(folder, folder / f"run/checkpoints/step-{step:08d}").stdout for step in (4, 8)]
    assert all(losses)
    shutil.rmtree(folder / "run/checkpoints/step-00000012")
    return folder, final, losses


def evaluate(folder, run):
    return tiny_run.dtopp("evaluate", "text", run, "--text", folder / "validation.npy", "--threads", 1, "--json")


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and os.access(path, os.R_OK))


def change_number(draw, text):
    """The text with one of its numbers, or of its checksums, replaced."""
    numbers = list(re.finditer(rb"(?<![\w.-])-?\d[\d.e+-]*|\b[0-9a-f]{32}\b", text))
    if not numbers:
        return text + b"1"
    chosen = draw.choice(numbers)
    return text[: chosen.start()] + draw.choice(HUGE).encode() + text[chosen.end() :]


def change_bytes(draw, data):
    """The data with one of the changes that a disk, an editor or a person makes."""
    place = draw.randrange(len(data) + 1)
    lines = data.splitlines(keepends=True)
    return draw.choice([
        lambda: data[:place],
        lambda: b"",
        lambda: data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :],
        lambda: data + data,
        lambda: data[:place] + bytes(draw.randrange(1, 4096)) + data[place:],
        lambda: b"".join(draw.sample(lines, len(lines))),
        lambda: b"".join(line for line in lines if draw.random() < 0.8),
        lambda: change_number(draw, data),
        lambda: change_number(draw, data),
        lambda: b"[" * 100_000 + b"]" * 100_000,
    ])()


def reseal(checkpoint):
    """Gives the checkpoint a manifest that its files match, as a forger would."""
    files = {path.name: {"size": path.stat().st_size, "xxh3_128": xxh3_128(path.read_bytes())}
             for path in files_of(checkpoint) if path.name != "manifest.json"}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in files.items())
    text = f'{{\n  "format": "dtopp checkpoint 1",\n  "files": {{\n{lines}\n  }},\n'
    (checkpoint / "manifest.json").write_text(sealed(text))


def damage(draw, folder):
    """Changes one to three things in folder/run. Returns what it did, and whether a checkpoint's manifest matches a
    changed file, which no reader can detect."""
    run, did, resealed = folder / "run", [], False
    for _ in range(draw.choice([1, 1, 2, 3])):
        files = files_of(run)
        path = draw.choice(files)
        how = draw.choice(["bytes"] * 6 + ["swap", "other run", "gone", "folder", "pipe", "link", "rename", "unreadable"])
        did.append(f"{how} {path.relative_to(run)}")
        if how == "bytes":
            path.write_bytes(change_bytes(draw, path.read_bytes()))
        elif how == "swap":
            second = draw.choice(files)
            mine, theirs = path.read_bytes(), second.read_bytes()
            path.write_bytes(theirs), second.write_bytes(mine)
        elif how == "other run":
            theirs = folder / "other" / path.relative_to(run)
            path.write_bytes(theirs.read_bytes() if theirs.exists() else b"")
        elif how == "rename":
            checkpoint = draw.choice(sorted((run / "checkpoints").iterdir()))
            name = draw.choice(["step-00000011", "step-99999999", "step-00000000", "old"])
            if not checkpoint.with_name(name).exists():
                checkpoint.rename(checkpoint.with_name(name))
            continue
        else:
            path.unlink()
            if how == "folder":
                path.mkdir()
            elif how == "pipe":
                os.mkfifo(path)
            elif how == "link":
                path.symlink_to(draw.choice([path.name, "/dev/zero", "/nowhere"]))
            elif how == "unreadable":
                path.touch(mode=0)
        in_checkpoint = path.parent.parent.name == "checkpoints" and path.name != "manifest.json"
        if in_checkpoint and draw.random() < 0.3 and (path.parent / "manifest.json").is_file():
            reseal(path.parent)
            resealed = True
            did.append("resealed")
    return did, resealed


def expect_clean_end(done, did):
    """The status is 0 or a documented one with one line on standard error."""
    if done.returncode == 0:
        return True
    assert done.returncode in STATUSES, (did, done.returncode, done.stderr)
    assert_refused(done, done.returncode, alone=False)
    return False


def copy(folder, to):
    for part in ("run", "other"):
        shutil.copytree(folder / part, to / part)
    return to


@pytest.mark.parametrize("seed", range(CASES))
def test_damage_is_refused_or_harmless(runs, tmp_path, seed):
    folder, final, losses = runs
    copy(folder, tmp_path)
    did, resealed = damage(random.Random(seed), tmp_path)
    run = tmp_path / "run"

    reported = tiny_run.dtopp("report", run, "--output", tmp_path / "report.html")
    if expect_clean_end(reported, did):
        assert (tmp_path / "report.html").stat().st_size > 1000, did

    evaluated = evaluate(folder, run)
    if expect_clean_end(evaluated, did) and not resealed:
        assert evaluated.stdout in losses, did

    resumed = tiny_run.dtopp("train", folder / "run.yaml", f"output={run}")
    if expect_clean_end(resumed, did) and not resealed:
        assert tiny_run.state(run, 12) == final, did


def test_an_undamaged_copy_resumes_to_the_same_bytes(runs, tmp_path):
    folder, final, losses = runs
    run = copy(folder, tmp_path) / "run"
    assert evaluate(folder, run).stdout == losses[1]
    resumed = tiny_run.dtopp("train", folder / "run.yaml", f"output={run}")
    assert resumed.returncode == 0, resumed.stderr
    assert tiny_run.state(run, 12) == final
