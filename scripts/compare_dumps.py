#!/usr/bin/env python3
"""Compares two models by the dumps of `dtopp evaluate tasks --dump` or `dtopp evaluate images --dump`.

Usage: compare_dumps.py FIRST.jsonl SECOND.jsonl [--data DIR] [--samples 10000] [--seed 0] [--json]
       compare_dumps.py FIRST.safetensors SECOND.safetensors [--samples 10000] [--seed 0] [--json]

Both models got the same items or images, which are compared one by one. The result is a difference, second minus first, with a
95 % interval from a paired bootstrap:

- .jsonl: of the accuracies, per task. The bootstrap draws clusters of items that may share a difficulty: a category (MMLU); with
  --data, the evaluated folder, the items about one passage; otherwise single items.
- .safetensors: of the mean losses of diffusion transformers, which had the same noise at the same t; also for each tenth of the
  images by t. The bootstrap draws images.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys

import numpy as np

LARGEST = 1 << 20  # random numbers drawn at once
PASSAGE = "Passage: "
KNOWN_BY = 120  # characters that identify a passage
PIECE = 256  # images per read
BUCKETS = 10


def fail(message):
    print(f"compare_dumps: {message}", file=sys.stderr)
    sys.exit(2)


def read_text(path):
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout.decode()
    return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8").read()


def read_passages(folder, task):
    """The beginning of each item's passage, or None if the item has no passage."""
    path = next((path for end in (".jsonl.zst", ".jsonl", ".jsonl.gz") if (path := folder / (task + end)).exists()), None)
    if path is None:
        fail(f"{folder}: holds no {task}.jsonl.zst, {task}.jsonl or {task}.jsonl.gz")
    try:
        questions = [json.loads(line).get("query", "") for line in read_text(path).splitlines()]
    except (OSError, subprocess.CalledProcessError, ValueError, AttributeError) as error:
        fail(f"{path}: {error}")
    return [question[:KNOWN_BY] if question.startswith(PASSAGE) else None for question in questions]


class Clusters:
    """Groups items by category, by passage, or else each by itself."""

    def __init__(self, folder):
        self.folder = folder
        self.passages = {}  # by task

    def of(self, task, category, index):
        if category is not None or self.folder is None:
            return category if category is not None else index
        if task not in self.passages:
            self.passages[task] = read_passages(self.folder, task)
        if index >= len(self.passages[task]):
            fail(f"{self.folder}: {task} has no item {index}: not the data that was evaluated")
        return self.passages[task][index] or index


def read_items(path):
    """Returns {(task, category, index): (the request, whether the answer is correct)} in the file's order."""
    items = {}
    try:
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            item = json.loads(line)
            if item.get("correct") is None:
                fail(f"{path}: line {number}: no answer; make the dump without --dry-run")
            asked = hash(json.dumps([item["contexts"], item["continuations"]]))
            items[item["task"], item["category"], item["index"]] = asked, bool(item["correct"])
    except (OSError, ValueError, AttributeError, TypeError, LookupError) as error:
        fail(f"{path}: not a dump of dtopp evaluate: {error!r}")
    return items


def by_task(first, second, clusters):
    """Returns {task: (correct answers [clusters, 2], items [clusters])}."""
    if first.keys() != second.keys():
        fail("the dumps have different items; evaluate both models with the same tasks and --limit")
    tasks = {}
    for key, (asked, right) in first.items():
        if asked != second[key][0]:
            fail(f"{key[0]}, item {key[2]}: the models got different requests; compare models with the same tokenizer")
        counts = tasks.setdefault(key[0], {}).setdefault(clusters.of(*key), [0, 0, 0])
        counts[0] += right
        counts[1] += second[key][1]
        counts[2] += 1
    tables = {task: np.array(list(counts.values()), np.int64) for task, counts in tasks.items()}
    return {task: (table[:, :2], table[:, 2]) for task, table in tables.items()}


