"""The Hugging Face side of training_step.py: trains OlmoeForCausalLM until it is killed and prints one JSON
line per step."""

import argparse
import importlib
import json
import pathlib
import sys
import time

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM


def build(case, implementation):
    config = OlmoeConfig(
        vocab_size=case["vocab_size"], hidden_size=case["hidden_size"], intermediate_size=case["ffn_hidden_size"],
        num_hidden_layers=case["num_layers"], num_attention_heads=case["num_heads"],
        num_experts=case["num_experts"], num_experts_per_tok=case["active"], norm_topk_prob=True,
        max_position_embeddings=case["sequence_length"], tie_word_embeddings=True, use_cache=False)
    model = OlmoeForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation=implementation)
    return model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=json.loads)
    parser.add_argument("--implementation", required=True)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.implementation == "dtopp":
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
        importlib.import_module("dtopp.huggingface")
    model = build(args.case, args.implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape = args.case["batch"], args.case["sequence_length"]
    while True:
        tokens = torch.randint(args.case["vocab_size"], shape)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
