"""Draws from a run's metrics.jsonl its losses and, as far as its routing has them, active experts and threshold.

Usage: plot_run.py RUN_DIRECTORY OUTPUT.png      (needs matplotlib: .venv/bin/python -m pip install matplotlib)
"""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def value_of(config, key):
    """The text behind the first such key of a config.yaml that names every key on a line of its own."""
    return next(line.split(":", 1)[1].strip() for line in config if line.strip().startswith(key + ":"))


def target_of(config):
    """What the controller holds, the mean of several; None where nothing is controlled."""
    if value_of(config, "method") != "dtop_p":
        return None
    return statistics.mean(json.loads("[" + value_of(config, "target_experts").strip("[]") + "]"))


def draw_losses(axis, steps, validation):
    axis.plot([line["step"] for line in steps], [line["train/lm_loss"] for line in steps], color="0.7", label="training")
    if validation:
        axis.plot([line["step"] for line in validation], [line["val/loss"] for line in validation], "o-", label="held-out")
    axis.set(title="Cross entropy (nats a token)", xlabel="step")
    axis.legend(frameon=False)


def draw_experts(axis, steps, target):
    x = [line["step"] for line in steps]
    mean = [line["moe/active_experts"] for line in steps]
    deviation = [line["moe/active_experts_std"] for line in steps]
    axis.fill_between(x, [m - d for m, d in zip(mean, deviation)], [m + d for m, d in zip(mean, deviation)], alpha=0.15)
    axis.plot(x, mean, label="mean over tokens (± deviation)")
    if target is not None:
        axis.axhline(target, color="0.3", linestyle="--", label=f"target {target:g}")
    axis.set(title="Active experts a token", xlabel="step", ylim=(0, None))
    axis.legend(frameon=False)


def draw_threshold(axis, steps):
    axis.plot([line["step"] for line in steps], [line["moe/threshold"] for line in steps])
    axis.set(title="Threshold p", xlabel="step", ylim=(0, 1))


def main():
    run, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    config = (run / "config.yaml").read_text().splitlines()
    steps = [line for line in lines if "train/loss" in line]
    panels = [lambda axis: draw_losses(axis, steps, [line for line in lines if "val/loss" in line])]
    if "moe/active_experts" in steps[0]:  # not of a dense model
        panels.append(lambda axis: draw_experts(axis, steps, target_of(config)))
    if "moe/threshold" in steps[0]:  # not with top_k
        panels.append(lambda axis: draw_threshold(axis, steps))
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.4), constrained_layout=True, squeeze=False)
    for axis, draw in zip(axes[0], panels):
        draw(axis)
        axis.spines[["top", "right"]].set_visible(False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
