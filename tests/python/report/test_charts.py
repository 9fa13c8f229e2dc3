"""Tests `dtopp report`: the charts and texts of its page against the metrics.jsonl it was made from."""

import json
import math

import pytest
import report_runs
import tiny_run
from needs import needs_program
from PIL import Image
from report_browser import browser, open_page, wait_until  # noqa: F401  fixtures
from report_runs import charts_of, report, same, series_of, write_run

pytestmark = needs_program


CHARTS = {
    "Training loss": "train/lm_loss", "Validation loss": "val/loss", "Gradient norm": "train/grad_norm",
    "Learning rate": "train/lr",
    "Active experts per token": "moe/active_experts", "Threshold p": "moe/threshold", "Imbalance": "moe/imbalance",
    "Dead experts": "moe/dead_experts", "Speed": "throughput/tokens_per_second", "Memory": "memory/resident_bytes",
    "Model FLOPs utilization": "throughput/mfu", "Waiting": "throughput/data_share",
    "All terms, as differentiated": "train/loss", "Load balance": "train/load_balance_loss",
}


def test_every_chart_draws_what_metrics_jsonl_holds(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 500)
    page = open_page(report(tmp_path / "report.html", run))
    charts = {chart["title"]: chart for chart in charts_of(page)}
    assert all(chart["x_label"] and chart["y_label"] for chart in charts.values())
    for title, metric in CHARTS.items():
        series = charts.pop(title)["series"][0]
        steps, values = series_of(run, metric)
        assert series["x"] == steps, title
        assert same(series["y"], values), title
        assert series["name"].startswith("one")
    tokens, pairs = charts.pop("Variation over tokens")["series"]
    assert same(tokens["y"], series_of(run, "moe/token_mean_std")[1])
    assert same(pairs["y"], series_of(run, "moe/active_experts_std")[1])
    for title, name in {"Active experts by layer": "active_experts", "Imbalance by layer": "imbalance",
                        "Dead experts by layer": "dead_experts", "Scale θ of the router by layer": "scale"}.items():
        for layer, series in enumerate(charts.pop(title)["series"]):
            assert series["name"] == f"layer {layer}"
            assert same(series["y"], series_of(run, f"moe/layer_{layer:02d}/{name}")[1]), title
    shares = charts.pop("Share of tokens by their number of experts, over training")["series"]
    assert [series["name"] for series in shares] == ["experts 1", "experts 2", "experts 3-4"]  # no token had 5 to 8
    for series, name in zip(shares, ("1", "2", "3-4")):
        assert same(series["y"], series_of(run, f"moe/tokens_with/{name}")[1])
    assert not charts, "a chart that nothing was compared with"


def test_axes_are_tokens_flops_and_hours_of_each_step(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 300)
    page = open_page(report(tmp_path / "report.html", run))
    steps, _ = series_of(run, "train/lm_loss")

    def x_on(axis, title="Training loss"):
        page.get_by_text(axis, exact=True).first.click()
        chart = charts_of(page, title)
        assert chart["x_label"] == axis
        return chart["series"][0]["x"]

    assert x_on("tokens") == [report_runs.TOKENS * step for step in steps]
    assert x_on("tokens", "Validation loss") == [0, 100 * report_runs.TOKENS, 200 * report_runs.TOKENS, 300 * report_runs.TOKENS]
    assert same(x_on("hours in steps"), [seconds / 3600 for seconds in series_of(run, "throughput/seconds")[1]])
    assert same(x_on("active FLOPs"), series_of(run, "train/active_flops")[1])


