"""Trains a small vision transformer with Mixture-of-Experts layers to classify pictures.

Usage: classify_images.py PICTURES.tar [--steps N]. The tar holds CLASS/NAME.png, all of one size; every fifth
picture is kept for the test. scripts/glyphs.py draws digits for a first try.
"""

import argparse
import tarfile

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import dtopp

HIDDEN, LAYERS, HEADS, PATCH, BATCH = 64, 2, 4, 8, 32


def load(path):
    """Returns grey pictures f32 [N, 1, S, S] centred at 0, classes int64 [N], and the names of the classes."""
    pictures, classes = [], []
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                grey = np.asarray(Image.open(tar.extractfile(member)).convert("L"), dtype=np.float32)
                pictures.append(torch.from_numpy(grey / 127.5 - 1)[None])
                classes.append(member.name.split("/")[0])
    names = sorted(set(classes))
    return torch.stack(pictures), torch.tensor([names.index(name) for name in classes]), names


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.attention = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.moe = dtopp.MoE(HIDDEN, ffn_hidden_size=64, num_experts=8, target_experts=2)

    def forward(self, x):
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.moe(self.norms[1](x))


class Classifier(nn.Module):
    def __init__(self, side, classes):
        super().__init__()
        self.patches = nn.Conv2d(1, HIDDEN, PATCH, stride=PATCH)
        self.places = nn.Parameter(torch.randn((side // PATCH) ** 2, HIDDEN))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, classes)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pictures")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(1)
    pictures, classes, names = load(options.pictures)
    tested = torch.arange(len(classes)) // len(names) % 5 == 0
    model = Classifier(pictures.shape[-1], len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    controller = dtopp.ThresholdController(model, controller="solve")
    controller.attach(optimizer)
    trained = torch.where(~tested)[0]
    for step in range(1, options.steps + 1):
        chosen = trained[torch.randint(len(trained), (BATCH,))]
        loss = F.cross_entropy(model(pictures[chosen]), classes[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}  loss {loss.item():.3f}  "
                  f"experts {controller.metrics()['moe/active_experts']:.2f} of 2", flush=True)
    with torch.no_grad():
        right = model.eval()(pictures[tested]).argmax(-1) == classes[tested]
    print(f"accuracy {right.float().mean().item():.3f} on {len(right)} pictures")


if __name__ == "__main__":
    main()
