"""Tests scripts/compare_images.py and scripts/cifar10_study.sh on made-up measurements, against figures
calculated by hand."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_run import ROOT

SCRIPT = ROOT / "scripts/compare_images.py"
CONFIG = """\
name: cifar10
model:
  num_experts: {experts}
routing:
  method: {method}
training:
  seed: {seed}
output: {output}
"""
IMAGES = 40


def write_run(folder, name, loss, seed=1, method="dtop_p", experts=16, active=4.0, p=(0.5, 0.5)):
    """A run at step 400 and its measurements. Image i of 40 has t = i / 40 and the loss `loss` + i / 1000."""
    run = folder / "runs" / name
    run.mkdir(parents=True)
    run.joinpath("config.yaml").write_text(CONFIG.format(method=method, seed=seed, experts=experts, output=run))
    at = {f"moe/layer_{i:02}/threshold": value for i, value in enumerate(p)}
    lines = [{"step": 399, "train/loss": 1} | dict.fromkeys(at, 0.1), {"step": 400, "train/loss": 1} | at,
             {"step": 400, "val/loss": 1}, {"step": 401, "train/loss": 1} | dict.fromkeys(at, 0.9)]
    run.joinpath("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = folder / "results"
    results.mkdir(exist_ok=True)
    write_dump(results / f"{name}.safetensors", loss, seed)
    measured = {"images": IMAGES, "loss": loss + 0.0195, "ema_loss": loss + 0.1}
    measured |= {f"loss_t{i}": loss + 0.0015 + 0.004 * i for i in range(10)}
    if experts > 1:
        measured |= {"active_experts": active, "active_experts_std": 1.5,
                     "active_experts_by_layer": {"all": [active - 1, active + 1]}}
        measured |= {f"active_experts_t{i}": active + i / 10 for i in range(10)}
    (results / f"{name}.json").write_text(json.dumps(measured))
    pictures = np.full((20, 4, 4, 3), 10 * len(name), np.uint8)
    np.savez(results / f"{name}.npz", arr_0=pictures, arr_1=np.arange(20) % 2)
    return run


def write_dump(path, loss, seed):
    generator = torch.Generator().manual_seed(seed)
    x0, noise = torch.randn(2, IMAGES, 3, 4, 4, generator=generator)
    error = (loss + torch.arange(IMAGES) / 1000).sqrt()
    save_file({"x0": x0, "noise": noise, "t": torch.arange(IMAGES) / IMAGES,
               "prediction": noise - x0 + error[:, None, None, None]}, path, {"objective": "flow"})


def write_judged(folder, values):
    """Writes {name of a run: KID} together with the two reference rows."""
    rows = [{"name": str(folder / f"results/{name}.npz"), "kid": kid, "kid_error": 0.002, "frechet_distance": 10 * kid,
             "precision": 0.5, "recall": 0.25, "probe_accuracy": 0.75} for name, kid in values.items()]
    rows.append({"name": "noise", "kid": 3, "kid_error": 0.01, "frechet_distance": 90, "precision": 0, "recall": 0})
    path = folder / "judged.json"
    path.write_text(json.dumps({"pictures": 20, "reference": 1000, "extractor": "a network", "rows": rows}))
    return path


def compare(folder, *runs, arguments=(), status=0):
    command = [sys.executable, SCRIPT, *runs, "--step", 400, "--results", folder / "results", *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def parts(done):
    """{title: its rows, split into cells}."""
    found = {}
    for part in done.stdout.split("\n\n**"):
        title, _, table = part.partition("\n\n")
        found[title.strip("*")] = [[cell.strip() for cell in row.strip("| \n").split(" | ")] for row in table.splitlines()
                                   if not row.startswith("|---")]
    return found


def test_one_seed_has_the_bootstraps_intervals(tmp_path):
    runs = [write_run(tmp_path, "c-dense-seed1", 1.2, experts=1),
            write_run(tmp_path, "c-top-k-seed1", 1.0, method="top_k"),
            write_run(tmp_path, "c-dtop-p-seed1", 0.9, p=(0.4, 0.6))]
    judged = write_judged(tmp_path, {"c-top-k-seed1": 0.3, "c-dtop-p-seed1": 0.2})
    found = parts(compare(tmp_path, *runs, arguments=["--judged", judged, "--grids", tmp_path / "grids.png"]))
    assert found["Held-out loss and experts"][1:] == [
        ["c-dense-seed1", "1.21950", "1.30000", "+200.00 (+200.00 to +200.00)", "–", "–", "–"],
        ["c-top-k-seed1", "1.01950", "1.10000", "–", "4.000", "1.50", "–"],
        ["c-dtop-p-seed1", "0.91950", "1.00000", "-100.00 (-100.00 to -100.00)", "4.000", "1.50", "0.400 to 0.600"]]
    samples = found["Samples: 20 pictures a row against 1,000 training pictures, a network"]
    assert samples[1:] == [["c-dense-seed1", *["–"] * 5],
                           ["c-top-k-seed1", "0.3000 ± 0.0020", "3.00", "0.500", "0.250", "0.750"],
                           ["c-dtop-p-seed1", "0.2000 ± 0.0020", "2.00", "0.500", "0.250", "0.750"],
                           ["noise", "3.0000 ± 0.0100", "90.00", "0.000", "0.000", "–"]]
    by_t = found["Held-out loss by tenth of t"]
    assert by_t[0] == ["t", "c-dense-seed1", "c-top-k-seed1", "c-dtop-p-seed1"]
    assert by_t[1] == ["t0", "1.2015", "1.0015", "0.9015"] and by_t[10] == ["t9", "1.2375", "1.0375", "0.9375"]
    less = found["Loss less top-k's × 1000 by tenth of t"]
    assert less[0] == ["t", "c-dense-seed1", "c-dtop-p-seed1"]
    assert less[3] == ["t2", "+200.00 (+200.00 to +200.00)", "-100.00 (-100.00 to -100.00)"]
    assert found["Active experts by tenth of t"][10] == ["t9", "4.90", "4.90"]
    assert found["Active experts by layer"] == [["layer", "c-top-k-seed1", "c-dtop-p-seed1"], ["0", "3.00", "3.00"],
                                                ["1", "5.00", "5.00"]]
    grids = np.asarray(Image.open(tmp_path / "grids.png"))
    assert grids.shape == (14 + 2 * 4, 3 * 32 + 4 * 12, 3)
    assert (grids[14:, 12:44] == 130).all() and (grids[14:, 56:88] == 130).all() and (grids[14:, 100:132] == 140).all()
    assert (grids[:14, 12:44] < 100).any()  # a run's name


def test_one_seed_twice_is_refused(tmp_path):
    runs = [write_run(tmp_path, name, 1.0, seed=7) for name in ("a", "b")]
    assert compare(tmp_path, *runs, status=2).stderr == "compare_images: a and b are of one configuration and seed\n"


def test_several_seeds_have_intervals_over_seeds(tmp_path):
    runs = []
    for seed, top_k, dtop_p in ((1, 1.0, 0.9), (2, 1.1, 0.95), (3, 1.3, 1.25)):
        runs.append(write_run(tmp_path, f"c-top-k-seed{seed}", top_k, seed, "top_k"))
        runs.append(write_run(tmp_path, f"c-dtop-p-seed{seed}", dtop_p, seed, active=3.9 + seed / 20))
    judged = write_judged(tmp_path, {f"c-top-k-seed{seed}": 0.1 * seed for seed in (1, 2, 3)})
    found = parts(compare(tmp_path, *runs, arguments=["--judged", judged]))
    # The differences are -0.1, -0.15, -0.05. Their standard deviation is 0.05, and 4.3027 x 0.05 / sqrt 3 =
    # 0.12421. The losses have standard deviations of 0.152753 and 0.189297, which give 0.37946 and 0.47024.
    assert found["Held-out loss and experts"][1:] == [
        ["c-top-k (3 seeds)", "1.15283 ± 0.37946", "1.23333 ± 0.37946", "–", "4.000 ± 0.000", "1.50", "–"],
        ["c-dtop-p (3 seeds)", "1.05283 ± 0.47024", "1.13333 ± 0.47024", "-100.00 ± 124.21", "4.000 ± 0.124", "1.50",
         "0.500"]]
    assert found["Loss less top-k's × 1000 by tenth of t"][4] == ["t3", "-100.00 ± 124.21"]
    # KID 0.1, 0.2, 0.3: the standard deviation is 0.1, which gives 0.24842.
    assert found["Samples: 20 pictures a row against 1,000 training pictures, a network"][1][1] == "0.2000 ± 0.2484"


@pytest.mark.parametrize("missing", ["results/c-seed1.json", "runs/c-seed1/config.yaml", "runs/c-seed1/metrics.jsonl"])
def test_what_is_missing_is_told_in_one_line(tmp_path, missing):
    run = write_run(tmp_path, "c-seed1", 1.0)
    (tmp_path / missing).unlink()
    done = compare(tmp_path, run, status=2)
    assert missing in done.stderr and done.stderr.count("\n") == 1 and not done.stdout


def test_a_step_that_was_not_reached_is_told(tmp_path):
    done = compare(tmp_path, write_run(tmp_path, "c-seed1", 1.0), arguments=["--step", 500], status=2)
    assert "has no step 500" in done.stderr and done.stderr.count("\n") == 1


STAND_IN = """\
#!/bin/bash
echo "$@" >>"$CALLS"
for argument; do
  case $argument in output=*) run=${argument#output=} ;; esac
  [ "$previous" = --output ] && output=$argument
  [ "$previous" = --dump ] && dump=$argument
  previous=$argument
done
case $1 in
  train)
    mkdir -p "$run/checkpoints/step-00000400"
    exec sleep "${TRAINING:-0}" ;;
  evaluate) touch "$dump" "$output" ;;
  sample) touch "$output" ;;
