"""`dtopp report`: the page in a headless browser, beside the metrics.jsonl that it was made of."""

import gzip
import json
import math
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
import report_runs
import tiny_run
from report_browser import browser, open_page  # noqa: F401  fixtures
from report_runs import series_of, write_run

pytestmark = pytest.mark.skipif(not tiny_run.BINARY.exists(), reason=f"{tiny_run.BINARY} is not built")


def report(output, *runs):
    done = tiny_run.dtopp("report", *runs, "--output", output)
    assert done.returncode == 0, done.stderr
    return output


def charts_of(page, title=None):
    charts = page.evaluate("dtoppReport.charts()")
    return charts if title is None else next(chart for chart in charts if chart["title"] == title)


def same(drawn, written):
    """float32 of what the file holds; null where that is null."""
    return [None if v is None else pytest.approx(v, rel=1e-6, abs=1e-12) for v in written] == drawn


CHARTS = {
    "Training loss": "train/lm_loss", "Validation loss": "val/loss", "Gradient norm": "train/grad_norm", "Learning rate": "train/lr",
    "Active experts a token": "moe/active_experts", "Threshold p": "moe/threshold", "Imbalance": "moe/imbalance",
    "Dead experts": "moe/dead_experts", "Speed": "throughput/tokens_per_second", "Memory": "memory/resident_bytes",
    "Model FLOPs utilisation": "throughput/mfu", "Waiting": "throughput/data_share", "All terms, as differentiated": "train/loss",
    "Load balance": "train/load_balance_loss",
}


def test_every_chart_draws_what_metrics_jsonl_holds(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 500)
    page = open_page(report(tmp_path / "report.html", run))
    charts = {chart["title"]: chart for chart in charts_of(page)}
    for title, metric in CHARTS.items():
        series = charts.pop(title)["series"][0]
        steps, values = series_of(run, metric)
        assert series["x"] == steps, title
        assert same(series["y"], values), title
        assert series["name"].startswith("one")
    tokens, pairs = charts.pop("How far tokens differ")["series"]
    assert same(tokens["y"], series_of(run, "moe/token_mean_std")[1]) and same(pairs["y"], series_of(run, "moe/active_experts_std")[1])
    for title, name in {"Active experts by layer": "active_experts", "Imbalance by layer": "imbalance", "Dead experts by layer": "dead_experts",
                        "Scale θ of the router by layer": "scale"}.items():
        for layer, series in enumerate(charts.pop(title)["series"]):
            assert series["name"] == f"layer {layer}"
            assert same(series["y"], series_of(run, f"moe/layer_{layer:02d}/{name}")[1]), title
    assert not charts, "a chart that nothing was compared with"


def test_axes_are_tokens_flops_and_hours_of_each_step(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 300)
    plan = json.loads(tiny_run.dtopp("plan", run / "config.yaml", "--json").stdout)
    page = open_page(report(tmp_path / "report.html", run))
    steps, _ = series_of(run, "train/lm_loss")

    def x_on(axis, title="Training loss"):
        page.get_by_text(axis, exact=True).first.click()
        chart = charts_of(page, title)
        assert chart["x_label"] == axis
        return chart["series"][0]["x"]

    assert x_on("tokens") == [report_runs.TOKENS * step for step in steps]
    assert x_on("tokens", "Validation loss") == [0, 100 * report_runs.TOKENS, 200 * report_runs.TOKENS, 300 * report_runs.TOKENS]
    hours = x_on("hours")
    assert hours[-1] - hours[0] == pytest.approx(0.25 * 299 / 3600, rel=1e-4)
    flops = x_on("active FLOPs")
    assert flops == sorted(flops)
    # The plan counts 3 active experts; the run's first steps have fewer, its later ones as many.
    late = (flops[-1] - flops[149]) / (report_runs.TOKENS * 150)
    assert late == pytest.approx(plan["flops_per_token"], rel=0.01)
    assert flops[0] / report_runs.TOKENS < 0.95 * plan["flops_per_token"]