def test_a_run_before_its_first_step_lies_on_no_axis_but_steps(tmp_path, open_page):
    first = next(report_runs.metrics_lines(0)) | {"val/loss_t0": 1.0, "val/loss_t1": 2.0}
    runs = [write_run(tmp_path / "begun", "begun", lines=[first]), write_run(tmp_path / "trained", "trained", 200, seed=2)]
    page = open_page(report(tmp_path / "report.html", *runs))
    assert [series["x"] for series in charts_of(page, "Validation loss")["series"]] == [[0], [0, 100, 200]]
    page.get_by_text("tokens", exact=True).first.click()
    wait_until(page, "view.plots.every(plot => !plot.isVisible || !plot.isDirty)")
    drawn = charts_of(page, "Validation loss")["series"]
    assert [series["x"] for series in drawn] == [[], [0, 100 * report_runs.TOKENS, 200 * report_runs.TOKENS]]
    noise = page.locator("figure", has=page.get_by_role("heading", name="Validation loss by noise")).locator(".area")
    noise.scroll_into_view_if_needed()
    wait_until(page, "view.plots.some(plot => plot instanceof HeatMap && plot.isVisible && !plot.isDirty)")
    noise.hover()
    assert noise.locator(".tip .row").count() == 0


def test_null_is_a_gap_and_nothing_else_is(tmp_path, open_page):
    lines = list(report_runs.metrics_lines(200))
    for line in lines:
        if 50 <= line["step"] < 60 and "train/lm_loss" in line:
            line["train/lm_loss"] = math.nan
    run = write_run(tmp_path / "gaps", "gaps", lines=lines)
    page = open_page(report(tmp_path / "report.html", run))
    drawn = charts_of(page, "Training loss")["series"][0]
    assert [x for x, y in zip(drawn["x"], drawn["y"]) if y is None] == list(range(50, 60))
    # No pixel of the line lies inside the gap.
    inked = page.evaluate("""() => {
      const figure = [...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent === 'Training loss');
      const plot = figure.plot, ratio = plot.canvas.width / plot.area.clientWidth;
      const columns = step => Math.round(plot.x.at(step) * ratio);
      const context = plot.canvas.getContext('2d');
      const grid = getComputedStyle(document.documentElement).getPropertyValue('--run-0').trim();
      const [r, g, b] = [1, 3, 5].map(i => parseInt(grid.slice(i, i + 2), 16));
      const inkAt = step => {
        const pixels = context.getImageData(columns(step), 0, 1, plot.canvas.height).data;
        for (let i = 0; i < pixels.length; i += 4)
          if (Math.abs(pixels[i] - r) + Math.abs(pixels[i + 1] - g) + Math.abs(pixels[i + 2] - b) < 90) return true;
        return false;
      };
      return [inkAt(40), inkAt(55), inkAt(80)];
    }""")
    assert inked == [True, False, True]


HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;\"' ${1} `é"


def test_names_are_text_never_markup(tmp_path, open_page):
    runs = [write_run(tmp_path / "x", HOSTILE, 120), write_run(tmp_path / "<i>y", "plain", 120, seed=2, method="top_k")]
    page = open_page(report(tmp_path / "report.html", *runs))
    assert charts_of(page, "Training loss")["series"][0]["name"] == HOSTILE
    assert page.get_by_role("button", name=HOSTILE).count() == 1
    assert page.locator("img").count() == 0 and page.locator("#report i").count() == 0


def test_shows_only_sections_that_the_run_fills(tmp_path, open_page):
    dense = [{key: value for key, value in line.items() if not key.startswith(("moe/", "val/active"))}
             for line in report_runs.metrics_lines(100)]
    page = open_page(report(tmp_path / "dense.html", write_run(tmp_path / "dense", "dense", lines=dense)))
    assert page.locator("h2").all_text_contents() == ["Did it learn", "Cost"]
    chart_titles = [chart["title"] for chart in charts_of(page)]
    assert "Active experts per token" not in chart_titles and all(chart["series"] for chart in charts_of(page))


def test_says_from_where_on_the_budget_holds(tmp_path, open_page):
    page = open_page(report(tmp_path / "report.html", write_run(tmp_path / "one", "one", 500)))
    _, counts = series_of(tmp_path / "one", "moe/active_experts")
    means = [sum(counts[i:i + 20]) / 20 for i in range(len(counts) - 19)]
    settled = 1 + max(i for i, mean in enumerate(means) if abs(mean - 3) > 0.15) + 1
    held = sum(counts[450:]) / 50
    text = page.locator("#budget .answer").text_content()
    assert f"since step {settled}." in text and f"use {held:.3f} experts" in text


