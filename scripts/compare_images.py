#!/usr/bin/env python3
"""Tables of diffusion transformers at one step: losses, differences from top-k, experts, and their samples as judged.

Usage: compare_images.py RUN_DIRECTORY… --step STEP --results DIR [--judged FILE.json] [--grids FILE.png]

For a run named NAME, DIR holds NAME.json and NAME.safetensors (`dtopp evaluate images --output --dump`) and
NAME.npz (`dtopp sample`); FILE.json is of judge_samples.py --json over those. Runs whose configuration differs in the
seed alone are one row of means. Differences from top-k are of runs of one seed, image by image. With one seed their 95 %
interval is the bootstrap's over images: what other images would change about these two models, not what another seed
would. With several it is Student's t over the seeds' differences. KID has ± its standard error with one seed, the 95 %
interval over seeds with several.
"""

import argparse
import json
import pathlib
import statistics
import sys
from dataclasses import dataclass

import compare_dumps
import numpy as np
from PIL import Image, ImageDraw
from runs_by_seed import group_by_configuration, half_width, is_top_k, name_of, read_configuration, with_interval

BUCKETS = [f"t{i}" for i in range(compare_dumps.BUCKETS)]
PICTURES_OF_CLASS, GAP, TITLE = 8, 12, 14  # pictures of a class in the grids; pixels


def fail(message):
    print(f"compare_images: {message}", file=sys.stderr)
    sys.exit(2)


@dataclass
class Run:
    name: str
    seed: int
    configuration: tuple  # the lines of config.yaml, but seed and output
    measured: dict  # of dtopp evaluate
    thresholds: list  # p of every layer that has one, at the step
    dump: pathlib.Path
    samples: pathlib.Path
    judged: dict  # the row of judge_samples; empty where it was not judged


def thresholds_at(directory, step, configuration):
    if "  num_experts: 1" in configuration or "  method: top_k" in configuration:
        return []
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        if values["step"] == step and "train/loss" in values:
            names = [name for name in sorted(values) if name.startswith("moe/layer_") and name.endswith("/threshold")]
            return [values[name] for name in names]
    raise ValueError(f"{directory}/metrics.jsonl has no step {step}")


def read_run(directory, step, results, judged):
    seed, configuration = read_configuration(directory)
    file = {suffix: results / f"{directory.name}.{suffix}" for suffix in ("json", "safetensors", "npz")}
    measured = json.loads(file["json"].read_text())
    return Run(directory.name, seed, configuration, measured, thresholds_at(directory, step, configuration),
               file["safetensors"], file["npz"], judged.get(file["npz"], {}))


def differences(groups):
    """Each group but top-k's, by its place: compare_dumps' results of the seeds both have, second less top-k."""
    reference = next((group for group in groups if is_top_k(group)), {})
    found = {}
    for i, group in enumerate(groups):
        seeds = sorted(set(group) & set(reference))
        if group is not reference and seeds:
            found[i] = [compare_dumps.compare([reference[seed].dump, group[seed].dump]) for seed in seeds]
    return found


def difference(results, scale=1000, digits=2):
    """Mean ± half-width over seeds; of one seed the bootstrap's interval."""
    values = [scale * result["difference"] for result in results]
    if len(values) > 1:
        return f"{statistics.mean(values):+.{digits}f} ± {half_width(values):.{digits}f}"
    low, high = scale * results[0]["low"], scale * results[0]["high"]
    return f"{values[0]:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def judged_cells(rows):
    """KID, Fréchet distance, precision, recall, probe accuracy of judge_samples' rows, of one model a seed."""
    if not all(rows):
        return ["–"] * 5
    kid = [row["kid"] for row in rows]
    error = rows[0]["kid_error"] if len(rows) == 1 else half_width(kid)
    cells = [f"{statistics.mean(kid):.4f} ± {error:.4f}"]
    for name, digits in (("frechet_distance", 2), ("precision", 3), ("recall", 3), ("probe_accuracy", 3)):
        cells.append(with_interval([row.get(name) for row in rows], digits))
    return cells


def line(*cells):
    return "| " + " | ".join(cells) + " |"


def header(*cells):
    return [line(*cells), "|" + "---|" * len(cells)]


def titles(groups):
    return [name_of(group) if len(group) == 1 else f"{name_of(group)} ({len(group)} seeds)" for group in groups]


def thresholds(group):
    values = [p for run in group.values() for p in run.thresholds]
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{low:.3f}" if high - low < 1e-9 else f"{low:.3f} to {high:.3f}"