def test_null_is_a_gap_and_nothing_else_is(tmp_path, open_page):
    lines = list(report_runs.metrics_lines(200))
    for line in lines:
        if 50 <= line["step"] < 60 and "train/lm_loss" in line:
            line["train/lm_loss"] = math.nan
    run = write_run(tmp_path / "gaps", "gaps", lines=lines)
    page = open_page(report(tmp_path / "report.html", run))
    drawn = charts_of(page, "Training loss")["series"][0]
    assert [x for x, y in zip(drawn["x"], drawn["y"]) if y is None] == list(range(50, 60))
    # No pixel of the line is drawn inside of the gap.
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
    assert page.locator("h2").all_text_contents() == ["Did it learn", "What it cost"]
    chart_titles = [chart["title"] for chart in charts_of(page)]
    assert "Active experts a token" not in chart_titles and all(chart["series"] for chart in charts_of(page))


def test_says_from_where_on_the_budget_holds(tmp_path, open_page):
    page = open_page(report(tmp_path / "report.html", write_run(tmp_path / "one", "one", 500)))
    _, counts = series_of(tmp_path / "one", "moe/active_experts")
    means = [sum(counts[i:i + 20]) / 20 for i in range(len(counts) - 19)]
    settled = 1 + max(i for i, mean in enumerate(means) if abs(mean - 3) > 0.15) + 1
    held = sum(counts[450:]) / 50
    text = page.locator("#budget .answer").text_content()
    assert f"since step {settled}." in text and f"use {held:.3f} experts" in text


