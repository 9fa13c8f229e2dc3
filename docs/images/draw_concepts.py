#!/usr/bin/env python3
"""Draws the SVG pictures of docs/explanation/ in docs/images/.

Usage: draw_concepts.py

The background is transparent, and every color is readable on white and on black: a page shows an SVG as an image, which does
not inherit the page's colors. Data: benchmarks/results/settling_cpu.jsonl and moe_layers_cpu.jsonl, and the ledgers of
benchmarks/studies/powered. The file is long because it holds one function for each of nine pictures.
"""

import collections
import html
import json
import math
import pathlib
import re
import statistics

ROOT = pathlib.Path(__file__).resolve().parents[2]
INK, BLUE, RED, ORANGE = "#737b85", "#2f81f7", "#e5534b", "#d4772a"
FAINT = 0.35  # opacity of axes and of experts that are not chosen


class Drawing:
    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def add(self, tag, text=None, **attributes):
        words = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(f"<{tag} {words}/>" if text is None else f"<{tag} {words}>{text}</{tag}>")

    def line(self, x1, y1, x2, y2, color=INK, **more):
        self.add("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", stroke=color, **more)

    def curve(self, points, color):
        self.add("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", stroke=color, stroke_width=1.3)

    def text(self, x, y, text, size=13, color=INK, anchor="start", **more):
        self.add("text", text, x=f"{x:.1f}", y=f"{y:.1f}", font_size=size, fill=color, text_anchor=anchor, **more)

    def bold(self, x, y, text, size=14, **more):
        self.text(x, y, text, size, font_weight="bold", **more)

    def save(self, name):
        path = ROOT / "docs/images" / name
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                        f'font-family="sans-serif">\n' + "\n".join(self.parts) + "\n</svg>\n")


def rows_of(name):
    return [json.loads(line) for line in (ROOT / "benchmarks/results" / name).read_text().splitlines()]


def draw_token(drawing, left, title, sharpness, p, experts=12):
    """Draws the experts of one token, likeliest first. Each bar begins at the end of the previous one."""
    weights = [math.exp(-sharpness * i) for i in range(experts)]
    shares = [w / sum(weights) for w in weights]
    bottom, height, width = 252, 186, 25
    drawing.bold(left, 24, title, 15)
    drawing.line(left, bottom, left + experts * width, bottom, stroke_opacity=FAINT)
    total = 0.0
    chosen = 0
    for i, share in enumerate(shares):
        taken = total < p
        x, top = left + i * width, bottom - height * (total + share)
        drawing.add("rect", x=f"{x + 2:.1f}", y=f"{top:.1f}", width=width - 4, height=f"{height * share:.1f}",
                    fill=BLUE if taken else INK, fill_opacity=1 if taken else FAINT)
        if taken:
            drawing.text(x + width / 2, top - 5 if i == 0 else top + height * share + 12, f"{share:.2f}", 11, BLUE, "middle")
            chosen += 1
        total += share
    at = bottom - height * p
    drawing.line(left, at, left + experts * width, at, RED, stroke_dasharray="5 4")
    drawing.text(left + experts * width, at + 16, f"p = {p}", 13, RED, "end")
    drawing.text(left, bottom + 20, "experts of one layer, likeliest first", 12)
    end = f"sum {sum(shares[:chosen]):.2f} ≥ p"
    drawing.text(left, bottom + 42, f"uses {chosen} experts: {end}" if chosen > 1 else f"uses 1 expert: {shares[0]:.2f} ≥ p", 14, BLUE)


def draw_routing():
    drawing = Drawing(680, 304)
    draw_token(drawing, 20, "A token with a clear favorite", 1.4, 0.6)
    draw_token(drawing, 360, "A token without one", 0.16, 0.6)
    drawing.save("routing.svg")


