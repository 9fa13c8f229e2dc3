"""Runs a study of two variants of the tiny run through the program: its output, a stop and resume, a failing variant, bad input, and
its ledger: without folders, after a kill, in parts, blind, and beside another study."""

import csv
import json
import pathlib
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import tiny_run
from refusal import assert_refused
from report_browser import browser, open_page  # noqa: F401  fixtures
from safetensors.numpy import load_file
from scipy import stats

STUDY = """\
base: run.yaml
seeds: [1, 2, 3]
variants:
  top-k: {{routing.method: top_k, routing.experts: 3}}
  dtop-p: {{routing.method: dtop_p}}
measure: [val/loss, train/lm_loss]
output: {output}
"""


def write_study(directory, text=STUDY):
    tiny_run.make(directory)
    path = directory / "study.yaml"
    path.write_text(text.format(output=directory / "out"))
    return path


def results(directory):
    return json.loads((directory / "out/study.json").read_text())


def run_of(document, variant, seed, **grid):
    return next(run for run in document["runs"] if (run["variant"], run["seed"], run["grid"]) == (variant, seed, grid))


SLOW = ("training.steps=100000", "checkpoint.every=2000", "validation.every=0", "measure=[train/loss]")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, dtopp_binary):
    directory = tmp_path_factory.mktemp("study")
    done = tiny_run.dtopp("study", write_study(directory), "--slots", 2)
    assert done.returncode == 0, done.stderr
    return directory, done


