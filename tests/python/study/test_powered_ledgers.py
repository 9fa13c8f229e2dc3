"""The recorded runs of the powered study belong to its files as they are: a key whose default changes must not make them void."""

import pytest
import tiny_run
from needs import needs_program

pytestmark = needs_program

LEDGERS = sorted((tiny_run.ROOT / "benchmarks/studies/powered").glob("*.json"))


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
def test_no_recorded_run_would_train_again(ledger, tmp_path):
    done = tiny_run.dtopp("study", tiny_run.ROOT / f"configs/studies/powered/{ledger.stem}.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[1:]
    status = [line.split()[1] for line in table[:next(i for i, line in enumerate(table) if line.startswith("total"))]]
    assert status and set(status) == {"done"}
