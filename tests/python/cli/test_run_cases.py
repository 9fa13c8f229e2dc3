"""Tests scripts/run_cases.py: a case that crashes or hangs affects no other case."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/run_cases.py"
CASES = """
import os, signal, time
import pytest

def test_first(): pass
def test_dies(): os.kill(os.getpid(), signal.SIGSEGV)
def test_between(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_fails(n): assert n == 2
def test_hangs(): time.sleep(60)
@pytest.mark.skip
def test_skipped(): pass
def test_last(): open("last", "w")
"""


def run(folder, *arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_what_is_lost_is_named_and_all_else_runs(tmp_path):
    (tmp_path / "test_cases.py").write_text(CASES)
    done = run(tmp_path, "--limit", "3", "test_cases.py")
    assert done.returncode == 1
    assert done.stdout.split("\n")[-5:-1] == [
        "5 of 8 cases passed or were skipped", "test_cases.py::test_dies killed its process with SIGSEGV",
        "test_cases.py::test_fails[1] failed", "test_cases.py::test_hangs took longer than 3 s"], done.stdout
    assert (tmp_path / "last").exists()


def test_what_passes_ends_with_0(tmp_path):
    (tmp_path / "test_cases.py").write_text("def test_one(): pass\n")
    done = run(tmp_path, "test_cases.py")
    assert done.returncode == 0 and done.stdout.endswith("1 of 1 cases passed or were skipped\n"), done


def test_what_cannot_be_collected_is_said(tmp_path):
    (tmp_path / "test_cases.py").write_text("import nothing_there\n")
    done = run(tmp_path, "test_cases.py")
    assert done.returncode == 1 and "cannot collect" in done.stderr and "nothing_there" in done.stderr, done
