"""Measures items per second of `dtopp evaluate` against a Hugging Face OLMoE of the same size on the same
machine and prompts (hidden 512, 8 layers, 64 experts of 256, 8 active, GPT-NeoX's vocabulary, fp32; the
weights are random, which does not change the cost). Hugging Face runs one request at a time, as a plain
harness does, and padded batches sorted by length.

The prompts are those of `dtopp evaluate tasks --dry-run --dump`: multiple choice with five examples (copa) and
without (hellaswag), WinoGrande, and LAMBADA. dtopp's rate excludes loading: it is the difference of two runs,
with few items and with all. Prints one JSON line per task, with dtopp's peak resident memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import torch
import yaml
from olmoe_steps import build
from training_side import BINARY, HERE

CASE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "ffn_hidden_size": 256, "num_experts": 64, "active": 8,
        "vocab_size": 50304, "sequence_length": 2048}
TOKENIZER = HERE.parent / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def run(*command):
    """Returns a program's seconds and peak resident bytes."""
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(errors.decode()[-2000:])
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def make_checkpoint(folder, threads):
    (folder / "text.txt").write_text("Nobody spoke, and the fog came down at noon.\n" * 2000)
    run(BINARY, "prepare", "text", folder / "text.txt", "--tokenizer", TOKENIZER, "--output", folder / "tokens")
    model = {k: v for k, v in CASE.items() if k != "active"}
    config = {"name": "evaluation_speed", "model": model | {"tie_embeddings": True},
              "routing": {"method": "top_k", "top_k": CASE["active"]}, "data": {"train": [str(folder / "tokens")]}, "optimizer": {"warmup_steps": 0},
              "training": {"steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "device": "cpu",
                           "precision": "fp32", "threads": threads},
              "validation": {"every": 0, "tasks": []}, "logging": {"tensorboard": False}, "output": str(folder / "run")}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    run(BINARY, "train", folder / "run.yaml")
    return folder / "run"


def sequences(item):
    """Returns (ids, number of scored ids) per choice of an item."""
    contexts = item["contexts"] if len(item["contexts"]) > 1 else item["contexts"] * len(item["continuations"])
    return [(context + continuation, len(continuation)) for context, continuation in zip(contexts, item["continuations"])]


@torch.no_grad()
def score(model, batch):
    """Log probabilities of a batch's continuations. The batch is padded at the end, where padding changes
    nothing."""
    width = max(len(ids) for ids, _ in batch) - 1
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    for row, (ids, _) in enumerate(batch):
        tokens[row, :len(ids) - 1] = torch.tensor(ids[:-1])
    logits = model(input_ids=tokens).logits
    return [logits[row, len(ids) - 1 - count:len(ids) - 1].log_softmax(-1).gather(1, torch.tensor(ids[-count:])[:, None])
            for row, (ids, count) in enumerate(batch)]


def batches(requests, most_tokens):
    """Yields batches of requests sorted by length, padded to at most `most_tokens` in all. With 0, one
    request at a time."""
    requests = sorted(requests, key=lambda request: len(request[0])) if most_tokens else requests
    batch = []
    for request in requests:
        if batch and (len(batch) + 1) * len(request[0]) > most_tokens:
            yield batch
            batch = []
        batch.append(request)
    yield batch


def items_per_second(model, items, most_tokens):
    start = time.perf_counter()
    for batch in batches([request for item in items for request in sequences(item)], most_tokens):
        score(model, batch)
    return len(items) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(HERE.parent.parent / "shared/eval/data"), help="the folder of the task files")
    parser.add_argument("--tasks", nargs="+", default=["copa", "hellaswag", "winogrande", "lambada_openai"])
    parser.add_argument("--items", type=int, default=12, help="items that Hugging Face scores; dtopp scores eight times as many")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    models = {name: build(CASE, name).eval() for name in ("eager", "grouped_mm")}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoint = make_checkpoint(folder, args.threads)
        for task in args.tasks:
            command = [BINARY, "evaluate", "tasks", checkpoint, "--tasks", task, "--data", args.data, "--threads", args.threads]
            dump = folder / f"{task}.jsonl"
            run(*command, "--limit", args.items, "--dry-run", "--dump", dump)
            items = [json.loads(line) for line in dump.read_text().splitlines()]
            first, _ = run(*command, "--limit", args.items)
            more, peak = run(*command, "--limit", 9 * args.items)
            ours = 8 * args.items / (more - first)
            singly, batched = {}, {}
            for implementation, model in models.items():
                score(model, sequences(items[0])[:1])
                singly[implementation] = items_per_second(model, items, 0)
                batched[implementation] = items_per_second(model, items, 8192)
            print(json.dumps({
                "case": "evaluation_speed", "task": task, "threads": args.threads,
                "tokens_per_item": round(sum(len(ids) for item in items for ids, _ in sequences(item)) / len(items)),
                "dtopp_items_per_second": round(ours, 3),
                "hugging_face_singly": {name: round(rate, 3) for name, rate in singly.items()},
                "hugging_face_batched": {name: round(rate, 3) for name, rate in batched.items()},
                "times_faster_singly": round(ours / max(singly.values()), 1),
                "times_faster_batched": round(ours / max(batched.values()), 1),
                "dtopp_peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
