"""The synthetic mixture (benchmarks/studies/make_mixture.py): its windows, its entropy, its checksums."""

import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "benchmarks/studies/make_mixture.py"
DOMAINS = ("copy", "narrow", "wide", "noise")


def make(folder):
    command = [sys.executable, SCRIPT, folder, "--windows", "60", "--validation", "20"]
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
    sys.path.insert(0, str(SCRIPT.parent))
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
