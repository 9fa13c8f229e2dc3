"""Runs whose processes are killed at random moments end with the bytes of runs that were never killed."""

import tiny_run
from needs import for_cpus, needs_program, needs_shim
from random_kills import kill_runs

KILLS = 10_000 if tiny_run.FULL else 100

pytestmark = [needs_program, for_cpus, needs_shim]


def test_killed_runs_end_with_the_same_bytes():
    total = kill_runs(seed=0, kills=KILLS, jobs=6)
    assert not total.failures, total
    phases = {phase for phase in ("start", "step", "save", "validation") if total.counts[f"during {phase}"] == 0}
    assert not phases, total
