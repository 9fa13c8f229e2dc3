"""Tests scripts/compare_dumps.py on dumps of items with known differences."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from refusal import assert_refused
from tiny_run import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import compare_dumps  # noqa: E402


def item(task, index, right, category=None):
    return {"task": task, "category": category, "index": index, "contexts": [[50, index]], "continuations": [[1], [2]],
            "log_probs": [], "greedy": [], "prediction": 0, "correct": bool(right)}


def write(path, items):
    path.write_text("".join(json.dumps(one) + "\n" for one in items))
    return path


def dumps(tmp_path, make):
    return [write(tmp_path / f"{side}.jsonl", make(side)) for side in (0, 1)]


def write_passages(folder, task, count, each):
    """Writes the questions of a task, `each` questions per passage."""
    texts = [f"Passage: {i // each} was a year of {'rain and ' * 20}wind.\nQuestion {i}?" for i in range(count)]
    (folder / f"{task}.jsonl").write_text("".join(json.dumps({"query": text}) + "\n" for text in texts))
    return folder


def test_clusters_are_categories_passages_and_single_items(tmp_path):
    def make(side):
        return ([item("mmlu", i, side, category=f"c{i % 3}") for i in range(12)]
                + [item("lsat", i, side) for i in range(12)] + [item("copa", i, side) for i in range(12)])

    write_passages(tmp_path, "lsat", 12, 4)
    with gzip.open(tmp_path / "copa.jsonl.gz", "wt") as file:
        file.write(json.dumps({"query": "The same"}) + "\n" + '{"context": "x"}\n' * 11)
    result = compare_dumps.compare_items(dumps(tmp_path, make), tmp_path, samples=50)
    assert {task: row["clusters"] for task, row in result["tasks"].items()} == {"mmlu": 3, "lsat": 3, "copa": 12}
    for row in result["tasks"].values():
        assert (row["items"], row["first"], row["second"], row["low"], row["high"]) == (12, 0, 1, 1, 1)
    assert result["average"] == {"first": 0, "second": 1, "difference": 1, "low": 1, "high": 1}


def test_real_passages_are_found(dtopp_data):
    """The 268 questions of LSAT-RC are about 40 passages (counted in its text)."""
    passages = compare_dumps.read_passages(dtopp_data / "eval/data", "agi_eval_lsat_rc")
    assert (len(passages), len(set(passages)), None in passages) == (268, 40, False)


def test_single_items_have_the_interval_of_the_normal_distribution(tmp_path):
    rng = np.random.default_rng(1)
    right = rng.random((2, 2000)) < np.array([[0.6], [0.65]])
    result = compare_dumps.compare_items(dumps(tmp_path, lambda side: [item("copa", i, right[side, i]) for i in range(2000)]), samples=1000)
    row = result["tasks"]["copa"]
    gain = right[1].astype(float) - right[0]
    half = 1.96 * gain.std() / np.sqrt(len(gain))
    assert row["difference"] == pytest.approx(gain.mean(), abs=1e-12)
    assert row["low"] == pytest.approx(gain.mean() - half, abs=0.15 * half)
    assert row["high"] == pytest.approx(gain.mean() + half, abs=0.15 * half)


def test_items_of_a_passage_that_fall_together_widen_the_interval(tmp_path):
    """All ten items of a passage gain or lose together, so the interval is that of a tenth of the items."""
    rng = np.random.default_rng(2)
    gain = rng.random(150) < 0.5

    paths = dumps(tmp_path, lambda side: [item("lsat", i, gain[i // 10] == bool(side)) for i in range(1500)])
    width = []
    for folder in (None, write_passages(tmp_path, "lsat", 1500, 10)):
        row = compare_dumps.compare_items(paths, folder, samples=1000)["tasks"]["lsat"]
        width.append(row["high"] - row["low"])
    assert width[1] == pytest.approx(np.sqrt(10) * width[0], rel=0.1)


def test_interval_covers_what_is_true_in_95_percent_of_cases(tmp_path):
    """Simulates 200 pairs of models on 60 passages of 1 to 6 items. Each passage has its own gain around 0.1."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        sizes = rng.integers(1, 7, 60)
        chance = np.clip(0.5 + 0.2 * rng.standard_normal(60), 0, 0.9)
        right = np.stack([rng.binomial(sizes, chance), rng.binomial(sizes, chance + 0.1)], 1)
        draws = compare_dumps.resampled(right, sizes, 400, rng)
        low, high = np.quantile(draws, [0.025, 0.975])
        covered += low <= 0.1 <= high
    # Four standard deviations around 0.95, and 0.01 more below, because a bootstrap over so few clusters is
    # slightly narrow.
    assert 0.95 - 4 * 0.0154 - 0.01 <= covered / 200 <= 1


def test_one_cluster_has_no_interval(tmp_path):
    result = compare_dumps.compare_items(dumps(tmp_path, lambda side: [item("mmlu", i, side, category="anatomy") for i in range(5)]), samples=10)
    assert result["tasks"]["mmlu"]["low"] is None and result["average"]["high"] is None


@pytest.mark.parametrize("change, names", [
    (lambda items: items[:-1], "items"),
    (lambda items: [one | {"contexts": [[5, 6]]} for one in items], "requests"),
    (lambda items: [{key: value for key, value in one.items() if key != "correct"} for one in items], "b.jsonl: line 1"),
    (lambda items: [[]], "b.jsonl"),
])
def test_dumps_that_do_not_compare_are_refused_in_one_line(tmp_path, change, names):
    items = [item("copa", i, True) for i in range(3)]
    first, second = write(tmp_path / "a.jsonl", items), write(tmp_path / "b.jsonl", change(items))
    done = subprocess.run([sys.executable, ROOT / "scripts/compare_dumps.py", first, second], text=True, capture_output=True)
    assert_refused(done, 2, names, begins="compare_dumps: ")


def test_prints_a_row_a_task(tmp_path):
    paths = dumps(tmp_path, lambda side: [item("copa", i, side or i % 2) for i in range(10)])
    done = subprocess.run([sys.executable, ROOT / "scripts/compare_dumps.py", *paths, "--samples", "100"], text=True, capture_output=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split()[:4] == ["copa", "50.00", "100.00", "+50.00"]