def test_the_solved_threshold_lies_beside_the_one_used(tmp_path, open_page):
    lines = [line | ({"moe/threshold_solved": line["moe/threshold"] + 0.01} if "moe/threshold" in line else {})
             for line in report_runs.metrics_lines(150)]
    run = write_run(tmp_path / "one", "one", lines=lines)
    used, solved = charts_of(open_page(report(tmp_path / "report.html", run)), "Threshold p")["series"]
    assert (used["name"], solved["name"]) == ("one", "one · solved")
    assert same(used["y"], series_of(run, "moe/threshold")[1]) and same(solved["y"], series_of(run, "moe/threshold_solved")[1])


def test_seeds_give_means_differences_and_a_band(tmp_path, open_page):
    runs = [write_run(tmp_path / f"{method}{seed}", f"{method}-{seed}", 200, method=method, seed=seed,
                      loss=loss + 0.01 * seed * seed)
            for method, loss in (("top_k", 0.1), ("dtop_p", 0.0)) for seed in (1, 2, 3)]
    page = open_page(report(tmp_path / "report.html", *runs))
    band = charts_of(page, "Validation loss over seeds")["series"]
    at_end = [series_of(run, "val/loss")[1][-1] for run in runs]
    for line, values in zip(band, (at_end[:3], at_end[3:])):
        mean = sum(values) / 3
        deviation = math.sqrt(sum((v - mean)**2 for v in values) / 2)
        assert line["y"][-1] == pytest.approx(mean, rel=1e-6)
        assert line["half_width"][-1] == pytest.approx(4.30265273 * deviation / math.sqrt(3), rel=1e-5)
    rows = page.locator("#compared table").first.locator("tbody tr").all_text_contents()
    assert len(rows) == 2 and "−0.1000 ± 0.0000" in rows[1]


def write_study(study, runs):
    """A study of these runs, {variant: path}, with another one pending, and its curves."""
    value = {"mean": 3.25, "half_width": None, "n": 1}
    difference = {"val/loss": {"mean": -0.125, "half_width": 0.5, "p": 0.04, "p_holm": 0.08, "n": 2}}
    runs = [{"variant": name, "grid": {"model.num_experts": 8}, "seed": 1, "path": str(path), "values": {},
             "status": "done" if path.exists() else "pending", "config_hash": "0"} for name, path in runs.items()]
    table = [{"variant": name, "grid": {"model.num_experts": 8}, "n": n, "values": {"val/loss": value | {"diverged": n - 1}},
              "difference": less,
              "notes": notes} for name, n, less, notes in (("a", 1, None, ["a single run has no interval"]), ("b", 2, difference, []))]
    curves = [{"variant": "b", "grid": {"model.num_experts": 8}, "measure": "val/loss", "axis": axis, "n": 2, "x": x,
               "mean": [4.5, None, 3.5], "half_width": [0.5, None, 0.25]}
              for axis, x in (("tokens", [0, 10, 30]), ("seconds", [0, 1800, 7200]))]
    (study / "study.json").write_text(json.dumps({"runs": runs, "table": table}))
    (study / "curves.json").write_text(json.dumps({"curves": curves}))


