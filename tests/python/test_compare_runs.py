"""scripts/compare_runs.py on made-up metrics, against numbers worked out by hand."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from tiny_run import ROOT

SCRIPT = ROOT / "scripts/compare_runs.py"
CONFIG = """\
name: small
model:
  num_experts: {experts}
routing:
  method: {method}
training:
  seed: {seed}
  threads: {threads}
output: {output}
"""


def write_run(folder, name, loss, seed=1, method="dtop_p", active=4.0, experts=32, threads=0, p=(0.5, 0.5), rate=1000.0,
              steps=4):
    """Whatever lies before the part that counts would change every figure but the rate. The training loss ends 0.24, then 0.26
    below the held-out one."""
    run = folder / name
    run.mkdir()
    run.joinpath("config.yaml").write_text(
        CONFIG.format(method=method, seed=seed, experts=experts, threads=threads, output=run))
    lines = [{"step": 0, "val/loss": 10.8}]
    half = steps // 2
    for step in range(1, steps + 1):
        line = {"step": step, "train/loss": 9.5, "throughput/tokens_per_second": rate + step % 2,
                "train/lm_loss": {steps - 1: loss - 0.24, steps: loss - 0.26}.get(step, 9.0)}
        if active is not None:
            late = active + (0.01 if step % 2 else -0.01)
            line |= {"moe/active_experts": late if step > half else 30.0, "moe/active_experts_std": 2.0 if step > half else 9.0}
        if method != "top_k" and active is not None:
            line |= {f"moe/layer_{i:02}/threshold": value if step == steps else 0.1 for i, value in enumerate(p)}
        lines.append(line)
    lines += [{"step": steps, "val/loss": loss}]
    run.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def compare(*runs):
    return subprocess.run([sys.executable, SCRIPT, *map(str, runs)], text=True, capture_output=True)


def rows(done):
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line and not line.startswith(("| run", "|---"))]


@pytest.fixture(scope="module")
def script():
    specification = importlib.util.spec_from_file_location("compare_runs", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["compare_runs"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["compare_runs"]


def test_one_seed_is_a_row_without_intervals(tmp_path):
    done = compare(write_run(tmp_path, "small-dense", 5.85571, active=None, experts=1),
                   write_run(tmp_path, "small-top-k", 5.68452, method="top_k"),
                   write_run(tmp_path, "small-dtop-p", 5.78196, active=3.9961, p=(0.626, 0.804), rate=4122.6))
    assert rows(done) == ["| small-dense | 5.8557 | 5.5957 | – | – | – | 1,000 |",
                          "| small-top-k | 5.6845 | 5.4245 | 4.000 | 2.00 | – | 1,000 |",
                          "| small-dtop-p | 5.7820 | 5.5220 | 3.996 | 2.00 | 0.626 to 0.804 | 4,123 |"]
    assert "less top-k's" not in done.stdout


def test_the_training_loss_is_that_of_the_last_tenth(tmp_path):
    assert rows(compare(write_run(tmp_path, "a", 5.0, steps=20)))[0].startswith("| a | 5.0000 | 4.7500 | 4.000 | ")


def test_seeds_of_one_configuration_are_one_row_with_intervals(tmp_path):
    runs = []
    for seed, top_k, dtop_p, active in ((1, 5.0, 5.2, 3.9), (2, 5.1, 5.25, 4.0), (3, 5.3, 5.55, 4.1)):
        runs.append(write_run(tmp_path, f"small-top-k-seed{seed}", top_k, seed, "top_k"))
        runs.append(write_run(tmp_path, f"small-dtop-p-seed{seed}", dtop_p, seed, active=active, p=(0.6 + seed / 100,) * 2))
    # Losses 5.0, 5.1, 5.3: deviation 0.152753; 4.3027 x 0.152753 / sqrt 3 = 0.37946. 5.2, 5.25, 5.55: 0.189297, 0.47024.
    # Active experts 3.9, 4.0, 4.1: deviation 0.1, 0.24842.
    # Differences 0.2, 0.15, 0.25: deviation 0.05; 4.3027 x 0.05 / sqrt 3 = 0.12421.
    assert rows(compare(*runs)) == [
        "| small-top-k (3 seeds) | 5.1333 ± 0.3795 | 4.8733 ± 0.3795 | 4.000 ± 0.000 | 2.00 | – | 1,000 |",
        "| small-dtop-p (3 seeds) | 5.3333 ± 0.4702 | 5.0733 ± 0.4702 | 4.000 ± 0.248 | 2.00 | 0.610 to 0.630 | 1,000 |",
        "| small-dtop-p | +0.2000 ± 0.1242 | 1, 2, 3 |"]


def test_differences_are_of_the_seeds_that_both_have(tmp_path):
    runs = [write_run(tmp_path, f"small-top-k-seed{seed}", loss, seed, "top_k")
            for seed, loss in ((1, 5.0), (2, 5.1), (3, 5.3))]
    runs += [write_run(tmp_path, f"small-dense-seed{seed}", loss, seed, active=None, experts=1)
             for seed, loss in ((4, 9.0), (3, 5.2), (1, 4.8))]
    runs += [write_run(tmp_path, "small-top-p", 6.0, seed=2, method="top_p")]
    # -0.2 and -0.1: with one degree of freedom 12.7062 x 0.1 / 2 = 0.63531.
    assert rows(compare(*runs))[-1] == "| small-dense | -0.1500 ± 0.6353 | 1, 3 |"
    assert compare(*runs).stdout.count("less top-k's") == 1
    assert "less top-k's" not in compare(*runs[3:]).stdout


def test_runs_that_differ_in_more_than_the_seed_stay_apart(tmp_path):
    done = compare(write_run(tmp_path, "a", 5.0, seed=1), write_run(tmp_path, "b", 6.0, seed=2, threads=1))
    assert [row.split(" | ")[:2] for row in rows(done)] == [["| a", "5.0000"], ["| b", "6.0000"]]


def test_one_seed_twice_is_refused(tmp_path):
    done = compare(write_run(tmp_path, "a", 5.0, seed=7), write_run(tmp_path, "b", 6.0, seed=7))
    assert done.returncode == 1
    assert done.stderr == "compare_runs: a and b are of one configuration and seed\n"


@pytest.mark.parametrize("degrees, quantile", [(1, 12.7062), (2, 4.3027), (4, 2.7764), (10, 2.2281), (11, 2.2010),
                                               (15, 2.1314), (20, 2.0860), (30, 2.0423), (120, 1.9799)])
def test_quantiles_are_those_of_the_printed_tables(script, degrees, quantile):
    assert abs(script.student_t_95(degrees) - quantile) < 2e-4


STAND_IN = """\
#!/bin/bash
echo "$@" >>"$CALLS"
[ "$1" = train ] || exit 0
for argument; do case $argument in output=*) output=${argument#output=} ;; esac; done
mkdir -p "$output"
cp "$RUN/metrics.jsonl" "$output"
seed=$(printf '%s\\n' "$@" | sed -n 's/^training.seed=//p')
sed "s/seed: .*/seed: ${seed:-1}/; s/^name: .*/name: ${2##*/}/" "$RUN/config.yaml" >"$output/config.yaml"
"""


def study(tmp_path, *arguments, **environment):
    """small_study.sh with a program that writes down how it is called; the calls of `train`, and what the study did."""
    root, calls = tmp_path / "root", tmp_path / "calls"
    for folder in ("scripts", "build/release/bin", ".venv/bin"):
        (root / folder).mkdir(parents=True)
    for script in ("small_study.sh", "compare_runs.py"):
        (root / "scripts" / script).symlink_to(ROOT / "scripts" / script)
    (root / ".venv/bin/python").symlink_to(sys.executable)
    program = root / "build/release/bin/dtopp"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    run = write_run(tmp_path, "run", 5.0)
    done = subprocess.run(["bash", "scripts/small_study.sh", *arguments], cwd=root, text=True, capture_output=True,
                          env=os.environ | {"CALLS": str(calls), "RUN": str(run)} | environment)
    return [line for line in calls.read_text().splitlines() if line.startswith("train")], done


def test_the_study_of_one_seed_names_its_runs_after_the_methods(tmp_path):
    calls, done = study(tmp_path, "training.steps=9")
    assert calls == [f"train configs/small-{method}.yaml output=runs/small-{method} training.steps=9"
                     for method in ("dense", "top-k", "top-p", "dtop-p", "dtop-p-layer")]
    assert len(rows(done)) == 5 and rows(done)[3].startswith("| small-dtop-p | 5.0000 | ")


def test_the_study_of_several_seeds_trains_each_method_with_each(tmp_path):
    calls, done = study(tmp_path, "training.device=cuda", SEEDS="4 5")
    assert len(calls) == 10
    assert calls[7] == "train configs/small-dtop-p.yaml output=runs/small-dtop-p-seed5 training.seed=5 training.device=cuda"
    assert len(rows(done)) == 5 and rows(done)[3].startswith("| small-dtop-p (2 seeds) | 5.0000 ± 0.0000 | ")
