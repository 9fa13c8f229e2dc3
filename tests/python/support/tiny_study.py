"""A study of two variants of the tiny run, and its results."""

import json

import tiny_run

STUDY = """\
base: run.yaml
seeds: [1, 2, 3]
variants:
  top-k: {{routing.method: top_k, routing.experts: 3}}
  dtop-p: {{routing.method: dtop_p}}
measure: [val/loss, train/lm_loss]
output: {output}
"""


def write_study(directory, text=STUDY):
    tiny_run.make(directory)
    path = directory / "study.yaml"
    path.write_text(text.format(output=directory / "out"))
    return path


def results(directory):
    return json.loads((directory / "out/study.json").read_text())


def run_of(document, variant, seed, **grid):
    return next(run for run in document["runs"] if (run["variant"], run["seed"], run["grid"]) == (variant, seed, grid))