def draw_control():
    drawing = Drawing(680, 190)
    boxes = [("threshold p", "one, or one per layer", "p"), ("route", "experts join up to p", "sum of P ≥ p"),
             ("count", "experts per token", "a"), ("compare", "with the target T", "e = (T − a) / E")]
    for i, (name, about, formula) in enumerate(boxes):
        left = 8 + 171 * i
        drawing.add("rect", x=left, y=70, width=144, height=62, rx=6, fill=INK, fill_opacity=0.1, stroke=INK, stroke_opacity=FAINT)
        drawing.bold(left + 72, 95, name, 15, anchor="middle")
        drawing.text(left + 72, 116, about, 12, anchor="middle")
        drawing.text(left + 72, 152, formula, 13, BLUE, "middle")
        if i < 3:
            drawing.line(left + 146, 101, left + 162, 101)
            drawing.add("path", d=f"M{left + 169},101 l-8,-4 v8 z", fill=INK)
    drawing.add("path", d="M593,70 V44 H80 V62", fill="none", stroke=INK)
    drawing.add("path", d="M80,70 l-4,-8 h8 z", fill=INK)
    drawing.bold(336, 16, "too few experts: raise p; too many: lower p", 14, anchor="middle")
    drawing.text(336, 36, "after each optimizer step", 12, anchor="middle")
    drawing.text(8, 182, "pi:  p ← p₀ + K_p e + K_i Σe", 13, BLUE)
    drawing.text(665, 182, "solve:  the p at which the step's tokens meet T", 13, BLUE, "end")
    drawing.save("control.svg")


def draw_settling(target=4):
    runs = {run["controller"]: run for run in rows_of("settling_cpu.jsonl")}
    steps = len(runs["pi"]["threshold"])
    drawing = Drawing(680, 318)
    left, right, top, middle, bottom = 40, 660, 50, 200, 290

    def x(step):
        return left + (right - left) * step / steps

    def y(experts):
        return middle - (middle - top) * experts / 6

    def y_p(p):
        return bottom - (bottom - middle - 36) * p

    drawing.bold(left, 20, "Experts per token, mean of each step")
    drawing.text(right, 20, f"- - -  target {target}", 13, RED, "end")
    for value in range(0, 7, 2):
        drawing.line(left, y(value), right, y(value), stroke_opacity=FAINT / 2)
        drawing.text(left - 8, y(value) + 4, value, 12, anchor="end")
    drawing.bold(left, middle + 28, "Threshold p")
    for value in (0, 1):
        drawing.line(left, y_p(value), right, y_p(value), stroke_opacity=FAINT / 2)
        drawing.text(left - 8, y_p(value) + 4, value, 12, anchor="end")
    for i, (controller, label, color) in enumerate([("pi", "pi, the paper's gains 0.1 and 0.1", ORANGE), ("solve", "solve", BLUE)]):
        run = runs[controller]
        drawing.curve([(x(i + 1), y(experts)) for i, experts in enumerate(run["active_experts"])], color)
        drawing.curve([(x(i + 1), y_p(p)) for i, p in enumerate(run["threshold"])], color)
        drawing.line(left + 110 * (1 - i), 36, left + 110 * (1 - i) + 24, 36, color, stroke_width=2)
        drawing.text(left + 110 * (1 - i) + 30, 40, label, 13, color)
    drawing.line(left, y(target), right, y(target), RED, stroke_dasharray="5 4")
    for step in range(0, steps + 1, 100):
        drawing.text(x(step), bottom + 18, step if step else "step 0", 12, anchor="middle")
    drawing.save("settling.svg")


