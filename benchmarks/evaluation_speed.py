"""Measures items per second of `dtopp evaluate tasks` against lm-eval on the same machine and items. lm-eval runs the same model,
exported with `convert to-hf --as olmoe`, as transformers' OlmoeForCausalLM (hidden 512, 8 layers, 64 experts of 256, 8 active, GPT-NeoX's
vocabulary; the weights are nearly random, which does not change the cost), with its class of python/dtopp/lm_eval.py and each of
transformers' implementations of experts.

The tasks are multiple choice with five examples (copa, winogrande) and without (hellaswag), and LAMBADA. Both rates exclude loading: they
are differences of two runs, with one item and with all. Prints one JSON line per precision and task: items per second and processor seconds
per item of both, lm-eval's per implementation and batch size. The ratios are those to its best figures.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import yaml
from training_side import BINARY, HERE

CASE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "ffn_hidden_size": 256, "num_experts": 64, "vocab_size": 50304,
        "sequence_length": 2048, "norm": "rms", "qk_norm": "whole", "tie_embeddings": True}
TOKENIZER = HERE.parent / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def run(*command):
    """Returns a program's seconds and processor seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(errors.decode()[-2000:])
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def make_checkpoint(folder, threads):
    (folder / "text.txt").write_text("Nobody spoke, and the fog came down at noon.\n" * 2000)
    run(BINARY, "prepare", "text", folder / "text.txt", "--tokenizer", TOKENIZER, "--output", folder / "tokens")
    config = {"name": "evaluation_speed", "model": CASE, "routing": {"method": "top_k", "experts": 8, "normalization": "none"},
              "data": {"train": [str(folder / "tokens")]}, "optimizer": {"warmup_steps": 0},
              "training": {"steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "device": "cpu", "precision": "fp32", "threads": threads},
              "validation": {"every": 0, "tasks": []}, "logging": {"tensorboard": False}, "output": str(folder / "run")}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    run(BINARY, "train", folder / "run.yaml")
    return folder / "run"


class LmEval:
    """lm-eval in this process, with the model loaded."""

    def __init__(self, model, precision, tasks, folder):
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets"), "TQDM_DISABLE": "1"}
        sys.path.insert(0, str(HERE.parent / "python"))
        import lm_eval
        import lm_eval.tasks
        from dtopp.lm_eval import DtoppHFLM
        self.evaluator = lm_eval
        self.model = DtoppHFLM(pretrained=str(model), device="cpu", dtype={"fp32": "float32", "bf16": "bfloat16"}[precision])
        self.tasks = lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False)

    def run(self, task, items, implementation, batch_size):
        """Returns seconds and processor seconds."""
        self.model.model.set_experts_implementation(implementation)
        self.model.batch_size_per_gpu = batch_size
        start, cpu = time.perf_counter(), time.process_time()
        self.evaluator.simple_evaluate(model=self.model, tasks=[f"dtopp_{task}"], task_manager=self.tasks, limit=items, bootstrap_iters=0,
                                       log_samples=False, verbosity="ERROR")
        return time.perf_counter() - start, time.process_time() - cpu


def per_item(one, all_items, items):
    """Items per second and processor seconds per item."""
    return round((items - 1) / (all_items[0] - one[0]), 3), round((all_items[1] - one[1]) / (items - 1), 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(HERE.parent.parent / "shared/eval/data"), help="the folder of the task files")
    parser.add_argument("--tasks", nargs="+", default=["copa", "hellaswag", "winogrande", "lambada_openai"])
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8], help="of lm-eval")
    parser.add_argument("--implementations", nargs="+", default=["eager", "grouped_mm"], help="of lm-eval's experts")
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoint = make_checkpoint(folder, args.threads)
        run(BINARY, "convert", "to-hf", checkpoint, folder / "model", "--as", "olmoe")
        run(BINARY, "convert", "lm-eval", folder / "tasks", "--data", args.data)
        peers = {precision: LmEval(folder / "model", precision, folder / "tasks", folder) for precision in args.precisions}
        for precision, task in itertools.product(args.precisions, args.tasks):
            peer = peers[precision]
            command = [BINARY, "evaluate", "tasks", checkpoint, "--tasks", task, "--data", args.data, "--threads", args.threads,
                       "--precision", precision, "--limit"]
            one, all_items = run(*command, 1), run(*command, args.items)
            ours = per_item(one, all_items, args.items)
            theirs = {}
            for how in itertools.product(args.implementations, args.batch_sizes):
                theirs[" ".join(map(str, how))] = per_item(peer.run(task, 1, *how), peer.run(task, args.items, *how), args.items)
            print(json.dumps({
                "case": "evaluation_speed", "task": task, "precision": precision, "items": args.items, "threads": args.threads,
                "items_per_second": ours[0], "cpu_seconds_per_item": ours[1],
                "lm_eval_items_per_second": {how: rate for how, (rate, _) in theirs.items()},
                "lm_eval_cpu_seconds_per_item": {how: cpu for how, (_, cpu) in theirs.items()},
                "ratio": round(ours[0] / max(rate for rate, _ in theirs.values()), 2),
                "cpu_ratio": round(min(cpu for _, cpu in theirs.values()) / ours[1], 2)}), flush=True)


if __name__ == "__main__":
    main()
