#!/usr/bin/env python3
"""Draws the pictures of docs/concepts.md and docs/index.md as SVG.

Usage: draw_concepts.py RUN OUTPUT_FOLDER. RUN is the run of `make quickstart`; its metrics.jsonl shows how
the number of experts settles.
"""

import json
import math
import pathlib
import sys
import textwrap

INK, PALE, GOOD, LINE = "#1f2328", "#c9d1d9", "#0969da", "#cf222e"


class Drawing:
    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def add(self, tag, text=None, **attributes):
        words = " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in attributes.items())
        self.parts.append(f"<{tag} {words}/>" if text is None else f"<{tag} {words}>{text}</{tag}>")

    def line(self, x1, y1, x2, y2, color=INK, **more):
        self.add("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", stroke=color, **more)

    def text(self, x, y, text, size=13, color=INK, anchor="start", **more):
        self.add("text", text, x=f"{x:.1f}", y=f"{y:.1f}", font_size=size, fill=color, text_anchor=anchor, **more)

    def save(self, path):
        path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n'
                        + "\n".join(self.parts) + "\n</svg>\n")


def token(drawing, left, title, sharpness, p, experts=12):
    """One token's experts, most likely first: each bar begins at the end of the previous one."""
    weights = [math.exp(-sharpness * i) for i in range(experts)]
    shares = [w / sum(weights) for w in weights]
    bottom, height, width = 250, 190, 24
    drawing.text(left, 30, title, 15, font_weight="bold")
    drawing.line(left, bottom, left + experts * width, bottom, PALE)
    before, chosen = 0.0, 0
    for i, share in enumerate(shares):
        taken = before < p
        chosen += taken
        x, top = left + i * width, bottom - height * (before + share)
        drawing.add("rect", x=f"{x + 2:.1f}", y=f"{top:.1f}", width=width - 4, height=f"{height * share:.1f}",
                    fill=GOOD if taken else PALE)
        before += share
    at = bottom - height * p
    drawing.line(left, at, left + experts * width, at, LINE, stroke_dasharray="5 4")
    drawing.text(left + experts * width, at - 5, f"p = {p}", 13, LINE, "end")
    drawing.text(left, bottom + 20, "its experts, likeliest first", 12, "#57606a")
    drawing.text(left, bottom + 42, f"uses {chosen} of them" if chosen > 1 else "uses 1 of them", 14, GOOD)


def draw_routing(path):
    drawing = Drawing(680, 310)
    token(drawing, 20, "A token the router is sure of", 1.4, 0.6)
    token(drawing, 360, "A token it is not sure of", 0.16, 0.6)
    drawing.save(path)


def draw_settling(metrics, path, target=4, steps=400):
    lines = [line for line in map(json.loads, metrics.read_text().splitlines()) if "moe/active_experts" in line]
    points = [(line["step"], line["moe/active_experts"], line["moe/threshold"]) for line in lines if line["step"] <= steps]
    drawing = Drawing(680, 306)
    left, right, top, middle, bottom = 50, 660, 40, 190, 280
    x = [left + (right - left) * step / steps for step, _, _ in points]
    most = max(6.0, *(active for _, active, _ in points))

    def y(value):
        return middle - (middle - top) * value / most

    drawing.text(left, 24, "Experts a token uses, mean of each step", 14, font_weight="bold")
    for value in range(0, int(most) + 1, 2):
        drawing.line(left, y(value), right, y(value), "#eaeef2")
        drawing.text(left - 8, y(value) + 4, value, 12, "#57606a", "end")
    drawing.line(left, y(target), right, y(target), LINE, stroke_dasharray="5 4")
    drawing.text(right, 24, f"- - -  target {target}", 13, LINE, "end")
    drawing.add("polyline", points=" ".join(f"{px:.1f},{y(active):.1f}" for px, (_, active, _) in zip(x, points)), fill="none",
                stroke=GOOD, stroke_width=1.6)
    drawing.text(left, middle + 24, "Threshold p", 14, font_weight="bold")
    drawing.add("polyline", points=" ".join(f"{px:.1f},{bottom - (bottom - middle - 32) * p:.1f}"
                                            for px, (_, _, p) in zip(x, points)), fill="none", stroke=INK, stroke_width=1.6)
    for value in (0, 1):
        drawing.text(left - 8, bottom - (bottom - middle - 32) * value + 4, value, 12, "#57606a", "end")
    for step in range(0, steps + 1, 100):
        drawing.text(left + (right - left) * step / steps, bottom + 16, step, 12, "#57606a", "middle")
    drawing.text(right, middle + 24, "over optimiser steps", 12, "#57606a", "end")
    drawing.save(path)


def draw_control(path):
    drawing = Drawing(680, 170)
    boxes = [("p", "one number, or one a layer"), ("router", "each token takes experts until p"),
             ("a", "experts a token, counted exactly"), ("e = (T − a) / E", "what is missing of the budget T")]
    for i, (name, about) in enumerate(boxes):
        left = 10 + 168 * i
        drawing.add("rect", x=left, y=40, width=140, height=60, rx=6, fill="#f6f8fa", stroke=PALE)
        drawing.text(left + 70, 67, name, 16, INK, "middle", font_weight="bold")
        for row, text in enumerate(textwrap.wrap(about, 24)):
            drawing.text(left + 70, 118 + 15 * row, text, 11, "#57606a", "middle")
        if i < 3:
            drawing.line(left + 142, 70, left + 164, 70, INK)
            drawing.add("path", d=f"M{left + 168},70 l-8,-4 v8 z", fill=INK)
    drawing.add("path", d="M584,40 V18 H80 V34", fill="none", stroke=INK)
    drawing.add("path", d="M80,40 l-4,-8 h8 z", fill=INK)
    drawing.text(340, 13, "after each optimiser step: p ← p₀ + K_p e + K_i Σe", 13, INK, "middle")
    drawing.save(path)


def main():
    run, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    draw_routing(folder / "routing.svg")
    draw_control(folder / "control.svg")
    draw_settling(run / "metrics.jsonl", folder / "settling.svg")


if __name__ == "__main__":
    main()
