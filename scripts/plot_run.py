"""Draws a run's validation loss, active experts and threshold from its metrics.jsonl.

Usage: plot_run.py RUN_DIRECTORY OUTPUT.png      (needs matplotlib: .venv/bin/python -m pip install matplotlib)
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

run, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
steps = [line for line in lines if "train/loss" in line]
validation = [line for line in lines if "val/loss" in line]
target = next(float(line.split(":")[1]) for line in (run / "config.yaml").read_text().splitlines()
              if line.strip().startswith("target_experts:"))
x = [line["step"] for line in steps]

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
left.plot(x, [line["train/lm_loss"] for line in steps], color="0.7", label="training")
left.plot([line["step"] for line in validation], [line["val/loss"] for line in validation], "o-", label="held-out")
left.set(title="Cross entropy (nats a token)", xlabel="step")
left.legend(frameon=False)

mean = [line["moe/active_experts"] for line in steps]
deviation = [line["moe/active_experts_std"] for line in steps]
middle.fill_between(x, [m - d for m, d in zip(mean, deviation)], [m + d for m, d in zip(mean, deviation)], alpha=0.15)
middle.plot(x, mean, label="mean over tokens (± deviation)")
middle.axhline(target, color="0.3", linestyle="--", label=f"target {target:g}")
middle.set(title="Active experts a token", xlabel="step", ylim=(0, None))
middle.legend(frameon=False)

right.plot(x, [line["moe/threshold"] for line in steps])
right.set(title="Threshold p", xlabel="step", ylim=(0, 1))
for axis in (left, middle, right):
    axis.spines[["top", "right"]].set_visible(False)
output.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(output, dpi=110)