def test_seeds_give_means_differences_and_a_band(tmp_path, open_page):
    runs = [write_run(tmp_path / f"{method}{seed}", f"{method}-{seed}", 200, method=method, seed=seed, loss=loss + 0.01 * seed * seed)
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


def test_a_study_is_its_runs_and_its_table(tmp_path, open_page):
    study = tmp_path / "study"
    runs = [write_run(study / "runs" / name, name, 120, seed=1, method=method) for name, method in (("a-seed1", "top_k"), ("b-seed1", "dtop_p"))]
    value = {"mean": 3.25, "half_width": None}
    (study / "study.json").write_text(json.dumps({
        "runs": [{"variant": name, "grid": {}, "seed": 1, "path": str(run), "status": "done", "values": {}} for name, run in zip("ab", runs)]
        + [{"variant": "c", "grid": {}, "seed": 1, "path": str(study / "runs/c"), "status": "pending", "values": {}}],
        "table": [{"variant": "a", "grid": {"model.num_experts": 8}, "n": 1, "values": {"val/loss": value}, "difference": None},
                  {"variant": "b", "grid": {}, "n": 1, "values": {"val/loss": value},
                   "difference": {"val/loss": {"mean": -0.125, "half_width": 0.5, "p": 0.04, "p_holm": 0.08}}}]}))
    page = open_page(report(tmp_path / "report.html", study))
    assert [series["name"] for series in charts_of(page, "Training loss")["series"]] == ["a-seed1", "b-seed1"]
    assert page.locator("#compared .answer").text_content() == "Runs of the study: 2 done, 1 pending."
    rows = [row.all_text_contents() for row in (page.locator("#compared table").first.locator("tbody tr").nth(i).locator("th, td") for i in range(2))]
    assert rows == [["a, model.num_experts 8", "1", "3.2500", "–", "–", "–"], ["b", "1", "3.2500", "−0.1250 ± 0.5000", "0.040", "0.080"]]


def test_evaluations_in_the_runs_folder_are_shown(tmp_path, open_page):
    run = write_run(tmp_path / "one", "one", 120)
    (run / "tasks.json").write_text(json.dumps({"tasks": {"copa": {"accuracy": 0.53, "stderr": 0.05, "items": 100}}, "average": 0.53}))
    (run / "sweep.json").write_text(json.dumps({"sweep": [{"target_experts": t, "active_experts": t, "nll": 5 - t / 10, "perplexity": 1.0,
                                                           "tokens": 9} for t in (2, 4, 3)]}))
    (run / "activations.json").write_text(json.dumps({
        "layers": [{"histogram": [0, 3, 1], "expert_load": [0.5, 0.75]}, {"histogram": [0, 1, 1], "expert_load": [1.0, 0.5]}],
        "tokens_by": {"position": [{"kind": "first", "tokens": 4, "mean": 1.5, "deviation": 0.5, "layer_means": [1, 2]}]}}))
    page = open_page(report(tmp_path / "report.html", run))
    sweep = charts_of(page, "Loss at other budgets, from one checkpoint")["series"][0]
    assert sweep["x"] == [2, 3, 4] and same(sweep["y"], [4.8, 4.7, 4.6])
    assert charts_of(page, "Share of tokens by their number of experts")["series"][0]["y"] == [0, 0.75, 0.25]
    benchmark = page.locator("#compared table").first.locator("tbody tr").first.locator("th, td").all_text_contents()
    assert benchmark == ["copa", "53.0 ± 9.8", "69.0", "82.0", "82.0", "85.0"]
    assert page.locator("#experts td", has_text="position").count() == 1


def test_keyboard_legend_zoom_and_log_axes(tmp_path, open_page):
    runs = [write_run(tmp_path / name, name, 300, seed=seed, loss=seed) for seed, name in ((1, "first"), (2, "second"))]
    page = open_page(report(tmp_path / "report.html", *runs))
    plot = "[...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent === 'Training loss').plot"
    area = page.locator("figure", has=page.get_by_role("heading", name="Training loss")).locator(".area")
    area.focus()
    page.keyboard.press("ArrowRight")
    tip = area.locator(".tip")
    step = int(tip.locator("b").first.text_content().split()[-1])
    expected = dict(zip(*series_of(runs[0], "train/lm_loss")))[step]
    assert float(tip.locator(".value").first.text_content()) == pytest.approx(expected, rel=1e-4)
    page.keyboard.press("+")
    low, high = page.evaluate("view.range")
    assert high - low == pytest.approx(150, rel=0.02)
    page.keyboard.press("0")
    assert page.evaluate("view.range") is None
    page.keyboard.press("l")
    assert page.evaluate(f"{plot}.y.isLog")
    before = page.evaluate(f"[{plot}.y.low, {plot}.y.high]")
    page.get_by_role("button", name="second").click()
    page.wait_for_function(f"{plot}.y.high < {before[1]} - 0.5")
    assert len(charts_of(page, "Training loss")["series"]) == 2
    box = area.bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 60, steps=4)
    page.mouse.up()
    zoomed = page.evaluate("view.range")
    assert 0 < zoomed[0] < zoomed[1] < 300
    page.mouse.dblclick(box["x"] + 150, box["y"] + 60)
    assert page.evaluate("view.range") is None


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}], ids=["dark", "phone"])
def test_fits_a_phone_and_the_dark(tmp_path, open_page, options):
    runs = [write_run(tmp_path / name, name * 12, 120, seed=seed) for seed, name in ((1, "first"), (2, "second"))]
    page = open_page(report(tmp_path / "report.html", *runs), **options)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == ("color_scheme" not in options)
    page.get_by_role("button", name="dark or light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_prints_every_chart_on_light_paper(tmp_path, open_page):
    page = open_page(report(tmp_path / "report.html", write_run(tmp_path / "one", "one", 120)), color_scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_function("view.plots.every(plot => !plot.isDirty || plot.area.clientWidth === 0)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".smoothing").is_visible()
    assert len(page.pdf()) > 30000


def test_more_than_100000_points_are_thinned_and_said(tmp_path, open_page):
    values = [math.sin(i / 7) for i in range(250000)]
    values[123456], values[200001] = 9.0, -9.0
    lines = ({"step": i + 1, "tokens": i + 1, "time": float(i), "train/lm_loss": v} for i, v in enumerate(values))
    page = open_page(report(tmp_path / "report.html", write_run(tmp_path / "long", "long", lines=lines)))
    drawn = charts_of(page, "Training loss")["series"][0]
    points = dict(zip(drawn["x"], drawn["y"]))
    assert 99000 < len(points) <= 100002 and points[123457] == 9 and points[200002] == -9 and {1, 250000} <= points.keys()
    assert "here up to 250,000" in page.locator("footer").text_content()
    assert same([points[step] for step in list(points)[::1000]], [values[step - 1] for step in list(points)[::1000]])


def test_twenty_runs_of_100000_points_open_in_two_seconds(tmp_path, open_page):
    first = write_run(tmp_path / "run01", "run", lines=(
        {"step": i, "tokens": i * 512, "time": 1.8e9 + i, "train/lm_loss": 3 + math.sin(i) / 10 + 3 * math.exp(-i / 9000),
         "moe/active_experts": 4 + math.cos(i), "moe/imbalance": 1.5 + math.sin(i / 5) / 9, "throughput/tokens_per_second": 1e5 + 100 * math.sin(i / 3)}
        for i in range(1, 100001)))
    for i in range(2, 21):
        (tmp_path / f"run{i:02d}").mkdir()
        (tmp_path / f"run{i:02d}/config.yaml").write_text((first / "config.yaml").read_text().replace("seed: 1", f"seed: {i}"))
        os.link(first / "metrics.jsonl", tmp_path / f"run{i:02d}/metrics.jsonl")
    html = report(tmp_path / "report.html", *sorted(tmp_path.glob("run??")))
    packed = 20 * len(gzip.compress((first / "metrics.jsonl").read_bytes(), 6))
    assert html.stat().st_size <= 3 * packed
    start = time.monotonic()
    page = open_page(html)
    page.wait_for_function("view.plots.some(p => p.isVisible) && view.plots.every(p => !p.isVisible || !p.isDirty)")
    opened = time.monotonic() - start
    redrawn = page.evaluate("""() => { const start = performance.now();
      const plot = view.plots[0]; plot.isDirty = true; plot.refresh(); return performance.now() - start; }""")
    frames = page.evaluate("""() => new Promise(done => {
      const times = []; let last = performance.now();
      const step = now => { times.push(now - last); last = now; scrollBy(0, 30);
        times.length < 60 ? requestAnimationFrame(step) : done(times.slice(5)); };
      requestAnimationFrame(step); })""")
    frames.sort()
    print(f"opened in {opened:.2f} s, a chart of 20 lines drawn in {redrawn:.0f} ms, frames of scrolling: median {frames[len(frames) // 2]:.0f} ms, "
          f"longest {frames[-1]:.0f} ms; {html.stat().st_size / 1e6:.0f} MB, {html.stat().st_size / packed:.2f} x gzip of the metrics")
    # Twice and more what an idle core takes.
    assert opened < float(os.environ.get("DTOPP_OPEN_SECONDS", 6))


def serve(*runs, port=()):
    process = subprocess.Popen([tiny_run.BINARY, "report", *map(str, runs), "--serve", *port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0, process.stderr.read()


def status_of(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code


def test_serve_shows_what_is_appended(tmp_path, open_page):
    lines = list(report_runs.metrics_lines(200))
    run = write_run(tmp_path / "live", "live", lines=lines[:100])
    process, address = serve(run)
    try:
        page = open_page(address)
        assert len(charts_of(page, "Training loss")["series"][0]["x"]) == series_of(run, "train/lm_loss")[0][-1]
        page.get_by_text("tokens", exact=True).first.click()
        area = page.locator("figure", has=page.get_by_role("heading", name="Training loss")).locator(".area")
        area.focus()
        page.keyboard.press("l")
        torn = json.dumps(report_runs.finite(lines[150]))
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(report_runs.finite(line)) + "\n" for line in lines[100:150])
            file.write(torn[:40])
        steps, values = series_of_whole(run)
        page.wait_for_function(f"dtoppReport.charts().find(c => c.title === 'Training loss').series[0].y.length === {len(values)}", timeout=20000)
        drawn = charts_of(page, "Training loss")
        assert drawn["x_label"] == "tokens" and drawn["series"][0]["x"] == [256 * step for step in steps]
        assert same(drawn["series"][0]["y"], values)
        # Whoever reads goes on where they are.
        assert page.evaluate("document.activeElement.closest('figure').plot.block.title") == "Training loss"
        assert page.evaluate("document.activeElement.closest('figure').plot.isLog")
        # A resumed run's file is a shorter one.
        with (run / "metrics.jsonl").open("w") as file:
            file.writelines(json.dumps(report_runs.finite(line)) + "\n" for line in lines[:60])
        page.wait_for_function("dtoppReport.charts().find(c => c.title === 'Training loss').series[0].y.length < 60", timeout=20000)
    finally:
        stop(process)


def series_of_whole(run):
    """Of a file whose last line is torn."""
    text = (run / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text[:text.rfind("\n")].splitlines()]
    held = [line for line in lines if "train/lm_loss" in line]
    return [line["step"] for line in held], [line["train/lm_loss"] for line in held]


def test_serve_listens_on_loopback_and_knows_two_paths(tmp_path):
    process, address = serve(write_run(tmp_path / "one", "one", 120))
    try:
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        listening = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
        assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening
        assert status_of(address) == 200 and status_of(address + "update?since=0") == 200
        for path in ("favicon.ico", "../config.yaml", "%2e%2e/config.yaml", "metrics.jsonl", "?x=1"):
            assert status_of(address + path) == 404, path
        assert status_of(address, Host="evil.example") == 403 and status_of(address + "update?since=x") == 400
        done = tiny_run.dtopp("report", tmp_path / "one", "--serve", str(port))
        assert done.returncode == 2 and str(port) in done.stderr and done.stderr.count("\n") == 1
    finally:
        stop(process)


def test_bad_input_is_one_line_and_its_exit_status(tmp_path):
    damaged = write_run(tmp_path / "damaged", "damaged", 120)
    (damaged / "metrics.jsonl").write_text('{"step":1,"tokens":1,"time":1,"train/loss":3}\n{"step":2,"tok\x00\n')
    empty = tmp_path / "empty"
    empty.mkdir()
    unfinished = write_run(tmp_path / "unfinished", "unfinished", 120)
    (unfinished / "metrics.jsonl").unlink()
    broken = write_run(tmp_path / "broken", "broken", 120)
    (broken / "tasks.json").write_text('{"tasks": {"copa": {}}, "average": 1}')
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.json").write_text("{}")
    for run, status, word in ((tmp_path / "nowhere", 2, "nowhere"), (empty, 2, "empty"), (unfinished, 2, "metrics.jsonl"),
                              (damaged, 3, "line 2"), (broken, 3, "tasks.json"), (study, 3, "study.json")):
        done = tiny_run.dtopp("report", run, "--output", tmp_path / "report.html")
        assert done.returncode == status and word in done.stderr and done.stderr.count("\n") == 1, (run, done.stderr)
        assert not (tmp_path / "report.html").exists()
    fine = write_run(tmp_path / "fine", "fine", 120)
    done = tiny_run.dtopp("report", fine, "--output", tmp_path / "no/where/report.html")
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done.stderr
    assert tiny_run.dtopp("report", "--output", tmp_path / "report.html").returncode == 2


def test_a_report_writes_one_file_and_nothing_else(tmp_path):
    run = write_run(tmp_path / "one", "one", 120)
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    report(tmp_path / "out.html", run)
    assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out.html"]


def test_a_trained_run_opens_without_errors(tmp_path, open_page):
    run = tiny_run.trained(tmp_path / "real") / "run"
    page = open_page(report(tmp_path / "report.html", run))
    steps, values = series_of(run, "train/lm_loss")
    drawn = charts_of(page, "Training loss")["series"][0]
    assert drawn["name"] == "tiny" and drawn["x"] == steps and same(drawn["y"], values)
