"""Prints a summary of a run. Usage: quickstart_summary.py RUN PROGRAM

RUN/held-out.json is the result of `dtopp evaluate text --by-document` on the quick start's validation text."""

import array
import gzip
import json
import math
import pathlib
import subprocess
import sys

DATA = pathlib.Path("data/quickstart/validation")
END_OF_TEXT = 0


def read_text(program):
    """The bytes of all documents, without the ends of text."""
    ids = array.array("H", (DATA / "tokens.bin").read_bytes())
    documents = [[]]
    for token in ids:
        documents.append([]) if token == END_OF_TEXT else documents[-1].append(token)
    decoded = subprocess.run([program, "tokenize", "--tokenizer", DATA / "tokenizer.json", "--decode"], check=True,
                             input="\n".join(map(json.dumps, documents)) + "\n", capture_output=True, text=True)
    return "".join(map(json.loads, decoded.stdout.splitlines())).encode()


def main():
    run, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [line for line in lines if "val/loss" in line]
    steps = [line for line in lines if "train/loss" in line]
    config = (run / "config.yaml").read_text().splitlines()
    target = next(line.split(":")[1].strip() for line in config if line.strip().startswith("experts:"))
    first, last = validation[0], validation[-1]
    late = steps[len(steps) // 2 :]
    mean = sum(line["moe/active_experts"] for line in late) / len(late)
    trained = json.loads((run / "held-out.json").read_text())
    text = read_text(program)
    assert len(text) == trained["bytes"]
    bits_per_nat = trained["tokens"] / trained["bytes"] / math.log(2)  # per byte of text, and nat per token
    compressed = 8 * len(gzip.compress(text, 9)) / len(text)

    print(f"""
Results of this run after {last['tokens']:,} tokens of public-domain novels:
  validation loss     {first['val/loss']:.3f} before training, {last['val/loss']:.3f} after {last['step']} steps \
(perplexity {math.exp(first['val/loss']):,.0f} -> {math.exp(last['val/loss']):,.0f})
  active experts      {mean:.3f} per token over the second half of training, target {target} \
(threshold p = {steps[-1]['moe/threshold']:.3f})
  held-out books      {trained['bits_per_byte']:.3f} bits per byte (gzip -9: {compressed:.3f}; before training: \
{bits_per_nat * first['val/loss']:.3f})
  speed               {sorted(line['throughput/tokens_per_second'] for line in steps)[len(steps) // 2]:,.0f} tokens per second
Report:               {run / 'report.html'} (opens in any browser)
Files:
  metrics             {run / 'metrics.jsonl'} (TensorBoard reads the same folder)
  checkpoint          {max((run / 'checkpoints').glob('step-*'))}
  configuration       configs/quickstart.yaml, resolved in {run / 'config.yaml'}""")


if __name__ == "__main__":
    main()
