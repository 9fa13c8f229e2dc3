#!/usr/bin/env python3
"""Records the first steps of runs: imbalance, and the share of the router logits' variance that all tokens have in common.

Usage: router_collapse.py [--steps 100] [--threads N] [--program build/release/bin/dtopp] >> benchmarks/results/router_collapse_cpu.jsonl

One line per run: {config, method, expert_normalization, ceiling, imbalance, common_logit_share}, lists by step. A run has its
configuration's schedule and is stopped after the steps. It needs the data of `make quickstart` and `make lab-data`.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(metrics):
    if not metrics.exists():
        return []
    rows = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    return [row for row in rows if "moe/imbalance" in row]


def first_steps(program, config, method, normalization, steps, threads):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen(
            [program, "train", f"configs/{config}.yaml", f"method={method}", f"routing.expert_normalization={normalization}",
             "loss.load_balance=1e-4", f"training.threads={threads}", "validation.every=0", "checkpoint.every=0",
             f"output={folder}/run"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        metrics = pathlib.Path(folder, "run/metrics.jsonl")
        while len(lines_of(metrics)) < steps and run.poll() is None:
            time.sleep(0.5)
        run.kill()
        _, error = run.communicate()
        rows = lines_of(metrics)[:steps]
        if len(rows) < steps:
            sys.exit(f"{config} {method}: the run ended after {len(rows)} steps\n{error}")
        experts = rows[-1]["moe/active_experts"]
        text = pathlib.Path(folder, "run/config.yaml").read_text()
        num_experts = int(re.search(r"num_experts: (\d+)", text)[1])
    return {"config": config, "method": method, "expert_normalization": normalization,
            "ceiling": round(num_experts / experts, 2),
            "imbalance": [round(row["moe/imbalance"], 3) for row in rows],
            "common_logit_share": [round(row["moe/common_logit_share"], 4) for row in rows]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/dtopp"))
    options = parser.parse_args()
    for config in ("lab", "quickstart"):
        for method in ("dtop_p", "top_k"):
            for normalization in ("none", "running"):
                print(json.dumps(first_steps(options.program, config, method, normalization, options.steps, options.threads)),
                      flush=True)


if __name__ == "__main__":
    main()