def test_a_study_is_its_runs_its_table_and_its_curves(tmp_path, open_page):
    study = tmp_path / "study"
    runs = {name: write_run(study / f"runs/{name}-seed1", f"{name}-seed1", 120, method=method)
            for name, method in (("a", "top_k"), ("b", "dtop_p"))}
    write_study(study, runs | {"c": study / "runs/c-seed1"})
    page = open_page(report(tmp_path / "report.html", study))
    assert [series["name"] for series in charts_of(page, "Training loss")["series"]] == ["a-seed1", "b-seed1"]
    assert page.locator("#compared .answer").text_content() == "Runs of the study: 2 done, 1 pending."
    table = page.locator("#compared table").first.locator("tbody tr")
    assert table.nth(0).locator("th, td").all_text_contents() == ["a, model.num_experts 8", "1", "3.2500", "–", "–", "–"]
    assert table.nth(1).locator("th, td").all_text_contents() == ["b, model.num_experts 8", "2", "3.2500 (1 diverged)", "−0.1250 ± 0.5000",
                                                                  "0.040", "0.080"]
    assert "a, model.num_experts 8: a single run has no interval." in page.locator("#compared .note").first.text_content()
    by_axis = {chart["x_label"]: chart["series"] for chart in charts_of(page) if chart["title"] == "val/loss over seeds"}
    assert by_axis["hours in steps"][0]["x"] == [0, 0.5, 2] and by_axis["tokens"][0]["x"] == [0, 10, 30]
    assert by_axis["tokens"][0]["y"] == [4.5, None, 3.5] and by_axis["tokens"][0]["half_width"] == [0.5, None, 0.25]


def test_evaluations_in_the_runs_folder_are_shown(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 120)
    copa = {"accuracy": 0.53, "stderr": 0.05, "items": 100}
    (run / "tasks.json").write_text(json.dumps({"step": 120, "p": [0.4], "tasks": {"copa": copa}, "average": 0.53}))
    (run / "earlier.json").write_text(json.dumps({"step": 60, "tasks": {"copa": copa | {"accuracy": 0.5}}, "average": 0.5}))
    (run / "other_budget.json").write_text(json.dumps(
        {"step": 120, "target_experts": 3.5, "tasks": {"copa": copa | {"accuracy": 0.6}}, "average": 0.6}))
    (run / "torn.json").write_text('{"step": 120, "tasks": {"copa')
    (run / "no_step.json").write_text(json.dumps({"tasks": {"copa": copa}, "average": 0.53}))
    for name, nll in (("novels", 5), ("plays", 6)):
        (run / f"sweep-{name}.json").write_text(json.dumps({"step": 120, "texts": [name], "sweep": [
            {"target_experts": t, "active_experts": t + .5, "nll": nll - t / 10, "perplexity": 1.0, "tokens": 9} for t in (2, 4, 3)]}))
    (run / "tasks-sweep.json").write_text(json.dumps({"step": 120, "sweep": [
        {"target_experts": t, "tasks": {"copa": copa}, "average": t / 10} for t in (4, 2)]}))
    (run / "activations.json").write_text(json.dumps({
        "step": 120, "layers": [{"histogram": [0, 3, 1], "expert_load": [0.5, 0.75]}, {"histogram": [0, 1, 1], "expert_load": [1.0, 0.5]}],
        "tokens_by": {"position": [{"kind": "first", "tokens": 4, "mean": 1.5, "deviation": 0.5, "layer_means": [1, 2]}]}}))
    page = open_page(report(tmp_path / "report.html", run))
    sweeps = charts_of(page, "Loss at other budgets, from one checkpoint")["series"]
    assert [sweep["name"] for sweep in sweeps] == ["one · novels, step 120", "one · plays, step 120"]
    assert all(sweep["x"] == [2.5, 3.5, 4.5] for sweep in sweeps) and same(sweeps[0]["y"], [4.8, 4.7, 4.6])
    assert page.locator("#learned h3", has_text="Loss at other budgets").count() == 1
    listed = page.locator("#learned table", has_text="Evaluated texts").locator("tbody tr")
    assert [[row.locator("th, td").nth(i).text_content() for i in (1, 2, 5, 7)] for row in listed.all()] == [
        [name, f"{nll - t / 10:.4f}", f"{t + .5:.3f}", str(t)] for t in (2, 3, 4) for name, nll in (("novels", 5), ("plays", 6))]
    accuracy = charts_of(page, "Accuracy at other budgets, from one checkpoint")["series"][0]
    assert accuracy["x"] == [2, 4] and same(accuracy["y"], [.2, .4])
    assert charts_of(page, "Share of tokens by their number of experts, activations.json, step 120")["series"][0]["y"] == [0, 0.75, 0.25]
    table = page.locator("#compared table").first
    assert table.locator("thead th").all_text_contents()[:4] == ["task", "one, step 60", "one, step 120",
                                                                 "one, step 120, 3.5 experts"]
    benchmark = table.locator("tbody tr").first.locator("th, td").all_text_contents()
    assert benchmark == ["copa", "50.0 ± 9.8", "53.0 ± 9.8", "60.0 ± 9.8", "69.0", "82.0", "82.0", "85.0"]
    notes = page.locator("body").text_content()
    assert f"{run}/torn.json: invalid JSON; skipped" in notes and f"{run}/no_step.json: is not a complete file" in notes
    assert page.locator("#experts td", has_text="position").count() == 1