def loss_table(groups, compared):
    rows = header("model", "loss", "loss of the average", "loss less top-k's × 1000", "active experts",
                  "deviation over tokens", "p")
    for i, group in enumerate(groups):
        measured = [run.measured for run in group.values()]
        deviation = "–"
        if "active_experts_std" in measured[0]:
            deviation = f"{statistics.mean(m['active_experts_std'] for m in measured):.2f}"
        rows.append(line(titles(groups)[i], with_interval([m["loss"] for m in measured], 5),
                         with_interval([m["ema_loss"] for m in measured], 5),
                         difference(compared[i]) if i in compared else "–",
                         with_interval([m.get("active_experts") for m in measured], 3), deviation, thresholds(group)))
    return rows


def judged_table(groups, judged):
    rows = header("pictures", "KID", "Fréchet distance", "precision", "recall", "probe accuracy")
    for title, group in zip(titles(groups), groups):
        rows.append(line(title, *judged_cells([run.judged for run in group.values()])))
    return rows + [line(row["name"], *judged_cells([row])) for row in judged["rows"] if not row["name"].endswith(".npz")]


def by_t_table(groups, value):
    """value(group, bucket): a cell, or None where a group has none."""
    having = [i for i, group in enumerate(groups) if value(group, 0) is not None]
    rows = header("t", *[titles(groups)[i] for i in having])
    return rows + [line(name, *[value(groups[i], bucket) for i in having]) for bucket, name in enumerate(BUCKETS)]


def of_measured(prefix, digits):
    def value(group, bucket):
        values = [run.measured.get(f"{prefix}_t{bucket}") for run in group.values()]
        return None if values[0] is None else with_interval(values, digits)

    return value


def layer_table(groups):
    having = [(title, [run.measured["active_experts_by_layer"]["all"] for run in group.values()])
              for title, group in zip(titles(groups), groups)
              if "active_experts_by_layer" in next(iter(group.values())).measured]
    if not having:
        return []
    layers = range(len(having[0][1][0]))
    rows = header("layer", *[title for title, _ in having])
    return rows + [line(str(layer), *[with_interval([counts[layer] for counts in runs], 2) for _, runs in having])
                   for layer in layers]


def draw_grids(groups, path):
    """Eight pictures of each group's first run: a class, a row a class, side by side under their names."""
    grids = []
    for group in groups:
        with np.load(next(iter(group.values())).samples) as file:
            pictures, labels = file["arr_0"], file["arr_1"]
        rows = [np.concatenate(pictures[labels == label][:PICTURES_OF_CLASS], 1) for label in np.unique(labels)]
        width = min(row.shape[1] for row in rows)
        grids.append(Image.fromarray(np.concatenate([row[:, :width] for row in rows])))
    size = sum(grid.width + GAP for grid in grids) + GAP, TITLE + max(grid.height for grid in grids)
    sheet = Image.new("RGB", size, "white")
    left = GAP
    for group, grid in zip(groups, grids):
        ImageDraw.Draw(sheet).text((left, 1), next(iter(group.values())).name, "black")
        sheet.paste(grid, (left, TITLE))
        left += grid.width + GAP
    sheet.save(path)


def tables(groups, judged):
    compared = differences(groups)
    parts = [("Held-out loss and experts", loss_table(groups, compared))]
    if judged:
        parts.append((f"Samples: {judged['pictures']:,} pictures a row against {judged['reference']:,} training pictures, "
                      f"{judged['extractor']}", judged_table(groups, judged)))
    parts.append(("Held-out loss by tenth of t", by_t_table(groups, of_measured("loss", 4))))
    if compared:
        at = {id(group): compared[i] for i, group in enumerate(groups) if i in compared}
        parts.append(("Loss less top-k's × 1000 by tenth of t", by_t_table(groups, lambda group, bucket: difference(
            [result["by_t"][bucket] for result in at[id(group)]]) if id(group) in at else None)))
    parts.append(("Active experts by tenth of t", by_t_table(groups, of_measured("active_experts", 2))))
    parts.append(("Active experts by layer", layer_table(groups)))
    return "\n\n".join("\n".join([f"**{title}**", "", *rows]) for title, rows in parts if len(rows) > 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN_DIRECTORY")
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--judged", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--grids", type=pathlib.Path, metavar="FILE.png")
    options = parser.parse_args()
    try:
        judged = json.loads(options.judged.read_text()) if options.judged else {}
        rows = {pathlib.Path(row["name"]): row for row in judged.get("rows", [])}
        groups = group_by_configuration([read_run(run, options.step, options.results, rows) for run in options.runs])
        if options.grids:
            draw_grids(groups, options.grids)
    except (OSError, ValueError, KeyError) as error:
        fail(f"{type(error).__name__} {error}" if isinstance(error, KeyError) else error)
    print(tables(groups, judged))


if __name__ == "__main__":
    main()
