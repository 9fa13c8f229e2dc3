"""If output cannot be printed, every command ends with status 3 and one line. A closed console does not stop
training."""

import errno
import os
import subprocess

import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A trained run, its configuration and a text."""
    folder = tmp_path_factory.mktemp("streams")
    done = tiny_run.dtopp("train", tiny_run.make(folder), "training.steps=4")
    assert done.returncode == 0, done.stderr
    (folder / "a.txt").write_text("It is a truth universally acknowledged.")
    return folder


def arguments_of(verb, place, tmp_path):
    return {
        "plan": ["plan", place / "run.yaml"],
        "plan --json": ["plan", place / "run.yaml", "--json"],
        "train": ["train", place / "run.yaml", "training.steps=4", f"output={tmp_path}/run"],
        "evaluate": ["evaluate", "text", place / "run", "--text", place / "validation.npy"],
        "prepare": ["prepare", "text", place / "a.txt", "--tokenizer", TOKENIZER, "--output", tmp_path / "out"],
        "tokenize": ["tokenize", "--tokenizer", TOKENIZER],
        "help": ["--help"],
        "help of a verb": ["train", "--help"],
        "version": ["--version"],
    }[verb]


def run(arguments, **options):
    return subprocess.run([tiny_run.BINARY, *map(str, arguments)], text=True, input="a line\n", timeout=120,
                          **{"stderr": subprocess.PIPE} | options)


def refuses(done, error):
    assert_refused(done, 3, ["standard output: ", os.strerror(error)], alone=False)


@pytest.mark.parametrize("verb", ["plan", "plan --json", "train", "evaluate", "prepare", "tokenize", "help",
                                  "help of a verb", "version"])
def test_a_full_disk_exits_3(verb, place, tmp_path):
    with open("/dev/full", "w") as full:
        refuses(run(arguments_of(verb, place, tmp_path), stdout=full), errno.ENOSPC)


@pytest.mark.parametrize("verb", ["plan", "train", "tokenize"])
def test_a_reader_that_has_gone_exits_3(verb, place, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        refuses(run(arguments_of(verb, place, tmp_path), stdout=writer), errno.EPIPE)
    finally:
        os.close(writer)


@pytest.mark.parametrize("verb", ["plan", "train", "tokenize"])
def test_a_closed_standard_output_exits_3_and_no_file_takes_its_place(verb, place, tmp_path):
    done = run(arguments_of(verb, place, tmp_path), preexec_fn=lambda: os.close(1))
    refuses(done, errno.EBADF)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert not any(word in path.read_bytes() for word in (b"checkpoint  ", b"documents  ")), path


def test_a_console_that_went_away_stops_no_training(place, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(arguments_of("train", place, tmp_path), stdout=subprocess.PIPE, stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert "step-00000004" in done.stdout


def test_a_closed_standard_input_is_no_text(place, tmp_path):
    done = subprocess.run([tiny_run.BINARY, *map(str, arguments_of("tokenize", place, tmp_path))], text=True,
                          capture_output=True, preexec_fn=lambda: os.close(0))
    assert_refused(done, 3, "standard input")
    assert done.stdout == ""
