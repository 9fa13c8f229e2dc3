"""Writes runs for reports without training: configuration and metrics.jsonl as `dtopp train` writes them.
Creates reports too."""

import json
import pathlib

import numpy as np
import pytest
import tiny_run

CONFIG = """\
name: {name}
model: {{type: language_model, hidden_size: 64, num_layers: {layers}, num_heads: 4, ffn_hidden_size: 32, num_experts: 8,
        vocab_size: 512, sequence_length: 64}}
routing: {{method: {method}, experts: 3, threshold: 0.3}}
training: {{steps: 5000, global_batch_size: 4, micro_batch_size: 4, seed: {seed}}}
output: {output}
"""
TOKENS = 256  # per step


def metrics_lines(steps, layers=2, seed=1, method="dtop_p", every=1, validation=100, loss=0.0):
    """Lines of a run that learns, with noise, and validations before the first step and at regular steps."""
    random = np.random.default_rng(seed)
    for step in range(0, steps + 1):
        clock = {"step": step, "tokens": TOKENS * step, "time": 1.8e9 + 0.25 * step}
        if step > 0 and step % every == 0:
            noise, gone = random.normal(size=6), np.exp(-step / 300)
            entropy = 3 + loss + 3 * gone + 0.1 * noise[0]
            line = clock | {"train/loss": entropy + 0.1, "train/lm_loss": entropy,
                            "train/load_balance_loss": 1.1 + 0.01 * noise[1], "train/lr": 1e-3 * min(1, step / 50),
                            "train/grad_norm": float(np.exp(0.3 * noise[2])), "train/skipped_steps": 0,
                            "moe/active_experts": 3 - 2 * np.exp(-step / 20) + 0.05 * noise[3], "moe/active_experts_std": 1.2,
                            "moe/imbalance": 1.5 + gone, "moe/dead_experts": 1 if step < 30 else 0,
                            "moe/token_mean_std": 0.7 + 0.02 * noise[4]}
            if method != "top_k":
                line["moe/threshold"] = 0.3 + 0.4 * (1 - np.exp(-step / 20))
                line |= {"moe/tokens_with/1": 0.5 + 0.4 * gone, "moe/tokens_with/2": 0.3 - 0.2 * gone,
                         "moe/tokens_with/3-4": 0.2 - 0.2 * gone, "moe/tokens_with/5-8": 0.0}
            for layer in range(layers):
                prefix = f"moe/layer_{layer:02d}/"
                line |= {prefix + "active_experts": 2 + layer + 0.1 * noise[5], prefix + "imbalance": 1.2 + 0.1 * layer,
                         prefix + "dead_experts": 0, prefix + "scale": 1 + 0.001 * step * (layer + 1)}
            line |= {"throughput/tokens_per_second": 1024 + 20 * noise[1], "throughput/tflops": 0.01,
                     "throughput/seconds": 0.25 * step, "train/active_flops": TOKENS * step * (10 ** 6 + step),
                     "throughput/mfu": 0.3 + 0.01 * noise[2],
                     "throughput/data_share": 0.01, "memory/resident_bytes": 4.0e8, "memory/peak_bytes": 4.2e8}
            yield line
        if validation and step % validation == 0:
            yield clock | {"val/loss": 3.2 + loss + 3 * float(np.exp(-step / 300)), "val/active_experts": 3.01}


def write_run(directory, name="a run", steps=500, lines=None, **options):
    """Writes a run's folder. `lines` replaces the generated lines."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    layers = options.get("layers", 2)
    directory.joinpath("config.yaml").write_text(CONFIG.format(
        name=json.dumps(name), layers=layers, method=options.get("method", "dtop_p"), seed=options.get("seed", 1),
        output=json.dumps(str(directory))))
    with directory.joinpath("metrics.jsonl").open("w") as file:
        for line in lines if lines is not None else metrics_lines(steps, **options):
            file.write(json.dumps(finite(line), separators=(",", ":")) + "\n")
    return directory


def finite(line):
    """Replaces NaN by null, as metrics.jsonl does."""
    return {key: value if not isinstance(value, float) or np.isfinite(value) else None for key, value in line.items()}


def series_of(run, metric):
    """The metric's steps and values in the file."""
    lines = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    held = [line for line in lines if metric in line]
    return [line["step"] for line in held], [line[metric] for line in held]


def report(output, *runs):
    """Writes the report of these runs to `output` and returns its path."""
    done = tiny_run.dtopp("report", *runs, "--output", output)
    assert done.returncode == 0, done.stderr
    return output


def charts_of(page, title=None):
    """The chart data that the page draws: all charts, or the chart with this title."""
    charts = page.evaluate("dtoppReport.charts()")
    return charts if title is None else next(chart for chart in charts if chart["title"] == title)


def same(drawn, written):
    """Whether the drawn values are the file's values as float32, with null for null."""
    return [None if v is None else pytest.approx(v, rel=1e-6, abs=1e-12) for v in written] == drawn
