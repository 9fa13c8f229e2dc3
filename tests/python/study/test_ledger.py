"""A study and its ledger through the program: without folders, after a kill, in parts, blind, and beside another study."""

import json
import re
import shutil
import signal
import subprocess
import time

import pytest
import tiny_run
from refusal import assert_refused
from tiny_study import STUDY, results, write_study

PLANNED = STUDY + """\
ledger: ledger.json
compare:
  - {{name: methods, of: top-k, less: dtop-p, measure: val/loss, margin: 1, family: endpoints}}
"""


def rows(directory):
    return {row["run"]: row for row in json.loads((directory / "ledger.json").read_text())["runs"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, dtopp_binary):
    directory = tmp_path_factory.mktemp("ledger")
    study = write_study(directory, PLANNED)
    done = tiny_run.dtopp("study", study, "--slots", 2)
    assert done.returncode == 0, done.stderr
    return directory, study, done


def test_row_holds_the_values_and_the_machine(finished):
    directory, _, _ = finished
    document = results(directory)
    for run in document["runs"]:
        row = rows(directory)[f"{run['variant']}-seed{run['seed']}"]
        assert row["values"] == run["values"] and row["config_hash"] == run["config_hash"]
        assert row["steps"] == 12 and row["tokens"] == 12 * 128
        assert row["made_by"]["device"].startswith("the CPU") and row["made_by"]["cpu"] and "build" in row["made_by"]["version"]


def test_ledger_alone_gives_the_same_table_and_trains_nothing(finished, tmp_path):
    directory, study, first = finished
    output = tmp_path / "elsewhere"
    done = tiny_run.dtopp("study", study, f"output={output}")
    assert (done.returncode, done.stdout) == (0, first.stdout), done.stderr
    assert not (output / "runs").exists()
    assert (output / "table.md").read_text() == (directory / "out/table.md").read_text()
    assert json.loads((output / "study.json").read_text())["compare"] == results(directory)["compare"]


def test_changed_configuration_is_trained_again_and_the_old_row_is_kept(finished, tmp_path):
    directory, study, _ = finished
    ledger = tmp_path / "copy.json"
    shutil.copy(directory / "ledger.json", ledger)
    done = tiny_run.dtopp("study", study, f"ledger={ledger}", f"output={tmp_path / 'out'}", "seeds=[1]", "variants=[top-k]",
                          "variants.top-k.optimizer.lr=2e-3")
    assert done.returncode == 0, done.stderr
    document = json.loads(ledger.read_text())
    assert len(document["runs"]) == 6
    assert [row["run"] for row in document["earlier"]] == ["top-k-seed1"]
    assert [path.name for path in (tmp_path / "out/runs").iterdir()] == ["top-k-seed1"]


def test_killed_study_resumes_from_its_ledger_without_the_folders(tmp_path, dtopp_binary):
    study = write_study(tmp_path, PLANNED)
    killed = subprocess.Popen([tiny_run.BINARY, "study", study], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 180
    while not (tmp_path / "ledger.json").exists() or len(rows(tmp_path)) < 2:
        assert time.monotonic() < end and killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    known = rows(tmp_path)
    shutil.rmtree(tmp_path / "out")
    done = tiny_run.dtopp("study", study, "--slots", 2)
    assert done.returncode == 0, done.stderr
    assert len(rows(tmp_path)) == 6
    trained = {path.name for path in (tmp_path / "out/runs").iterdir()}
    assert trained == set(rows(tmp_path)) - set(known)
    for name, row in known.items():
        assert rows(tmp_path)[name] == row


def test_hours_end_the_study_between_runs(tmp_path, dtopp_binary):
    study = write_study(tmp_path, PLANNED)
    done = tiny_run.dtopp("study", study, "--hours", "1e-9")
    assert done.returncode == 0, done.stderr
    assert "0 of 6 runs done" in done.stderr.splitlines()[-1] and "--hours" in done.stderr
    assert not (tmp_path / "ledger.json").exists()


def test_blind_prints_no_mean_and_writes_no_table(finished, tmp_path):
    _, study, _ = finished
    done = tiny_run.dtopp("study", study, "--blind", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"methods: n 3, standard deviation of the paired differences [0-9.e-]+\n", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    plain = write_study(tmp_path)
    assert_refused(tiny_run.dtopp("study", plain, "--blind"), 2, "--blind")


def test_two_studies_share_the_correction_of_a_family(finished, tmp_path):
    directory, study, alone = finished
    other = directory / "other.yaml"
    other.write_text(study.read_text().replace("name: methods", "name: missing").replace("ledger.json", "none.json")
                     .replace(str(directory / "out"), str(tmp_path / "none")))
    done = tiny_run.dtopp("study", study, "--together", other)
    assert done.returncode == 0, done.stderr
    both = {row["name"]: row for row in results(directory)["compare"]}
    assert set(both) == {"methods", "missing"}
    assert both["methods"]["p_holm"] == pytest.approx(min(1, 2 * both["methods"]["p"]))
    assert both["missing"]["p"] is None and both["missing"]["note"] == "no seed is complete"


def test_damaged_ledger_ends_with_3_before_any_run(tmp_path, dtopp_binary):
    study = write_study(tmp_path, PLANNED)
    (tmp_path / "ledger.json").write_text('{"runs": [')
    assert_refused(tiny_run.dtopp("study", study), 3, tmp_path / "ledger.json")
    assert not (tmp_path / "out/runs").exists()