def draw_collapse():
    """Draws the first steps of Top-k in the lab and the quick start, with and without expert normalization."""
    runs = {(run["config"], run["expert_normalization"]): run for run in rows_of("router_collapse_cpu.jsonl") if run["method"] == "top_k"}
    drawing = Drawing(680, 330)
    top, middle, bottom, width = 62, 172, 300, 280
    drawing.line(8, 16, 32, 16, ORANGE, stroke_width=2)
    drawing.text(38, 20, "without", 13, ORANGE)
    drawing.line(110, 16, 134, 16, BLUE, stroke_width=2)
    drawing.text(140, 20, "with normalization over tokens", 13, BLUE)
    drawing.text(672, 20, "- - -  all tokens select the same experts", 13, RED, "end")
    for left, config, title in ((40, "lab", "lab, 8 possible"), (382, "quickstart", "quick start, 4 possible")):
        ceiling = runs[config, "none"]["ceiling"]

        def y(imbalance):
            return middle - (middle - top) * imbalance / ceiling

        def y_share(share):
            return bottom - (bottom - middle - 40) * share

        drawing.bold(left, top - 10, f"Imbalance: {title}")
        for value in (1, ceiling / 2, ceiling):
            drawing.line(left, y(value), left + width, y(value), stroke_opacity=FAINT / 2)
            drawing.text(left - 8, y(value) + 4, f"{value:g}", 12, anchor="end")
        drawing.line(left, y(ceiling), left + width, y(ceiling), RED, stroke_dasharray="5 4")
        drawing.bold(left, middle + 30, "Share of the logits in common")
        for value in (0, 1):
            drawing.line(left, y_share(value), left + width, y_share(value), stroke_opacity=FAINT / 2)
            drawing.text(left - 8, y_share(value) + 4, value, 12, anchor="end")
        for kind, color in (("none", ORANGE), ("running", BLUE)):
            run = runs[config, kind]
            steps = len(run["imbalance"])
            drawing.curve([(left + width * (i + 1) / steps, y(v)) for i, v in enumerate(run["imbalance"])], color)
            drawing.curve([(left + width * (i + 1) / steps, y_share(v)) for i, v in enumerate(run["common_logit_share"])], color)
        for step in (0, 50, 100):
            drawing.text(left + width * step / 100, bottom + 18, step if step else "step 0", 12, anchor="middle")
    drawing.save("collapse.svg")


def draw_speed():
    """Draws tokens per second of one layer, forward, backward and AdamW."""
    row = next(row for row in rows_of("moe_layers_cpu.jsonl")
               if (row["part"], row["D"], row["E"], row["K"], row["T"]) == ("step", 512, 64, 8, 4096))
    rates = {name: row["T"] / milliseconds * 1e3 for name, milliseconds in row["milliseconds"].items()}
    names = {"dense": "dense FFN, equal FLOPs", "dtopp": "dtopp, DTop-p", "olmoe grouped": "Hugging Face, grouped_mm",
             "olmoe eager": "Hugging Face, eager", "torch top-p": "plain PyTorch, Top-p"}
    drawing = Drawing(680, 220)
    left, right, top, step = 190, 600, 62, 30
    drawing.bold(0, 18, f"dtopp: {rates['dtopp'] / rates['olmoe grouped']:.1f} × grouped_mm, "
                        f"{rates['dtopp'] / rates['dense']:.1f} × a dense FFN")
    drawing.text(0, 40, "One MoE layer, tokens per second: hidden 512, 8 of 64 experts of 256, 4,096 tokens, fp32, forward to AdamW", 12)
    for i, (name, label) in enumerate(names.items()):
        width = (right - left) * rates[name] / max(rates.values())
        drawing.text(left - 8, top + step * i + 15, label, 13, anchor="end")
        drawing.add("rect", x=left, y=top + step * i, width=f"{width:.1f}", height=20, fill=BLUE if name == "dtopp" else INK,
                    fill_opacity=1 if name == "dtopp" else 2 * FAINT)
        drawing.text(left + width + 8, top + step * i + 15, f"{rates[name]:,.0f}", 13)
    drawing.save("speed.svg")


T95 = {3: 3.182, 5: 2.571, 7: 2.365, 23: 2.069}  # Student's t for 95 %, by degrees of freedom
STUDY = ROOT / "benchmarks/studies/powered"


def losses_of(study, measure="val/loss"):
    """{(variant, values of the grid): {seed: value}} from a ledger of the powered study."""
    losses = collections.defaultdict(dict)
    for row in json.loads((STUDY / f"{study}.json").read_text())["runs"]:
        losses[(row["variant"], *row["grid"].values())][row["seed"]] = row["values"][measure]
    return losses


