"""The PyTorch side of diffusion_step.py: a diffusion transformer of dtopp's form in the usual PyTorch style
(DiT blocks on scaled_dot_product_attention, Hugging Face's OLMoE layer with grouped_mm for the experts). It
trains until it is killed and prints one JSON line per step. The parameters have dtopp's names.

Shapes: B images, S patches, C channels, D hidden, H heads, K head size.
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from transformers import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock


def rotary_table(grid, head_size):
    """cos and sin [S, K]: half of the pairs (i, i + K / 2) rotate by the row, half by the column."""
    frequency = 10000.0 ** (-torch.arange(head_size // 4) / (head_size // 4))
    along = torch.arange(grid, dtype=torch.float32)
    row, column = along.repeat_interleave(grid), along.repeat(grid)
    angle = torch.cat([row[:, None] * frequency, column[:, None] * frequency], 1).repeat(1, 2)
    return angle.cos(), angle.sin()


def turned(x_BHSK, cos, sin):
    first, second = x_BHSK.chunk(2, -1)
    return (x_BHSK * cos + torch.cat([-second, first], -1) * sin).to(x_BHSK.dtype)


def time_waves(t_B):
    frequency = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float64) / 128)
    angle = 1000 * t_B.double()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1).float()


def modulated(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        for name in "qkvo":
            setattr(self, f"{name}_proj", nn.Linear(hidden, hidden, bias=False))
        self.q_norm = nn.LayerNorm(hidden, eps=1e-5, bias=False)
        self.k_norm = nn.LayerNorm(hidden, eps=1e-5, bias=False)

    def forward(self, x_BSD, rotary):
        def split(y_BSD):
            return y_BSD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q = turned(split(self.q_norm(self.q_proj(x_BSD))), *rotary)
        k = turned(split(self.k_norm(self.k_proj(x_BSD))), *rotary)
        v = split(self.v_proj(x_BSD))
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class SwiGlu(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


def feed_forward(case):
    if case["num_experts"] == 1:
        return SwiGlu(case["hidden_size"], case["ffn_hidden_size"])
    config = OlmoeConfig(hidden_size=case["hidden_size"], intermediate_size=case["ffn_hidden_size"],
                         num_experts=case["num_experts"], num_experts_per_tok=case["active"], norm_topk_prob=True)
    config._experts_implementation = "grouped_mm"
    return OlmoeSparseMoeBlock(config)


class Block(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.modulation = nn.Parameter(torch.zeros(6, case["hidden_size"]))
        self.attention = Attention(case["hidden_size"], case["num_heads"])
        self.mlp = feed_forward(case)

    def forward(self, x_BSD, shared_B6D, rotary):
        shift, scale, gate, shift2, scale2, gate2 = (shared_B6D + self.modulation)[:, :, None].unbind(1)
        x_BSD = x_BSD + gate * self.attention(modulated(x_BSD, shift, scale), rotary)
        return x_BSD + gate2 * self.mlp(modulated(x_BSD, shift2, scale2))


class Final(nn.Module):
    def __init__(self, hidden, values):
        super().__init__()
        self.modulation = nn.Linear(hidden, 2 * hidden)
        self.table = nn.Parameter(torch.zeros(2, hidden))
        self.proj = nn.Linear(hidden, values)

    def forward(self, x_BSD, c_BD):
        shift, scale = (self.modulation(c_BD).unflatten(-1, (2, -1)) + self.table)[:, :, None].unbind(1)
        return self.proj(modulated(x_BSD, shift, scale))


class DiffusionTransformer(nn.Module):
    def __init__(self, case):
        super().__init__()
        hidden, self.patch, self.channels = case["hidden_size"], case["patch_size"], case["channels"]
        self.grid = case["image_size"] // self.patch
        values = self.channels * self.patch**2
        self.patch_embed = nn.Linear(values, hidden)
        self.time_embed = nn.Sequential(nn.Linear(256, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.class_embed = nn.Embedding(case["num_classes"] + 1, hidden)
        self.modulation = nn.Linear(hidden, 6 * hidden)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case["num_layers"]))
        self.final = Final(hidden, values)
        self.rotary = rotary_table(self.grid, hidden // case["num_heads"])
        self.initialize()

    @torch.no_grad()
    def initialize(self):
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1)
            elif parameter.dim() < 2 or "modulation" in name or name.startswith("final."):
                parameter.zero_()
            else:
                parameter.normal_(std=0.02)

    def forward(self, x_BCHW, t_B, class_B):
        x = self.patch_embed(F.unfold(x_BCHW, self.patch, stride=self.patch).transpose(1, 2))
        c = F.silu(self.time_embed(time_waves(t_B)) + self.class_embed(class_B))
        shared = self.modulation(c).unflatten(-1, (6, -1))
        for block in self.blocks:
            x = block(x, shared, self.rotary)
        y = self.final(x, c).float().unflatten(1, (self.grid, self.grid)).unflatten(-1, (self.patch, self.patch, -1))
        return y.permute(0, 5, 1, 3, 2, 4).reshape(x_BCHW.shape)

    def loss(self, batch):
        t = batch["t"][:, None, None, None]
        prediction = self((1 - t) * batch["x0"] + t * batch["noise"], batch["t"], batch["class"])
        return F.mse_loss(prediction, batch["noise"] - batch["x0"])


class Images:
    """Random pictures (three channels) or latents, mirrored at random, with all random draws for them."""

    def __init__(self, case, count=1024):
        shape = count, case["channels"], case["image_size"], case["image_size"]
        pixels = case["channels"] == 3
        self.images = torch.randint(256, shape, dtype=torch.uint8) if pixels else torch.randn(shape)
        self.labels = torch.randint(case["num_classes"], (count,))
        self.none = case["num_classes"]

    def batch(self, size):
        chosen = torch.randint(len(self.images), (size,))
        x0 = self.images[chosen]
        if x0.dtype == torch.uint8:
            x0 = x0.float() / 127.5 - 1
            x0 = torch.where(torch.rand(size, 1, 1, 1) < 0.5, x0.flip(-1), x0)
        return {"x0": x0, "noise": torch.randn_like(x0), "t": torch.randn(size).sigmoid(),
                "class": torch.where(torch.rand(size) < 0.1, self.none, self.labels[chosen])}


class Training:
    """AdamW, gradient clipping, and the moving average of the weights."""

    def __init__(self, case, precision):
        self.case, self.bf16 = case, precision == "bf16"
        self.images = Images(case)
        self.model = DiffusionTransformer(case)
        self.parameters = list(self.model.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        groups = [{"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": 0.01},
                  {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=True)

    def step(self):
        count = self.case["batch"] // self.case["micro_batch"]
        total = 0.0
        for _ in range(count):
            batch = self.images.batch(self.case["micro_batch"])
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                loss = self.model.loss(batch) / count
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1e-4)
        return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=json.loads)
    parser.add_argument("--precision", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    training = Training(args.case, args.precision)
    while True:
        start = time.perf_counter()
        loss = training.step()
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
