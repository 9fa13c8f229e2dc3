"""Prints a summary of a run from its metrics.jsonl. Usage: quickstart_summary.py RUN_DIRECTORY"""

import json
import math
import pathlib
import sys

run = pathlib.Path(sys.argv[1])
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
validation = [line for line in lines if "val/loss" in line]
steps = [line for line in lines if "train/loss" in line]
config = (run / "config.yaml").read_text().splitlines()
target = next(line.split(":")[1].strip() for line in config if line.strip().startswith("experts:"))
first, last = validation[0], validation[-1]
late = steps[len(steps) // 2 :]
mean = sum(line["moe/active_experts"] for line in late) / len(late)
newest = sorted((run / "checkpoints").glob("step-*"))[-1]

print(f"""
Results of this run after {last['tokens']:,} tokens of public-domain novels:
  validation loss     {first['val/loss']:.3f} before training, {last['val/loss']:.3f} after {last['step']} steps \
(perplexity {math.exp(first['val/loss']):,.0f} -> {math.exp(last['val/loss']):,.0f})
  active experts      {mean:.3f} per token over the second half of training, target {target} \
(threshold p = {steps[-1]['moe/threshold']:.3f})
  speed               {sorted(line['throughput/tokens_per_second'] for line in steps)[len(steps) // 2]:,.0f} tokens per second
Report:               {run / 'report.html'} (opens in any browser)
Files:
  metrics             {run / 'metrics.jsonl'} (TensorBoard reads the same folder)
  checkpoint          {newest}
  configuration       configs/quickstart.yaml, resolved in {run / 'config.yaml'}
Next steps:
        build/release/bin/dtopp evaluate text {run} --text FILE.txt
        build/release/bin/dtopp train configs/small.yaml     (docs/ explains how)""")