def paired(a, b):
    """(mean, half-width of the 95 % interval) of a - b over common seeds."""
    differences = [a[seed] - b[seed] for seed in a if seed in b]
    return statistics.mean(differences), T95[len(differences) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))


def draw_intervals(name, title, note, rows, ticks):
    """Draws rows of (label, [(mean, half-width, color), ...], the paper's value or None)."""
    left, right, top, step = 150, 660, 70, 28
    drawing = Drawing(680, top + step * len(rows) + 28)

    def x(difference):
        return left + (right - left) * (difference - ticks[0]) / (ticks[-1] - ticks[0])

    drawing.bold(0, 18, title)
    drawing.text(0, 40, note, 12)
    drawing.line(x(0), top - 14, x(0), top + step * len(rows) - 8, RED, stroke_dasharray="5 4")
    for i, (label, intervals, paper) in enumerate(rows):
        at = top + step * i
        drawing.text(left - 8, at + 5, label, 13, anchor="end")
        for k, (mean, half, color) in enumerate(intervals):
            y = at + 8 * (k - (len(intervals) - 1) / 2)
            drawing.line(x(max(mean - half, ticks[0])), y, x(min(mean + half, ticks[-1])), y, color, stroke_width=2)
            drawing.add("circle", cx=f"{x(mean):.1f}", cy=y, r=4, fill=color)
        if paper is not None:
            drawing.add("circle", cx=f"{x(paper):.1f}", cy=at, r=5, fill="none", stroke=ORANGE, stroke_width=2)
    for value in ticks:
        drawing.text(x(value), top + step * len(rows) + 18, f"{value:+.2f}".replace("-", "−") if value else "0", 12, anchor="middle")
    drawing.save(name)


def draw_findings():
    """Draws the arms on text against DTop-p, and the paper's differences (Table 10)."""
    losses = losses_of("text")
    paper = {"dense": 2.7445 - 2.6193, "top-k": 2.6384 - 2.6193}
    names = ("top-k", "top-p-matched", "top-k-as-dtop-p", "dense")
    rows = [(name, [(*paired(losses[name,], losses["dtop-p",]), BLUE)], paper.get(name)) for name in names]
    draw_intervals("findings.svg", "Held-out loss minus DTop-p's, nats per token",
                   "Blue: mean and 95 % interval of 24 or 8 seeds, 8.4 million tokens. Orange: the paper, one run each, 100 billion.", rows,
                   (-0.05, 0, 0.05, 0.1, 0.15))


def draw_routers():
    """Draws the router family against Top-k: screening, confirmation, and twice the tokens."""
    screening, confirmed, long = (losses_of(study) for study in ("family", "family-confirmed", "family-long"))
    rows = []
    for name, in sorted(screening, key=lambda key: statistics.mean(screening[key].values())):
        later = [(study[name,], study["top-k",], color) for study, color in ((confirmed, ORANGE), (long, RED)) if (name,) in study]
        if name != "top-k":
            intervals = [(screening[name,], screening["top-k",], BLUE), *later]
            rows.append((name, [(*paired(a, b), color) for a, b, color in intervals], None))
    draw_intervals("routers.svg", "Held-out loss minus Top-k's, nats per token, 4 of 32 experts",
                   "Blue: screening, 6 seeds, 4.2 million tokens. Orange: 8 new seeds. Red: the same seeds, 8.4 million tokens.", rows,
                   (-0.15, -0.1, -0.05, 0, 0.05, 0.1, 0.15, 0.2))


