"""Runs whose processes are killed at random moments end with the bytes of a run that was never killed."""

import pytest
import tiny_run
from needs import for_cpus, needs_program, needs_shim
from random_kills import KilledRuns, scratch

RUNS = 2200 if tiny_run.FULL else 6  # of about 4.5 kills, each a second of a core

pytestmark = [needs_program, for_cpus, needs_shim]


@pytest.fixture(scope="module")
def runs():
    with scratch() as folder:
        yield KilledRuns(folder)


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_killed_run_ends_with_the_same_bytes(runs, seed):
    runs.kill_run(seed)
