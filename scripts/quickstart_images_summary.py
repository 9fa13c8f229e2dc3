"""Prints a summary of the image quick start. Usage: quickstart_images_summary.py DATA_DIRECTORY RUN_DIRECTORY"""

import json
import pathlib
import sys

import judge_glyphs

data, run = map(pathlib.Path, sys.argv[1:])
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
validation = [line for line in lines if "val/loss" in line]
steps = [line for line in lines if "train/loss" in line]
config = (run / "config.yaml").read_text().splitlines()
target = next(line.split(":")[1].strip() for line in config if line.strip().startswith("experts:"))
batch = int(next(line.split(":")[1] for line in config if line.strip().startswith("global_batch_size:")))
last = validation[-1]
late = steps[len(steps) // 2 :]
mean = sum(line["moe/active_experts"] for line in late) / len(late)
rate = sorted(line["throughput/tokens_per_second"] for line in steps)[len(steps) // 2]
judged = {name: f"{share:.1%} of {count}" for name, share, count in
          judge_glyphs.judge(data / "train.tar", data / "validation.tar", run / "samples.npz")}
grid = sorted((run / "samples").glob("step-*.png"))[-1]

print(f"""
Results of this run after {last['step'] * batch:,} drawn pictures of digits:
  validation loss     {validation[0]['val/loss']:.3f} before training, {last['val/loss']:.3f} after {last['step']} steps
  digits recognized   {judged['samples']} drawn by the model, by a nearest-neighbor probe
                      (held-out pictures: {judged['held-out pictures']}, noise: {judged['noise']})
  active experts      {mean:.3f} per token over the second half of training, target {target} \
(threshold p = {steps[-1]['moe/threshold']:.3f})
  speed               {rate:,.0f} tokens per second
Samples:              {grid} (one row per digit)
Report:               {run / 'report.html'} (opens in any browser)
Files:
  metrics             {run / 'metrics.jsonl'} (TensorBoard reads the same folder)
  samples             {run / 'samples.npz'}; grids drawn during training in {run / 'samples'}
  checkpoint          {sorted((run / 'checkpoints').glob('step-*'))[-1]}
  configuration       configs/quickstart-images.yaml, resolved in {run / 'config.yaml'}
Next steps:
        build/release/bin/dtopp sample {run} --classes 3,7 --count 16 --output digits.png
        build/release/bin/dtopp train configs/cifar10.yaml     (docs/how-to/pictures.md explains how)""")
