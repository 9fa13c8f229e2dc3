"""Continues a text with a checkpoint of `dtopp train`, and shows how many experts each token used.
Usage: use_checkpoint.py CHECKPOINT [PROMPT] [--tokens N]
"""

import argparse

import torch

import dtopp


def count_experts(model, ids):
    """The number of experts of each token, mean over layers [T]."""
    counts = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda module, inputs, output: counts.append((output[1] != 0).sum(-1)))
             for layer in model.model.layers]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(counts).double().mean(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a checkpoint or a run's folder")
    parser.add_argument("prompt", nargs="?", default="The old man")
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    model = dtopp.load(args.checkpoint)
    prompt = model.tokenizer(args.prompt, return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=args.tokens, do_sample=False)
    experts = count_experts(model, ids)
    print("".join(f"{model.tokenizer.decode([token])}[{count:.1f}]" for token, count in zip(ids[0].tolist(), experts.tolist())))
    print(f"experts {experts.mean():.2f} per token")


if __name__ == "__main__":
    main()
