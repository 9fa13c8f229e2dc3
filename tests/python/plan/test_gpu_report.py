"""Tests `make gpu-report` with a CPU in the device's place, and the time limit of scripts/run_cases.py."""

import html.parser
import json
import os
import subprocess
import sys
import time

import pytest
from ops_reference import LIBRARY
from refusal import assert_refused
from tiny_run import BINARY, FULL, ROOT

ROUTERS = "routers: dtop_p, solve, top_k_bias"
ONLY = [] if FULL else ["--only", "machine", "expert layer", "operators", "training with Muon", ROUTERS]


def report(folder, *arguments, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/gpu.py", "report", "--device", "cpu", "--folder", folder, *arguments],
                          capture_output=True, text=True, timeout=300,
                          env=os.environ | {"DTOPP_BINARY": str(BINARY), "DTOPP_OPS": LIBRARY, "OMP_NUM_THREADS": "1"} | environment)


def records(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def stored(folder):
    return json.loads((folder / "report.json").read_text())


class Page(html.parser.HTMLParser):
    """Reads the rows of tables and checks that elements end in the right order."""

    def __init__(self, file):
        super().__init__()
        self.open, self.rows, self.text = [], [], ""
        self.feed(file.read_text())
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    done = report(folder, *ONLY, "--seconds", "280", "--results", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_compares_layers_of_equal_flops_with_the_matrix_rate(dtopp_binary, complete):
    lines = next(piece["lines"] for piece in stored(complete)["pieces"] if piece["piece"] == "expert layer")
    rate, layers = lines[0], [line for line in lines if line["case"] == "expert_layer"]
    assert {line["layer"] for line in layers} >= {"dense", "grouped_mm", "scattered", "dtopp"}
    for line in layers:
        flops = 6 * 256 * 4 * 64 * 32  # 3 products, 256 tokens, 4 experts of 64 x 32
        assert line["forward_share_of_rate"] == pytest.approx(flops / line["forward_milliseconds"] / 1e9 / rate["tflops"], rel=0.1, abs=1e-3)
        assert line["share_of_rate"] == pytest.approx(3 * flops / line["milliseconds"] / 1e9 / rate["tflops"], rel=0.1, abs=1e-3)
        # The layers compute the same; bf16 has 8 bits.
        assert line["layer"] == "dense" or line["difference"] < 2**-5


def test_the_page_has_the_figures_and_says_that_a_cpu_is_a_trial(dtopp_binary, complete):
    page = Page(complete / "report.html")
    kept = {piece["piece"]: piece["lines"] for piece in stored(complete)["pieces"]}
    assert "trial on a CPU" in page.text and "Missing" not in page.text
    for method, (ratio, error) in kept[ROUTERS][0]["against_top_k"].items():
        assert [row for row in page.rows if row[0] == method and row[2] == f"{ratio:.3f} ± {error:.3f}"]
    for line in kept["expert layer"]:
        if line["case"] == "expert_layer":
            assert [row for row in page.rows if row[-2] == f"{line['speed_against_dense']:.2f}"], line
    assert kept["machine"][0]["torch"] in page.text
    assert [row for row in page.rows if row[0] == "orthogonalize"] and "optimizer.method=muon" in page.text


def test_stores_the_report_under_its_commit(dtopp_binary, complete):
    assert (complete / f"cpu-{stored(complete)['commit'][:8]}.json").read_text() == (complete / "report.json").read_text()


def test_a_second_call_runs_what_the_first_one_did_not_end(dtopp_binary, complete):
    before = records(complete)
    done = report(complete, *ONLY, *([] if FULL else ["kernels"]))
    assert done.returncode == 0, done.stderr
    assert [record["piece"] for record in records(complete)[len(before):]] == ([] if FULL else ["kernels"])
    assert stored(complete)["seconds"] == pytest.approx(sum(record["seconds"] for record in records(complete)), abs=0.1)


def test_keeps_the_time_limit_and_names_what_is_missing(dtopp_binary, tmp_path):
    start = time.monotonic()
    done = report(tmp_path, "--seconds", "8")
    assert done.returncode == 75, done.stderr
    assert time.monotonic() - start < 8 + 8  # a busy machine takes seconds to start and to end Python; the pieces need 40 s
    missing = stored(tmp_path)["missing"]
    ended = [record["piece"] for record in records(tmp_path) if record["status"] == "done"]
    assert "generation" in missing and not set(missing) & set(ended)
    assert len(missing) + len(ended) == len(stored(tmp_path)["pieces"])
    assert "Missing: " + "; ".join(missing) in Page(tmp_path / "report.html").text
    assert f"missing: {'; '.join(missing)}" in done.stdout


def test_a_piece_that_fails_is_named_with_its_message(dtopp_binary, tmp_path):
    done = report(tmp_path, DTOPP_OPS="/nowhere/ops.so")
    assert done.returncode == 1 and "/nowhere/ops.so is not built" in done.stderr
    assert stored(tmp_path)["failed"] == ["machine"]
    assert "/nowhere/ops.so is not built" in Page(tmp_path / "report.html").text
    assert_refused(report(tmp_path, "--only", "machin"), 1, "machin", begins="gpu.py: --only")


@pytest.mark.parametrize("own", [True, False])
def test_carried_packages_serve_a_python_without_its_own(tmp_path, own):
    for folder, names in {"site": ["torch", *(["numpy", "yaml", "pytest"] if own else [])], "carry/python": ["numpy", "yaml", "pytest"]}.items():
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "__init__.py").write_text("")
    code = f"import gpu, os, pathlib; gpu.CARRY = pathlib.Path({str(tmp_path / 'carry')!r}); gpu.set_environment('cpu'); print(os.environ['PYTHONPATH'])"
    paths = [str(tmp_path / "site"), str(ROOT / "scripts")]
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": os.pathsep.join(paths)})
    assert done.stdout.strip().split(os.pathsep) == ([] if own else [str(tmp_path / "carry/python")]) + paths, done.stderr


def test_cases_end_with_their_time_and_the_others_are_counted(tmp_path):
    (tmp_path / "test_slow.py").write_text("""\
import time
import pytest
def test_quick(): pass
@pytest.mark.skip
def test_skipped(): pass
def test_failing(): assert False
def test_slow(): time.sleep(100)
def test_never(): pass
""")
    for seconds in ("8", "80"):  # a busy machine may need more than 8 s to come to the slow case
        done = subprocess.run([sys.executable, ROOT / "scripts/run_cases.py", "--json", "--seconds", seconds, "test_slow.py"],
                              capture_output=True, text=True, timeout=120, cwd=tmp_path)
        result = json.loads(done.stdout.splitlines()[-1])
        if result["left"] == 2:
            break
    assert done.returncode == 1, done.stderr
    assert (result["cases"], result["passed"], result["skipped"], result["left"]) == (5, 1, 1, 2)
    assert len(result["lost"]) == 1 and "test_failing failed" in result["lost"][0]
