"""Tests scripts/glyphs.py: the pictures of `make quickstart-images`, and the probe that judges a model's samples."""

import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import glyphs  # noqa: E402
from refusal import assert_refused


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPTS / "glyphs.py", *map(str, arguments)], capture_output=True, text=True)


def drawn(path, count, seed):
    done = run("draw", path, "--count", count, "--seed", seed)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glyphs")
    return drawn(folder / "train.tar", 1500, 1), drawn(folder / "held-out.tar", 200, 2)


def test_a_seed_gives_the_same_pictures_each_time_and_another_others(tars, tmp_path):
    again, other = drawn(tmp_path / "again.tar", 200, 2), drawn(tmp_path / "other.tar", 200, 3)
    assert again.read_bytes() == tars[1].read_bytes() != other.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tar"] == []


def test_digits_take_turns_in_bright_colors_on_a_dark_ground(tars):
    with tarfile.open(tars[1]) as tar:
        assert tar.getnames()[:12] == [f"{i % 10}/{i:05d}.png" for i in range(12)]
    pictures, labels = glyphs.read_tar(tars[1], 200)
    assert pictures.shape == (200, 32, 32, 3) and np.bincount(labels).tolist() == [20] * 10
    brightness = pictures.max(axis=3).reshape(200, -1)
    assert (brightness.max(axis=1) >= 0.79 * 255).all() and (np.median(brightness, axis=1) <= 0.21 * 255).all()
    assert (brightness > 0.5 * 255).mean(axis=1).min() > 0.08, "a digit fills its picture"
    assert len({tuple(picture[0, 0]) for picture in pictures}) > 180, "grounds differ"


def test_the_probe_knows_held_out_digits_and_is_not_fooled(tars):
    probe = glyphs.Probe(*glyphs.read_tar(tars[0], 1500))
    pictures, labels = glyphs.read_tar(tars[1], 200)
    assert probe.share_right(pictures, labels) >= 0.99
    assert probe.share_right(pictures, (labels + 1) % 10) <= 0.01
    assert probe.share_right(np.roll(255 - pictures, 1, axis=3), labels) >= 0.95, "in other colors, dark on bright"
    noise = np.random.default_rng(1).integers(0, 256, pictures.shape, dtype=np.uint8)
    assert probe.share_right(noise, labels) < 0.3
    assert probe.share_right(np.full_like(pictures, 40), labels) <= 0.15, "an empty picture is one class at most"


def test_the_command_judges_the_samples_of_an_npz(tars, tmp_path):
    pictures, labels = glyphs.read_tar(tars[1], 200)
    labels[:50] = (labels[:50] + 1) % 10
    np.savez(tmp_path / "samples.npz", arr_0=pictures, arr_1=labels)
    done = run("judge", *tars, tmp_path / "samples.npz")
    assert done.returncode == 0, done.stderr
    rows = {line[:18].strip(): float(line[18:].split("%")[0]) for line in done.stdout.splitlines()}
    assert rows.keys() == {"samples", "held-out pictures", "noise"}
    assert rows["samples"] == pytest.approx(75, abs=1) and rows["held-out pictures"] >= 99


def test_a_missing_font_or_file_is_one_line(tars, tmp_path):
    done = run("draw", tmp_path / "x.tar", "--count", 1, "--font", tmp_path / "none.ttf")
    assert_refused(done, 1, ["none.ttf", "fonts-dejavu-core"], begins="glyphs.py: ")
    assert list(tmp_path.iterdir()) == []
    done = run("judge", *tars, tmp_path / "none.npz")
    assert_refused(done, 1, "none.npz", begins="glyphs.py: ")
