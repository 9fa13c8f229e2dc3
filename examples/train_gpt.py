"""Trains a small Mixture-of-Experts GPT on bytes of the sample text. Usage: train_gpt.py [STEPS]"""

import io
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
import zstandard
from torch import nn

import dtopp

SAMPLE = pathlib.Path(__file__).resolve().parents[1] / "assets/text/novels-train.jsonl.zst"
HIDDEN, LAYERS, HEADS, LENGTH, BATCH = 64, 2, 4, 64, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.moe = dtopp.MoE(HIDDEN, ffn_hidden_size=64, num_experts=16, target_experts=4)

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.moe(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, HIDDEN), nn.Parameter(torch.randn(LENGTH, HIDDEN))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 256)

    def forward(self, ids):
        """Maps ids [B, L + 1] to the mean loss, in nats per byte, over all ids but the first of each row."""
        x = self.blocks(self.bytes(ids[:, :-1]) + self.places)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids[:, 1:].flatten())


def load(path):
    with open(path, "rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        text = "\n\n".join(json.loads(line)["text"] for line in lines)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def batch(text, generator):
    starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
    return text[starts + torch.arange(LENGTH + 1)]


def main(steps):
    torch.manual_seed(1)
    text, generator, model = load(SAMPLE), torch.Generator().manual_seed(1), GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    controller = dtopp.ThresholdController(model, controller="solve")
    controller.attach(optimizer)
    for step in range(1, steps + 1):
        loss = model(batch(text, generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            numbers = controller.metrics()
            print(f"step {step}  loss {loss.item():.3f}  experts {numbers['moe/active_experts']:.2f} of 4")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