def test_the_newest_samples_are_shown_as_text_and_as_a_picture(tmp_path, open_page):
    runs = [write_run(tmp_path / name, name, 120, seed=seed) for seed, name in enumerate(("texts", "pictures", "large"))]
    for run in runs:
        (run / "samples").mkdir()
    (runs[0] / "samples/step-00000060.txt").write_text("old | text\n")
    (runs[0] / "samples/step-00000120.txt").write_text("1 <b>bold</b> | <img src=x onerror=alert(1)> &amp;\n<|a|> | b\n")
    (runs[0] / "samples/notes.txt").write_text("mine\n")
    Image.new("RGB", (48, 32)).save(runs[1] / "samples/step-00001200.png")
    (runs[2] / "samples/step-00000120.png").write_bytes(bytes(5 << 20))
    page = open_page(report(tmp_path / "report.html", *runs))
    cells = [row.locator("td").all_text_contents() for row in page.locator("#samples tbody tr").all()]
    assert cells == [["120", "… 1 <b>bold</b> | <img src=x onerror=alert(1)> &amp;"], ["120", "… <|a|> | b"]]
    assert page.locator("#samples td.number").all_text_contents() == ["120", "120"]
    assert page.locator("#samples figcaption").all_text_contents() == ["Pictures at step 1,200pictures"]
    image = page.locator("#samples img")
    assert image.count() == 1 and image.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [48, 32]
    assert f"{runs[2]}/samples/step-00000120.png is" in page.locator("#samples .answer").text_content()


def test_a_trained_run_opens_without_errors(tmp_path, open_page):
    run = tiny_run.trained(tmp_path / "real") / "run"
    text, other = tmp_path / "real/validation.npy", tmp_path / "real/train.npy"
    results = {}
    for options in ([], ["--target-experts", "2.5"]):
        done = tiny_run.dtopp("evaluate", "text", run, "--text", text, "--text", other, "--output", run, "--json", *options)
        assert done.returncode == 0, done.stderr
        results[" ".join(options)] = json.loads(done.stdout)
    page = open_page(report(tmp_path / "report.html", run))
    table = page.locator("#learned table", has_text="Evaluated texts")
    assert table.locator("th").all_text_contents()[:9] == ["run", "text", "loss", "perplexity", "bits per byte", "active experts",
                                                           "step", "budget", "precision"]
    rows = [row.locator("th, td").all_text_contents() for row in table.locator("tbody tr").all()]
    expected = []
    for budget, result in zip(("as trained", "2.5"), results.values()):
        for name, loss in ((f"{text} + {other}", result), *((source["source"], source) for source in result["sources"])):
            expected.append(["tiny", name, f"{loss['nll']:.4f}", f"{math.exp(loss['nll']):.4g}", "–",
                             f"{loss['active_experts']:.3f}", str(result["step"]), budget, "fp32"])
    assert rows == expected and len(rows) == 6
    steps, values = series_of(run, "train/lm_loss")
    drawn = charts_of(page, "Training loss")["series"][0]
    assert drawn["name"] == "tiny" and drawn["x"] == steps and same(drawn["y"], values)

