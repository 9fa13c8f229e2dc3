"""Draws the results of benchmarks/moe_layers.py: forward + backward of each layer and of dtopp's over sizes.
Also prints the table of docs/performance.md.

Usage: plot_layers.py RESULTS.jsonl OUTPUT.png      (needs matplotlib: .venv/bin/python -m pip install
matplotlib)
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

AXES = {"D": "hidden size", "E": "experts", "K": "active experts", "T": "tokens"}
STYLE = {"dtopp": ("C0", "o-"), "dense": ("0.4", "s--"), "olmoe grouped": ("C1", "^-"), "olmoe eager": ("C3", "v-"),
         "torch top-p": ("C2", "d-")}

results = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
passes = [r for r in results if r["part"] == "backward"]
centre = passes[0]

figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), constrained_layout=True, sharey=True)
for axis, (name, title) in zip(axes, AXES.items()):
    others = [n for n in AXES if n != name]
    swept = sorted((r for r in passes if all(r[n] == centre[n] for n in others)
                    or (name == "D" and r["D"] != centre["D"] and r["E"] == centre["E"])), key=lambda r: r[name])
    for model, (colour, marker) in STYLE.items():
        # GFLOP/s of the experts' computation: the rate that a layer achieves on the machine.
        rate = [18 * r["K"] * r["T"] * r["D"] * r["F"] / r["milliseconds"][model] / 1e6 for r in swept]
        axis.plot([r[name] for r in swept], rate, marker, color=colour, label=model, markersize=4)
    axis.set(xlabel=title, xscale="log", yscale="log")
    axis.set_xticks([r[name] for r in swept], [str(r[name]) for r in swept])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="GFLOP/s, forward + backward")
axes[0].set_yticks([10, 20, 50, 100, 200], ["10", "20", "50", "100", "200"])
axes[-1].legend(frameon=False, fontsize=8)
figure.savefig(sys.argv[2], dpi=110)

names = [name for name in STYLE if name != "dtopp"]
print("| hidden | experts | active | tokens | part | dtopp, ms | of g | " + " | ".join(names) + " |")
print("|" + "---|" * (7 + len(names)))
for r in results:
    print(f"| {r['D']} | {r['E']} | {r['K']} | {r['T']} | {r['part']} | {r['milliseconds']['dtopp']:.1f} | "
          f"{r['share_of_g']:.2f} | " + " | ".join(f"{r['times_faster'][name]:.2f} ×" for name in names) + " |")
