"""The powered study: the protocol's rules for the rate and the fixed p (benchmarks/studies/powered_arguments.py) on ledgers with known
answers; its synthetic mixture (make_mixture.py); its recorded runs, which a key whose default changes must not make void."""

import hashlib
import importlib.util
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import tiny_run
from needs import needs_program
from tiny_run import ROOT

ARGUMENTS = ROOT / "benchmarks/studies/powered_arguments.py"
specification = importlib.util.spec_from_file_location("powered_arguments", ARGUMENTS)
powered = importlib.util.module_from_spec(specification)
specification.loader.exec_module(powered)


def rate_rows(losses, variant="top-k"):
    return [{"variant": variant, "grid": {"optimizer.lr": rate}, "values": {"val/loss": loss}}
            for rate, values in losses.items() for loss in values]


@pytest.mark.parametrize("losses, rate", [
    ({1e-3: [5.5, 5.6], 2e-3: [5.3, 5.4], 3e-3: [5.5, 5.5]}, 2e-3),
    ({1e-3: [5.359, 5.359], 2e-3: [5.35, 5.35], 3e-3: [5.5, 5.5]}, 1e-3),
    ({1e-3: [5.361, 5.361], 2e-3: [5.35, 5.35]}, 2e-3),
    ({1e-3: [5.5, 5.5], 2e-3: [5.0, None]}, 1e-3),
])
def test_rate_is_the_lowest_within_a_hundredth_of_the_best(losses, rate):
    other = rate_rows({each: [1 if each == min(losses) else 2] * 2 for each in losses}, "dtop-p")
    assert powered.choose_rates(rate_rows(losses) + other) == {"top-k": rate, "dtop-p": min(losses)}


@pytest.mark.parametrize("losses", [{1e-3: [5, 5], 2e-3: [5]}, {1e-3: [5, 5]}, {1e-3: [5], 2e-3: [5]}, {}])
def test_an_unfinished_study_ends_the_choice(losses):
    with pytest.raises(SystemExit, match="finish the study"):
        powered.choose_rates(rate_rows(losses) + rate_rows({1e-3: [5, 5], 2e-3: [5, 5]}, "dtop-p"))


def test_p_is_interpolated_in_the_logarithm_of_the_experts():
    # Experts exp(10 p): 4 at p = ln(4) / 10 = 0.139.
    rows = [{"grid": {"routing.threshold": p}, "curves": {"moe/active_experts": {"value": [math.exp(10 * p) - 1, math.exp(10 * p) + 1]}}}
            for p in (0.05, 0.1, 0.2, 0.3)]
    assert powered.choose_threshold(rows) == round(math.log(4) / 10, 3)
    with pytest.raises(SystemExit, match="outside"):
        powered.choose_threshold(rows[2:])


def test_arguments_name_each_variant_of_the_study():
    lines = powered.arguments_of({"top-k": 1e-3, "dtop-p": 2e-3}, 0.42)
    assert "variants.dense.optimizer.lr=0.001" in lines and "variants.top-p-matched.optimizer.min_lr=2e-05" in lines
    assert lines[-1] == "variants.top-p-matched.routing.threshold=0.42"
    assert powered.arguments_of({"top-k": 1e-3, "dtop-p": 2e-3}) == lines[:-1]
    study = (ROOT / "configs/studies/powered/text.yaml").read_text()
    assert all(f"  {variant}:" in study for variant in powered.METHOD_OF)


MIXTURE = ROOT / "benchmarks/studies/make_mixture.py"
DOMAINS = ("copy", "narrow", "wide", "noise")


def make(folder):
    command = [sys.executable, MIXTURE, folder, "--windows", "60", "--validation", "20"]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return folder, make(folder)


def windows_of(folder, part, domain):
    ids = np.load(folder / part / f"{domain}.npy")
    assert ids.dtype == np.uint16 and ids.ndim == 1 and len(ids) % 256 == 1
    assert ids[-1] == DOMAINS.index(domain)
    return ids[:-1].reshape(-1, 256)


def test_windows_are_of_one_domain_and_none_is_in_both_parts(mixture):
    folder, _ = mixture
    for domain, count, (low, high) in zip(DOMAINS, (24, 12, 21, 3), ((4, 510), (132, 259), (4, 131), (4, 510))):
        train, held_out = (windows_of(folder, part, domain) for part in ("train", "validation"))
        assert len(train) == count and len(held_out) == 20
        for windows in (train, held_out):
            assert (windows[:, 0] == DOMAINS.index(domain)).all()
            assert windows[:, 1:].min() >= low and windows[:, 1:].max() <= high
        assert not {bytes(window) for window in train} & {bytes(window) for window in held_out}
    copies = windows_of(folder, "train", "copy")[:, 1:]
    assert (copies[:, 16:] == copies[:, :-16]).all() and len(np.unique(copies[0])) > 8


def test_teachers_have_the_entropy_of_the_protocol(mixture):
    """20 windows of 255 ids spread by 0.02 about 1.5 nats; the protocol's 512 windows by a fifth of that."""
    _, manifest = mixture
    assert {name for name in manifest["entropy"]} == {f"{part}/{domain}.npy" for part in ("train", "validation") for domain in ("narrow", "wide")}
    assert all(abs(nats - 1.5) < 0.06 for nats in manifest["entropy"].values())


def test_counts_of_ids_agree_with_the_stated_entropy(mixture):
    """Narrow is a Markov chain: the entropy of the next id, from counts of pairs in many windows, is near the teacher's."""
    sys.path.insert(0, str(MIXTURE.parent))
    import make_mixture
    teacher = make_mixture.Teacher(20, "narrow", 1, 8)
    ids, stated = teacher.generate(make_mixture.Draws(1, "check"), 2000, 255)
    assert stated == pytest.approx(1.5, abs=0.02)
    pairs = np.bincount(ids[:, :-1].ravel() * 128 + ids[:, 1:].ravel(), minlength=128 * 128).reshape(128, 128)
    p = pairs / np.maximum(pairs.sum(1, keepdims=True), 1)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    assert (entropy * pairs.sum(1)).sum() / pairs.sum() == pytest.approx(stated, abs=0.02)


def test_checksums_are_of_the_files_and_the_bytes_do_not_change(mixture):
    folder, manifest = mixture
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert len(manifest["files"]) == 8
    # A change of the generator changes the data of the study, and its ledger no longer counts.
    assert manifest["files"]["validation/wide.npy"]["sha256"] == PINNED["validation/wide.npy"]
    assert manifest["files"]["train/narrow.npy"]["sha256"] == PINNED["train/narrow.npy"]


PINNED = {"validation/wide.npy": "bdc0a1c0ff50b1418f11e94e982a8460e0b2a86d9860024956bd7c1e10f670ee", "train/narrow.npy": "4e1ed6b3416acf8d50676764de8de88ee7e25cde60cd6a3aa3917fa4d4a816b8"}


LEDGERS = sorted((ROOT / "benchmarks/studies/powered").glob("*.json"))


@needs_program
@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda path: path.stem)
def test_no_recorded_run_would_train_again(ledger, tmp_path):
    done = tiny_run.dtopp("study", ROOT / f"configs/studies/powered/{ledger.stem}.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = done.stdout.splitlines()[1:]
    status = [line.split()[1] for line in table[:next(i for i, line in enumerate(table) if line.startswith("total"))]]
    assert status and set(status) == {"done"}