esac
"""


def study(root, *arguments, **environment):
    """Runs cifar10_study.sh with stand-ins for the program and for Python, which record their calls."""
    calls = root / "calls"
    if not calls.exists():
        for folder in ("scripts", "build/release/bin", ".venv/bin"):
            (root / folder).mkdir(parents=True)
        (root / "scripts/cifar10_study.sh").symlink_to(ROOT / "scripts/cifar10_study.sh")
        for program in ("build/release/bin/dtopp", ".venv/bin/python"):
            (root / program).write_text(STAND_IN)
            (root / program).chmod(0o755)
    calls.write_text("")
    done = subprocess.run(["bash", "scripts/cifar10_study.sh", *arguments], cwd=root, text=True, capture_output=True,
                          timeout=300, env=os.environ | {"CALLS": str(calls), "DTOPP_DATA": "there"} | environment)
    assert done.returncode == 0, done.stderr
    return calls.read_text().splitlines()


def test_the_study_trains_measures_samples_and_judges(tmp_path):
    calls = study(tmp_path, "training.device=cuda", METHODS="top-k dtop-p", SEEDS="1 2", STEP="400", SAMPLES="50")
    assert [call.split()[0] for call in calls] == ["prepare"] * 2 + ["train", "evaluate", "sample"] * 4 + [
        "scripts/judge_samples.py", "scripts/compare_images.py"]
    assert calls[0] == "prepare images there/data/images/cifar10-train.tar.zst --output data/cifar10/train"
    assert calls[5].startswith("train configs/cifar10.yaml method=dtop_p output=runs/cifar10-dtop-p-seed1 training.seed=1 ")
    assert calls[5].endswith(" routing.ki=1.5 training.device=cuda") and "routing.ki" not in calls[2]
    result = "runs/cifar10-study/step-00000400/cifar10-top-k-seed2"
    checkpoint = "runs/cifar10-top-k-seed2/checkpoints/step-00000400"
    assert calls[9] == (f"evaluate images {checkpoint} --images data/cifar10/validation "
                        f"--dump {result}.safetensors --output {result}.json")
    assert calls[10] == f"sample {checkpoint} --count 50 --steps 25 --guidance 2 --output {result}.npz"
    assert calls[14].count(".npz") == 4 and calls[15].count(" runs/cifar10-top-k-seed") == 2 and "--step 400" in calls[15]


def test_the_study_does_nothing_twice(tmp_path):
    first = study(tmp_path, METHODS="top-k", STEP="400")
    again = study(tmp_path, METHODS="top-k", STEP="400")
    assert len(first) == 7
    assert [call.split()[0] for call in again] == ["prepare", "prepare", "scripts/compare_images.py"]
    more = study(tmp_path, METHODS="top-k dense", STEP="400")
    assert [call.split()[0] for call in more[2:]] == ["train", "evaluate", "sample", "scripts/judge_samples.py",
                                                      "scripts/compare_images.py"]


def test_training_stops_at_the_step_that_is_looked_at(tmp_path):
    study(tmp_path, METHODS="top-k", STEP="400", TRAINING="1000")  # a hang would reach subprocess.run's timeout