def draw_budgets():
    """Draws loss over active experts: one DTop-p checkpoint at eight budgets, and models trained at three."""
    drawing = Drawing(680, 330)
    left, right, top, bottom, low, high = 60, 660, 84, 270, 4.84, 5.06

    def at(experts, loss):
        return left + (right - left) * math.log2(experts) / 4, bottom - (bottom - top) * (loss - low) / (high - low)

    def dot(x, y, color, fill, label):
        drawing.add("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, fill=fill, stroke=color, stroke_width=2)
        drawing.text(x + 11, y + 4.5, label, 13, color)

    sweep = []
    for i in range(8):
        experts, loss = (statistics.mean(losses_of("sweep", f"sweep/sweep/{i}/{name}")["dtop-p",].values()) for name in ("active_experts", "nll"))
        sweep.append((experts, loss))
    drawing.bold(0, 18, "One checkpoint serves 1 to 16 experts per token", 15)
    drawing.text(0, 40, "Held-out loss, nats per token; 32 experts, 4.2 million tokens of novels, mean of 4 seeds", 12)
    for loss in (4.85, 4.9, 4.95, 5.0, 5.05):
        y = at(1, loss)[1]
        drawing.line(left, y, right, y, stroke_opacity=FAINT)
        drawing.text(left - 8, y + 4, f"{loss:.2f}", 12, anchor="end")
    for experts in (1, 2, 4, 8, 16):
        drawing.text(at(experts, low)[0], bottom + 20, f"{experts}", 12, anchor="middle")
    drawing.text((left + right) / 2, bottom + 42, "active experts per token, mean", 12, anchor="middle")
    points = [at(experts, loss) for experts, loss in sweep]
    drawing.add("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", stroke=BLUE, stroke_width=2.5)
    for x, y in points:
        dot(x, y, BLUE, BLUE, "")
    trained = losses_of("budgets")
    for name, color in (("dtop-p", BLUE), ("top-k", ORANGE)):
        for budget in (2, 4, 8):
            dot(*at(budget, statistics.mean(trained[name, budget].values())), color, "none", "")
    dot(290, top + 16, BLUE, BLUE, "one DTop-p checkpoint, trained at 4, used at 1 to 16")
    dot(290, top + 38, BLUE, "none", "three DTop-p models, trained at 2, 4 and 8")
    dot(290, top + 60, ORANGE, "none", "three Top-k models, trained at 2, 4 and 8")
    drawing.save("budgets.svg")


def tokens_of(name):
    """(text, experts) per token of `dtopp generate --show-experts`. A line break is a token of its own."""
    text = (ROOT / "benchmarks/results" / name).read_text().removesuffix("\n")
    return [(token, float(experts)) for token, experts in re.findall(r"(.*?)\[(\d+\.\d)\]", text, re.S)]


def draw_sample(prompt="The old man", experts=16):
    """Draws a generated text with a bar over each token, as high as the number of its experts."""
    width, line_height, unit, size = 7.8, 58, 3.0, 13
    tokens = tokens_of("quickstart_sample.txt")
    lines, used = [[(prompt, None)]], len(prompt)
    for text, count in tokens:
        if text.strip(" ") == "\n" or (used + len(text) > 84 and text.startswith(" ")):
            lines.append([])
            used = 0
        text = text.strip("\n")
        if text:
            lines[-1].append((text, count))
            used += len(text)
    lines = [line for line in lines if line]
    drawing = Drawing(680, 40 + line_height * len(lines))
    counts = [count for _, count in tokens]
    drawing.bold(8, 20, f"Experts of each token, {min(counts):g} to {max(counts):g} of {experts}, "
                        f"{sum(counts) / len(counts):.1f} on average")
    for row, line in enumerate(lines):
        x, y = 8.0, 34 + line_height * (row + 1) - 12
        for text, count in line:
            begin = x + width * (len(text) - len(text.lstrip(" ")))
            word, length = text.strip(" "), width * len(text.strip(" "))
            if word:
                drawing.text(begin, y, html.escape(word), size, font_family="monospace", textLength=f"{length:.1f}")
            if word and count is not None:
                drawing.add("rect", x=f"{begin + 0.5:.1f}", y=f"{y - 14 - unit * count:.1f}", width=f"{length - 1:.1f}",
                            height=f"{unit * count:.1f}", fill=BLUE)
            x += width * len(text)
    drawing.save("sample.svg")


if __name__ == "__main__":
    draw_routing()
    draw_control()
    draw_settling()
    draw_collapse()
    draw_speed()
    draw_findings()
    draw_routers()
    draw_budgets()
    draw_sample()
