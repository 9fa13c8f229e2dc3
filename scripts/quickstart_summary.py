"""Prints a summary of a quick start's run.

usage: quickstart_summary.py text RUN PROGRAM      RUN/held-out.json is the result of `dtopp evaluate text --by-document` on
                                                   the quick start's validation text
       quickstart_summary.py images RUN DATA       RUN/samples.npz are samples; DATA holds the tars of glyphs.py"""

import array
import gzip
import json
import math
import pathlib
import subprocess
import sys

TEXT = pathlib.Path("data/quickstart/validation")
END_OF_TEXT = 0


class Run:
    """The figures of a run that both summaries show."""

    def __init__(self, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        validation = [line for line in lines if "val/loss" in line]
        steps = [line for line in lines if "train/loss" in line]
        config = (run / "config.yaml").read_text().splitlines()
        late = steps[len(steps) // 2 :]
        mean = sum(line["moe/active_experts"] for line in late) / len(late)
        target = setting(config, "experts")
        rate = sorted(line["throughput/tokens_per_second"] for line in steps)[len(steps) // 2]
        self.first, self.last = validation[0], validation[-1]
        self.batch = int(setting(config, "global_batch_size"))
        self.loss = f"{self.first['val/loss']:.3f} before training, {self.last['val/loss']:.3f} after {self.last['step']} steps"
        self.experts = (f"{mean:.3f} per token over the second half of training, target {target} "
                        f"(threshold p = {steps[-1]['moe/threshold']:.3f})")
        self.speed = f"{rate:,.0f} tokens per second"
        self.report = f"{run / 'report.html'} (opens in any browser)"
        self.metrics = f"{run / 'metrics.jsonl'} (TensorBoard reads the same folder)"
        self.checkpoint = max((run / "checkpoints").glob("step-*"))


def setting(config, key):
    return next(line.split(":")[1].strip() for line in config if line.strip().startswith(f"{key}:"))


def read_text(program):
    """The bytes of all documents, without the ends of text."""
    ids = array.array("H", (TEXT / "tokens.bin").read_bytes())
    documents = [[]]
    for token in ids:
        documents.append([]) if token == END_OF_TEXT else documents[-1].append(token)
    decoded = subprocess.run([program, "tokenize", "--tokenizer", TEXT / "tokenizer.json", "--decode"], check=True,
                             input="\n".join(map(json.dumps, documents)) + "\n", capture_output=True, text=True)
    return "".join(map(json.loads, decoded.stdout.splitlines())).encode()


def show_text(run, program):
    of = Run(run)
    trained = json.loads((run / "held-out.json").read_text())
    text = read_text(program)
    assert len(text) == trained["bytes"]
    bits_per_nat = trained["tokens"] / trained["bytes"] / math.log(2)  # per byte of text, and nat per token
    compressed = 8 * len(gzip.compress(text, 9)) / len(text)
    first, last = of.first["val/loss"], of.last["val/loss"]
    print(f"""
Results of this run after {of.last['tokens']:,} tokens of public-domain novels:
  validation loss     {of.loss} (perplexity {math.exp(first):,.0f} -> {math.exp(last):,.0f})
  active experts      {of.experts}
  held-out books      {trained['bits_per_byte']:.3f} bits per byte (gzip -9: {compressed:.3f}; before training: \
{bits_per_nat * first:.3f})
  speed               {of.speed}
Report:               {of.report}
Files:
  metrics             {of.metrics}
  checkpoint          {of.checkpoint}
  configuration       configs/quickstart.yaml, resolved in {run / 'config.yaml'}""")


def show_images(run, data):
    import glyphs

    of, data = Run(run), pathlib.Path(data)
    judged = {name: f"{share:.1%} of {count}" for name, share, count in
              glyphs.judge(data / "train.tar", data / "validation.tar", run / "samples.npz")}
    print(f"""
Results of this run after {of.last['step'] * of.batch:,} drawn pictures of digits:
  validation loss     {of.loss}
  digits recognized   {judged['samples']} drawn by the model, by a nearest-neighbor probe
                      (held-out pictures: {judged['held-out pictures']}, noise: {judged['noise']})
  active experts      {of.experts}
  speed               {of.speed}
Samples:              {max((run / 'samples').glob('step-*.png'))} (one row per digit)
Report:               {of.report}
Files:
  metrics             {of.metrics}
  samples             {run / 'samples.npz'}; grids drawn during training in {run / 'samples'}
  checkpoint          {of.checkpoint}
  configuration       configs/quickstart-images.yaml, resolved in {run / 'config.yaml'}
Next steps:
        build/release/bin/dtopp sample {run} --classes 3,7 --count 16 --output digits.png
        build/release/bin/dtopp train configs/cifar10.yaml     (docs/how-to/pictures.md explains how)""")


if __name__ == "__main__":
    kind, folder, other = sys.argv[1:]
    {"text": show_text, "images": show_images}[kind](pathlib.Path(folder), other)