def test_values_are_those_of_the_runs(finished):
    directory, _ = finished
    document = results(directory)
    assert len(document["runs"]) == 6
    for run in document["runs"]:
        assert run["status"] == "done"
        assert pathlib.Path(run["path"]) == directory / f"out/runs/{run['variant']}-seed{run['seed']}"
        lines = tiny_run.metrics(run["path"])
        losses = [line["train/lm_loss"] for line in lines if "train/lm_loss" in line]
        assert run["values"]["val/loss"] == [line["val/loss"] for line in lines if "val/loss" in line][-1]
        assert run["values"]["train/lm_loss"] == np.mean(losses[-max(1, len(losses) // 10):])


def test_table_is_what_scipy_makes_of_the_values(finished):
    directory, _ = finished
    document = results(directory)
    values = {variant: np.array([run_of(document, variant, seed)["values"]["val/loss"] for seed in (1, 2, 3)])
              for variant in ("top-k", "dtop-p")}
    rows = {row["variant"]: row for row in document["table"]}
    for variant, row in rows.items():
        low, high = stats.t.interval(0.95, 2, values[variant].mean(), stats.sem(values[variant]))
        assert row["n"] == 3
        assert row["values"]["val/loss"]["mean"] == pytest.approx(values[variant].mean(), rel=1e-12)
        assert row["values"]["val/loss"]["half_width"] == pytest.approx((high - low) / 2, rel=1e-9)
    assert rows["top-k"]["difference"] is None
    test = stats.ttest_rel(values["dtop-p"], values["top-k"])
    low, high = test.confidence_interval()
    difference = rows["dtop-p"]["difference"]["val/loss"]
    assert difference["mean"] == pytest.approx((values["dtop-p"] - values["top-k"]).mean(), rel=1e-9)
    assert difference["half_width"] == pytest.approx((high - low) / 2, rel=1e-6)
    assert difference["p"] == difference["p_holm"] == pytest.approx(test.pvalue, rel=1e-6)


def test_tables_hold_the_same_numbers(finished):
    directory, done = finished
    assert done.stdout == (directory / "out/table.md").read_text()
    document = results(directory)
    rows = list(csv.DictReader((directory / "out/table.csv").open()))
    assert [row["variant"] for row in rows] == ["top-k", "dtop-p"]
    for text, row in zip(rows, document["table"]):
        assert float(text["val/loss mean"]) == row["values"]["val/loss"]["mean"]
        assert float(text["val/loss half_width"]) == row["values"]["val/loss"]["half_width"]
    assert rows[0]["val/loss difference"] == ""
    assert float(rows[1]["val/loss difference_p"]) == document["table"][1]["difference"]["val/loss"]["p"]
    latex = (directory / "out/table.tex").read_text()
    assert latex.startswith("\\begin{tabular}") and latex.count("\\\\\n") == 3


def test_curves_are_means_over_seeds_at_equal_cost(finished):
    directory, _ = finished
    curves = {(one["variant"], one["measure"], one["axis"]): one for one in json.loads((directory / "out/curves.json").read_text())["curves"]}
    assert len(curves) == 2 * 2 * 3
    runs = [tiny_run.metrics(directory / f"out/runs/dtop-p-seed{seed}") for seed in (1, 2, 3)]
    losses = np.array([[line["train/lm_loss"] for line in lines if "train/lm_loss" in line] for lines in runs])
    curve = curves["dtop-p", "train/lm_loss", "tokens"]
    assert curve["n"] == 3 and curve["x"] == [128 * step for step in range(1, 13)]
    np.testing.assert_allclose(curve["mean"], losses.mean(0), rtol=1e-12)
    np.testing.assert_allclose(curve["half_width"], stats.sem(losses) * stats.t.ppf(0.975, 2), rtol=1e-9)
    # FLOPs per token for each step's number of experts, between the plan's figures for 3 and 4.
    three, four = (json.loads(tiny_run.dtopp("plan", directory / "run.yaml", "--json", f"routing.experts={target}").stdout)
                   ["flops_per_token"] for target in (3, 4))
    active = [[line["moe/active_experts"] for line in lines if "train/loss" in line] for lines in runs]
    last = [sum(128 * (three + (four - three) * (a - 3)) for a in experts) for experts in active]
    assert curves["dtop-p", "train/lm_loss", "active_flops"]["x"][-1] == pytest.approx(min(last), rel=1e-9)
    assert curves["top-k", "val/loss", "active_flops"]["x"][-1] == pytest.approx(12 * 128 * three)
    seconds = [sum(128 / line["throughput/tokens_per_second"] for line in lines if "train/loss" in line) for lines in runs]
    assert curves["dtop-p", "val/loss", "seconds"]["x"][-1] == pytest.approx(min(seconds))


def test_report_draws_the_runs_and_their_curves(finished, open_page):
    directory, _ = finished
    document = results(directory)
    curves = json.loads((directory / "out/curves.json").read_text())["curves"]
    page = open_page(directory / "out/report.html")
    charts = page.evaluate("dtoppReport.charts()")
    runs = next(chart for chart in charts if chart["title"] == "Validation loss")["series"]
    assert sorted(line["y"][-1] for line in runs) == pytest.approx(sorted(run["values"]["val/loss"] for run in document["runs"]))
    by_tokens = next(chart for chart in charts if chart["title"] == "val/loss over seeds" and chart["x_label"] == "tokens")
    for line, variant in zip(by_tokens["series"], ("top-k", "dtop-p")):
        curve = next(one for one in curves if (one["variant"], one["measure"], one["axis"]) == (variant, "val/loss", "tokens"))
        assert line["name"] == f"{variant}, mean of 3 seeds" and line["x"] == curve["x"]
        assert line["y"] == pytest.approx(curve["mean"]) and line["half_width"] == pytest.approx(curve["half_width"])
    rows = page.locator("#compared table").first.locator("tbody tr")
    assert [rows.nth(i).locator("th").text_content() for i in (0, 1)] == ["top-k", "dtop-p"]


def test_again_starts_nothing_and_a_changed_study_what_is_new(finished):
    directory, _ = finished
    before = {run["path"]: (pathlib.Path(run["path"]) / "metrics.jsonl").stat().st_mtime_ns for run in results(directory)["runs"]}
    more = STUDY.replace("measure:", "  dense: {{model.num_experts: 1}}\nmeasure:")
    done = tiny_run.dtopp("study", write_study(directory, more), "seeds=[1, 2]")
    assert done.returncode == 0, done.stderr
    document = results(directory)
    assert len(document["runs"]) == 6 and {run["status"] for run in document["runs"]} == {"done"}
    for path, time_before in before.items():
        assert (pathlib.Path(path) / "metrics.jsonl").stat().st_mtime_ns == time_before
    assert {row["variant"]: row["n"] for row in document["table"]} == {"top-k": 2, "dtop-p": 2, "dense": 2}
    p = [document["table"][i]["difference"]["val/loss"] for i in (1, 2)]
    smaller, larger = sorted(p, key=lambda one: one["p"])
    assert smaller["p_holm"] == pytest.approx(min(1, 2 * smaller["p"]))
    assert larger["p_holm"] == pytest.approx(max(min(1, 2 * smaller["p"]), larger["p"]))


def test_variants_of_a_seed_begin_with_the_same_values(tmp_path, dtopp_binary):
    """A step at the rate 1e-30 leaves float32 values at their initial draw."""
    text = STUDY.replace("{{routing.method: dtop_p}}", "{{routing.method: dtop_p, model.num_experts: 16}}")
    done = tiny_run.dtopp("study", write_study(tmp_path, text), "seeds=[1, 2]", "training.steps=1", "optimizer.lr=1.0e-30",
                          "optimizer.min_lr=0.0", "optimizer.warmup_steps=0", "checkpoint.every=0")
    assert done.returncode == 0, done.stderr
    document = results(tmp_path)

    def initial(variant, seed):
        return load_file(pathlib.Path(run_of(document, variant, seed)["path"]) / "checkpoints/step-00000001/model.safetensors")

    first, wide, other = initial("top-k", 1), initial("dtop-p", 1), initial("top-k", 2)
    fitting = [name for name in first if name in wide and first[name].shape == wide[name].shape]
    assert {"model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"} <= set(fitting)
    assert "model.layers.0.mlp.gate.weight" not in fitting
    for name in fitting:
        np.testing.assert_array_equal(first[name], wide[name])
    assert not np.array_equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_failing_variant_is_reported_and_the_others_go_on(tmp_path, dtopp_binary):
    text = STUDY.replace("[1, 2, 3]", "[1]").replace("measure:", "  broken: {{data.train: [{output}/none.npy]}}\nmeasure:")
    done = tiny_run.dtopp("study", write_study(tmp_path, text))
    assert_refused(done, 6, ["1 of 3 runs", "broken-seed1"], alone=False)
    document = results(tmp_path)
    assert [run["status"] for run in document["runs"]] == ["done", "done", "failed"]
    failed = run_of(document, "broken", 1)
    assert "none.npy" in failed["cause"] and failed["values"]["val/loss"] is None
    broken = document["table"][2]
    assert broken["n"] == 0 and broken["values"]["val/loss"]["mean"] is None and "no run is done" in broken["notes"]
    one = document["table"][1]
    assert one["difference"]["val/loss"]["mean"] is not None
    assert one["values"]["val/loss"]["half_width"] is one["difference"]["val/loss"]["p"] is None


def start_slow(directory):
    study = subprocess.Popen([tiny_run.BINARY, "study", write_study(directory), "--slots", "2", *SLOW],
                             stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    metrics = [directory / f"out/runs/{variant}-seed1/metrics.jsonl" for variant in ("top-k", "dtop-p")]
    end = time.monotonic() + 180
    while not all(path.exists() and path.stat().st_size > 0 for path in metrics):
        assert time.monotonic() < end and study.poll() is None
        time.sleep(0.05)
    return study, metrics


def last_step(path):
    return json.loads(path.read_text().rsplit("\n", 2)[-2])["step"]


def test_sigterm_saves_the_runs_and_the_next_start_goes_on(tmp_path, dtopp_binary):
    study, metrics = start_slow(tmp_path)
    study.send_signal(signal.SIGTERM)
    stderr = study.communicate(timeout=180)[1]
    assert study.returncode == 75
    assert stderr.splitlines()[-1].startswith("dtopp: ") and "0 of 6 runs" in stderr.splitlines()[-1]
    assert {run["status"] for run in results(tmp_path)["runs"]} == {"pending"}
    stopped = [last_step(path) for path in metrics]
    for path, step in zip(metrics, stopped):
        assert (path.parent / "checkpoints" / f"step-{step:08d}").is_dir()
    # The same configuration: the runs resume from there and end at the next stop.
    again, _ = start_slow(tmp_path)
    end = time.monotonic() + 180
    while any(last_step(path) <= step for path, step in zip(metrics, stopped)):
        assert time.monotonic() < end
        time.sleep(0.05)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=180)
    assert again.returncode == 75
    for path in metrics:
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == list(range(1, len(steps) + 1))


def test_killed_study_leaves_no_run_behind(tmp_path, dtopp_binary):
    study, metrics = start_slow(tmp_path)
    study.kill()
    study.communicate(timeout=180)
    time.sleep(0.5)
    sizes = [path.stat().st_size for path in metrics]
    time.sleep(0.5)
    assert [path.stat().st_size for path in metrics] == sizes


@pytest.mark.parametrize("change, names", [
    ("{routing.methd: top_k}", ["'routing.methd'", "routing.method?"]),
    ("{routing.method: topk}", "routing.method: "),
    ("{model.num_heads: 5}", "model.num_heads"),
])
def test_impossible_variant_ends_with_2_before_any_run(tmp_path, dtopp_binary, change, names):
    study = write_study(tmp_path)
    study.write_text(study.read_text().replace("{routing.method: dtop_p}", change))
    done = tiny_run.dtopp("study", study)
    assert_refused(done, 2, names)
    assert f"{study}:5: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_dry_run_says_what_it_costs_and_writes_nothing(tmp_path, dtopp_binary):
    study = write_study(tmp_path)
    done = tiny_run.dtopp("study", study, "--dry-run", "training.steps=1000")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 6 + 2
    assert not (tmp_path / "out").exists()
    plan = json.loads(tiny_run.dtopp("plan", tmp_path / "run.yaml", "--json", "training.steps=1000").stdout)
    # Validations before the first step, every 5 steps and after the last one; 256 tokens, at a third of the
    # FLOPs.
    tokens = 1000 * plan["tokens_per_step"] + 201 * 256 / 3
    name, status, steps, flops, hours = lines[1].split()
    assert (name, status, steps) == ("top-k-seed1", "pending", "1000")
    assert float(flops.removesuffix("G")) == pytest.approx(tokens * plan["flops_per_token"] / 1e9, rel=5e-3)
    assert float(hours) > 0
    assert float(lines[7].split()[-1]) == pytest.approx(6 * float(hours), rel=0.02)


def test_one_study_at_a_time(tmp_path, dtopp_binary):
    study, _ = start_slow(tmp_path)
    second = tiny_run.dtopp("study", tmp_path / "study.yaml", *SLOW)
    study.send_signal(signal.SIGTERM)
    study.communicate(timeout=180)
    assert_refused(second, 2, tmp_path / "out")


def test_commands_after_a_run_give_measures(tmp_path, dtopp_binary):
    text = STUDY.replace("[1, 2, 3]", "[1]").replace("[val/loss, train/lm_loss]", "[val/loss, record/seconds]") + """\
after:
  page: dtopp report {{run}} --output {{run}}/page.html
  record: cp {{run}}/study-run.json {{result}}
"""
    study = write_study(tmp_path, text)
    done = tiny_run.dtopp("study", study)
    assert done.returncode == 0, done.stderr
    run = run_of(results(tmp_path), "dtop-p", 1)
    assert 0 < run["values"]["record/seconds"] == pytest.approx(run["seconds"])
    page = pathlib.Path(run["path"]) / "page.html"
    written = page.stat().st_mtime_ns
    done = tiny_run.dtopp("study", study)
    assert done.returncode == 0, done.stderr
    assert page.stat().st_mtime_ns == written


def test_results_that_cannot_be_written_end_the_study_after_its_runs(tmp_path):
    """A command after the first run turns study.json into a folder."""
    jam = tmp_path / "jam.sh"
    jam.write_text("rm -rf $1 && mkdir $1\n")
    text = STUDY + f"after:\n  jam: sh {jam} {tmp_path}/out/study.json\n"
    done = tiny_run.dtopp("study", write_study(tmp_path, text), "seeds=[1]")
    assert_refused(done, 3, tmp_path / "out/study.json", alone=False)
    for variant in ("top-k", "dtop-p"):
        assert (tmp_path / f"out/runs/{variant}-seed1/checkpoints/step-00000012/manifest.json").exists()


PLANNED = STUDY + """\
ledger: ledger.json
compare:
  - {{name: methods, of: top-k, less: dtop-p, measure: val/loss, margin: 1, family: endpoints}}
"""


def rows(directory):
    return {row["run"]: row for row in json.loads((directory / "ledger.json").read_text())["runs"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, dtopp_binary):
    directory = tmp_path_factory.mktemp("ledger")
    study = write_study(directory, PLANNED)
    done = tiny_run.dtopp("study", study, "--slots", 2)
    assert done.returncode == 0, done.stderr
    return directory, study, done


def test_row_holds_the_values_and_the_machine(recorded):
    directory, _, _ = recorded
    document = results(directory)
    for run in document["runs"]:
        row = rows(directory)[f"{run['variant']}-seed{run['seed']}"]
        assert row["values"] == run["values"] and row["config_hash"] == run["config_hash"]
        assert row["steps"] == 12 and row["tokens"] == 12 * 128
        assert row["made_by"]["device"].startswith("the CPU") and row["made_by"]["cpu"] and "build" in row["made_by"]["version"]


def test_ledger_alone_gives_the_same_table_and_trains_nothing(recorded, tmp_path):
    directory, study, first = recorded
    output = tmp_path / "elsewhere"
    done = tiny_run.dtopp("study", study, f"output={output}")
    assert (done.returncode, done.stdout) == (0, first.stdout), done.stderr
    assert not (output / "runs").exists()
    assert (output / "table.md").read_text() == (directory / "out/table.md").read_text()
    assert json.loads((output / "study.json").read_text())["compare"] == results(directory)["compare"]


def test_changed_configuration_is_trained_again_and_the_old_row_is_kept(recorded, tmp_path):
    directory, study, _ = recorded
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


def test_blind_prints_no_mean_and_writes_no_table(recorded, tmp_path):
    _, study, _ = recorded
    done = tiny_run.dtopp("study", study, "--blind", f"output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"methods: n 3, standard deviation of the paired differences [0-9.e-]+\n", done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    plain = write_study(tmp_path)
    assert_refused(tiny_run.dtopp("study", plain, "--blind"), 2, "--blind")


def test_two_studies_share_the_correction_of_a_family(recorded, tmp_path):
    directory, study, alone = recorded
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
