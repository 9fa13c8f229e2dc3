"""Conditions of tests. A skipped test names the command that would let it run."""

import os

import pytest
from tiny_run import BINARY, DEVICE, ROOT

DATA = ROOT / os.environ.get("DTOPP_DATA", "../shared")
# The 13 tasks: below DTOPP_DATA, or as scripts/get_data.py stores them.
TASK_DATA = DATA / "eval/data" if (DATA / "eval/data").is_dir() else ROOT / "data/eval"
# Makes system calls fail (tests/faults).
SHIM = BINARY.parents[1] / "lib/libfault_shim.so"
TORCHRUN = ROOT / ".venv/bin/torchrun"

needs_program = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built: make build")
needs_task_data = pytest.mark.skipif(not TASK_DATA.is_dir(), reason=f"{TASK_DATA} is missing: scripts/get_data.py tasks")
needs_shim = pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built: make test")
needs_torchrun = pytest.mark.skipif(not TORCHRUN.exists(), reason=f"{TORCHRUN} is missing: scripts/setup.sh test")
for_cpus = pytest.mark.skipif(DEVICE != "cpu", reason=f"for CPUs, and DTOPP_DEVICE is {DEVICE}")
