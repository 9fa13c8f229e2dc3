"""Measures the tokens per second of `dtopp generate`, without its start: for one text, and for a batch of texts.

The model has random weights, which does not change its cost, and the likeliest token is taken, because such weights make
sampling unusually slow: hidden 512, 8 layers, 64 experts of 256, 8 active, GPT-NeoX's
vocabulary. Prints one JSON line per number of texts."""

import argparse
import pathlib
import re
import tempfile

from training_side import BINARY, HERE, routing_of, run_program, without_pauses
from yardstick import report

CASE = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "ffn_hidden_size": 256, "num_experts": 64, "vocab_size": 50432,
        "sequence_length": 2048}
QUICK_CASE = CASE | {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "ffn_hidden_size": 16, "num_experts": 16, "sequence_length": 64}
ACTIVE = 8
TOKENIZER = HERE.parent / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
PROMPT = "The old man"


def make_checkpoint(case, device, folder):
    (folder / "text.txt").write_text("The fog came down at noon.\n" * 2000)
    run_program(BINARY, "prepare", "text", folder / "text.txt", "--tokenizer", TOKENIZER, "--output", folder / "tokens")
    config = {"name": "generation", "model": case | {"tie_embeddings": True}, "routing": routing_of("dtop_p", case["num_experts"], ACTIVE),
              "data": {"train": [str(folder / "tokens")]}, "optimizer": {"warmup_steps": 0, "lr": 1e-6, "min_lr": 1e-7},
              "training": {"steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "device": device, "precision": "bf16"}}
    run_program(BINARY, "train", without_pauses(config, folder))
    return folder / "run"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="a small model: does the benchmark run?")
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 64])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoint = make_checkpoint(QUICK_CASE if args.quick else CASE, args.device, folder)
        for texts in args.texts[:1] if args.quick else args.texts:
            (folder / "prompts").write_text(f"{PROMPT}\n" * texts)
            done = run_program(BINARY, "generate", checkpoint, "--device", args.device, "--prompts", folder / "prompts", "--max-tokens",
                               8 if args.quick else 800, "--temperature", 0)
            tokens, rate, active = re.search(r"(\d+) tokens, ([\d.]+) tok/s, ([\d.]+) of", done.stderr).groups()
            report(case="generation", device=args.device, texts=texts, tokens=int(tokens), active_experts=float(active),
                   tokens_per_second=float(rate))


if __name__ == "__main__":
    main()