def resampled(right, items, samples, rng):
    """Differences of accuracy for `samples` draws of as many clusters as there are."""
    gain = right[:, 1] - right[:, 0]
    clusters = len(items)
    chances = np.full(clusters, 1 / clusters)
    differences = []
    for begin in range(0, samples, at_once := max(1, LARGEST // clusters)):
        draws = rng.multinomial(clusters, chances, size=min(at_once, samples - begin))
        differences.append((draws @ gain) / (draws @ items))
    return np.concatenate(differences)


def with_interval(difference, draws, clusters):
    """The bounds are None if there is only one cluster: redrawing it gives no information."""
    low, high = (None, None) if clusters < 2 else map(float, np.quantile(draws, [0.025, 0.975]))
    return {"difference": float(difference), "low": low, "high": high}


def compare_items(paths, folder=None, samples=10000, seed=0):
    """Returns the output of --json for two files."""
    tasks = by_task(*map(read_items, paths), Clusters(folder))
    rng = np.random.default_rng(seed)
    result, all_draws = {}, []
    for task, (right, items) in tasks.items():
        first, second = right.sum(0) / items.sum()
        draws = resampled(right, items, samples, rng)
        all_draws.append(draws)
        result[task] = {"items": int(items.sum()), "clusters": len(items), "first": float(first), "second": float(second)}
        result[task] |= with_interval(second - first, draws, len(items))
    average = {name: float(np.mean([row[name] for row in result.values()])) for name in ("first", "second")}
    least = min(row["clusters"] for row in result.values())
    average |= with_interval(average["second"] - average["first"], np.mean(all_draws, 0), least)
    return {"tasks": result, "average": average}


def row_text(name, row):
    interval = "no interval: one cluster" if row["low"] is None else f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}"
    counts = f"{row['items']} items in {row['clusters']} clusters" if "items" in row else ""
    return (f"{name:18} {100 * row['first']:6.2f} {100 * row['second']:6.2f}  {100 * row['difference']:+6.2f}  "
            f"({interval})  {counts}").rstrip()


def losses(paths):
    """Returns the mean squared errors f64 [2, N] and t [N]. Reads both files in parallel."""
    from safetensors import safe_open

    first, second = files = [safe_open(path, "np") for path in paths]
    if first.metadata().get("objective") != second.metadata().get("objective"):
        fail("the dumps have different objectives; compare models with the same diffusion.objective")
    shapes = [file.get_slice("x0").get_shape() for file in files]
    if shapes[0] != shapes[1]:
        fail(f"the dumps are of images {shapes[0]} and {shapes[1]}")
    t, other_t = (file.get_tensor("t") for file in files)
    if not np.array_equal(t, other_t):
        fail("the dumps differ in t; evaluate both models on the same images, with runs of the same training.seed")
    flow = first.metadata().get("objective") == "flow"
    out = np.empty((2, len(t)))
    for begin in range(0, len(t), PIECE):
        piece = slice(begin, min(begin + PIECE, len(t)))
        x0, noise = (first.get_slice(name)[piece] for name in ("x0", "noise"))
        for name, own in (("x0", x0), ("noise", noise)):
            if not np.array_equal(second.get_slice(name)[piece], own):
                fail(f"the dumps differ in {name}; evaluate both models on the same images, with runs of the same training.seed")
        target = noise - x0 if flow else noise
        for i, file in enumerate(files):
            error = file.get_slice("prediction")[piece].astype(np.float64) - target
            out[i, piece] = (error**2).mean((1, 2, 3))
    return out, t


def bootstrap(values, samples, rng):
    """The mean, and the ends of the middle 95 % of the means of resampled values."""
    counts = (rng.multinomial(len(values), np.full(len(values), 1 / len(values))) for _ in range(samples))
    means = np.array([count @ values for count in counts]) / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"difference": float(values.mean()), "low": float(low), "high": float(high)}


def compare_images(paths, samples=10000, seed=0):
    """Returns the output of --json for two files."""
    try:
        (first, second), t = losses(paths)
    except Exception as error:  # a missing file, or not a dump
        fail(error)
    rng = np.random.default_rng(seed)
    difference = second - first
    result = {"images": len(t), "first": float(first.mean()), "second": float(second.mean())}
    result |= bootstrap(difference, samples, rng)
    parts = [part for part in np.array_split(np.argsort(t, kind="stable"), BUCKETS) if len(part)]
    result["by_t"] = [{"from": float(t[part].min()), "to": float(t[part].max())}
                      | bootstrap(difference[part], samples, rng) for part in parts]
    return result


def print_items(result):
    print(f"{'accuracy, %':18}  first second   difference, 95 %")
    for task, row in result["tasks"].items():
        print(row_text(task, row))
    print(row_text("average", result["average"]))


def print_images(result):
    print(f"{result['images']} images, loss {result['first']:.6f} and {result['second']:.6f}")
    print(f"difference {result['difference']:+.6f}, 95 % from {result['low']:+.6f} to {result['high']:+.6f}")
    for part in result["by_t"]:
        print(f"t {part['from']:.3f} to {part['to']:.3f}: {part['difference']:+.6f} ({part['low']:+.6f} to "
              f"{part['high']:+.6f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs=2)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--samples", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.dumps[0].endswith(".safetensors"):
        result, show = compare_images(options.dumps, options.samples, options.seed), print_images
    else:
        result, show = compare_items(options.dumps, options.data, options.samples, options.seed), print_items
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
