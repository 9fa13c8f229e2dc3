"""The diffusion transformer, its draws, objectives and training in plain PyTorch, as a reference for dtopp.

Written from the definitions alone. Shapes: B images, S tokens of an image and its text, P of them patches, C
channels, D hidden, H heads, K head size.
"""

import functools
import math
import statistics

import numpy as np
import reference_model
import reference_sampler
import torch
import torch.nn.functional as F
from reference_model import moe, swiglu


# ---- the model ----------------------------------------------------------------------------------------------

def grid_places(grid):
    """The row and column of each patch, in row-major order."""
    along = torch.arange(grid, dtype=torch.float64)
    return along.repeat_interleave(grid), along.repeat(grid)


def turned(x_BHSK, text, grid):
    """Rotates the pairs (i, i + K / 2): the first half of the K / 2 pairs by the row, the second half by the
    column."""
    quarter = x_BHSK.shape[-1] // 4
    frequency = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    row, column = (torch.cat([torch.zeros(text, dtype=torch.float64), place]) for place in grid_places(grid))
    angle = torch.cat([row[:, None] * frequency, column[:, None] * frequency], 1)
    cos, sin = angle.cos().to(x_BHSK.dtype), angle.sin().to(x_BHSK.dtype)
    first, second = x_BHSK.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sincos(grid, size):
    def waves(place):
        frequency = 10000.0 ** (-torch.arange(size // 4, dtype=torch.float64) / (size // 4))
        angle = place[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], 1)

    row, column = grid_places(grid)
    return torch.cat([waves(column), waves(row)], 1)


def time_waves(t_B):
    frequency = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float64) / 128)
    angle = 1000 * t_B.double()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1)


def to_patches(x_BCHW, p):
    return F.unfold(x_BCHW, p, stride=p).transpose(1, 2)


def from_patches(y_BPV, channels, p, grid):
    y = y_BPV.unflatten(1, (grid, grid)).unflatten(-1, (p, p, channels))
    return torch.einsum("nhwpqc->nchpwq", y).flatten(4, 5).flatten(2, 3)


def forward(config, parameters, x_BCHW, t_B, condition, thresholds, compute=None, normalization=None):
    """Returns the prediction [B, C, H, W] and each layer's routing. `condition` holds "class" and "text" if
    the model has them. `compute` is the dtype of everything but the router, if it differs from the
    parameters' dtype."""
    model = config["model"]
    grid, text = model["image_size"] // model["patch_size"], model["text_length"]
    dtype = compute or parameters["patch_embed.weight"].dtype

    def weight(name):
        return parameters[name].to(dtype)

    def affine(name, x):
        return x.to(dtype) @ weight(name + ".weight").T + weight(name + ".bias")

    def modulated(x, shift, scale):
        return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift

    def attention(x_BSD, prefix):
        def heads(name, position):
            y = x_BSD @ weight(f"{prefix}{name}_proj.weight").T
            by_head = y.unflatten(-1, (model["num_heads"], -1))
            if position and model["qk_norm"] != "none":
                y = by_head if model["qk_norm"] == "head" else y
                y = F.layer_norm(y, y.shape[-1:], weight(f"{prefix}{name}_norm.weight"), eps=1e-5)
            y = y.reshape(by_head.shape).transpose(1, 2)
            return turned(y, text, grid) if position and model["position"] == "rotary" else y

        q, k, v = heads("q", True), heads("k", True), heads("v", False)
        mixed = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(-2) @ weight(prefix + "o_proj.weight").T

    x = affine("patch_embed", to_patches(x_BCHW, model["patch_size"]))
    if model["position"] == "sincos":
        x = x + sincos(grid, model["hidden_size"]).to(dtype)
    if text:
        x = torch.cat([affine("text_embed", condition["text"]), x], 1)
    c = affine("time_embed.2", F.silu(affine("time_embed.0", time_waves(t_B))))
    if model["num_classes"]:
        c = c + weight("class_embed.weight")[condition["class"]]
    c = F.silu(c)
    shared = affine("modulation", c).unflatten(-1, (6, -1))
    layers = []
    for n in range(model["num_layers"]):
        prefix = f"blocks.{n}."
        shift, scale, gate, shift2, scale2, gate2 = (shared + weight(prefix + "modulation"))[:, :, None].unbind(1)
        x = x + gate * attention(modulated(x, shift, scale), prefix + "attention.")
        h = modulated(x, shift2, scale2)
        if model["num_experts"] == 1:
            y = swiglu(h, weight(prefix + "mlp.gate_up_proj.weight"), weight(prefix + "mlp.down_proj.weight"))
        else:
            y, routed = moe(h.flatten(0, 1), parameters, weight, prefix + "mlp.", config["routing"], thresholds[n],
                            logits_of=normalization and functools.partial(normalization.logits, n))
            y = y.unflatten(0, h.shape[:2])
            layers.append(routed)
        x = x + gate2 * y
    shift, scale = (affine("final.modulation", c).unflatten(-1, (2, -1)) + weight("final.table"))[:, :, None].unbind(1)
    y = affine("final.proj", modulated(x[:, text:], shift, scale)).to(parameters["patch_embed.weight"].dtype)
    return from_patches(y, model["channels"], model["patch_size"], grid), layers


# ---- objectives ---------------------------------------------------------------------------------------------

def noised(config, x0, noise, t_B):
    """Returns the model's input and its target."""
    if config["diffusion"]["objective"] == "flow":
        t = t_B[:, None, None, None].to(x0.dtype)
        return (1 - t) * x0 + t * noise, noise - x0
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)
    a = kept[(1000 * t_B).round().long()][:, None, None, None]
    return a.sqrt().to(x0.dtype) * x0 + (1 - a).sqrt().to(x0.dtype) * noise, noise


def losses(config, parameters, batch, thresholds, compute=None, normalization=None):
    """Returns the losses by name with "total", the prediction, each image's loss, and each layer's routing."""
    x, target = noised(config, batch["x0"], batch["noise"], batch["t"])
    prediction, layers = forward(config, parameters, x, batch["t"], batch, thresholds, compute, normalization)
    sample_loss = ((prediction - target) ** 2).mean((1, 2, 3))
    tokens = len(x) * tokens_of(config["model"])
    values = {"diffusion": sample_loss.mean()} | reference_model.router_losses(config, layers, tokens)
    weights = {"diffusion": 1.0} | config["loss"]
    values["total"] = sum(weights[name] * value for name, value in values.items())
    return values, prediction, sample_loss, layers


def tokens_of(model):
    return (model["image_size"] // model["patch_size"]) ** 2 + model["text_length"]


# ---- draws --------------------------------------------------------------------------------------------------

def uniform(seed, purpose, index):
    high, low, *_ = reference_sampler.bits(seed, purpose, index)
    return ((high << 32 | low) >> 11) * 2.0**-53


def normals(seed, purpose, index, count):
    """Box–Muller normals for rows of `count` numbers, four per counter value."""
    blocks, values = (count + 3) // 4, []
    for block in range(blocks):
        words = reference_sampler.bits(seed, purpose, index * blocks + block)
        for first, second in (words[:2], words[2:]):
            radius, angle = math.sqrt(-2 * math.log((first + 0.5) / 2**32)), 2 * math.pi * second / 2**32
            values += [radius * math.cos(angle), radius * math.sin(angle)]
    return np.float32(values[:count])


def timestep(config, share):
    t = share
    if config["diffusion"]["timesteps"] == "logit_normal":
        t = 1 / (1 + math.exp(-statistics.NormalDist().inv_cdf(share)))
    return t if config["diffusion"]["objective"] == "flow" else min(999, math.floor(1000 * t)) / 1000


def draw_training(config, position, images):
    """Returns the image, whether it is mirrored and its condition dropped, t, and the noise of a position in
    the training order."""
    seed = config["training"]["seed"]
    return {"image": reference_sampler.permuted(position % images, position // images, images, seed),
            "flip": config["diffusion"]["flip"] and uniform(seed, "image flip", position) < 0.5,
            "dropped": uniform(seed, "dropped condition", position) < config["diffusion"]["condition_dropout"],
            "t": timestep(config, uniform(seed, "timestep", position)), "noise": "noise", "group": None}


def draw_validation(config, index):
    seed = config["training"]["seed"]
    bucket = reference_sampler.permuted(index % 10, index // 10, 10, seed, "validation bucket")
    return {"image": index, "flip": False, "dropped": False, "noise": "validation noise", "group": bucket,
            "t": timestep(config, (bucket + uniform(seed, "validation timestep", index)) / 10)}


def make_batch(config, pictures, draws, first):
    """The batch of the draws first, first + 1, …; `pictures` holds "x0", "label", "text"."""
    model, seed = config["model"], config["training"]["seed"]
    x0 = torch.stack([pictures["x0"][d["image"]].flip(-1) if d["flip"] else pictures["x0"][d["image"]] for d in draws])
    noise = [normals(seed, d["noise"], first + i, x0[0].numel()) for i, d in enumerate(draws)]
    batch = {"x0": x0, "noise": torch.from_numpy(np.stack(noise)).view_as(x0),
             "t": torch.tensor([d["t"] for d in draws], dtype=torch.float32)}
    if model["num_classes"]:
        batch["class"] = torch.tensor([model["num_classes"] if d["dropped"] else pictures["label"][d["image"]].item()
                                       for d in draws])
    if model["text_length"]:
        missing = model["text_length"] - pictures["text"].shape[1]
        text = F.pad(pictures["text"], (0, 0, 0, missing))
        batch["text"] = torch.stack([torch.zeros_like(text[0]) if d["dropped"] else text[d["image"]] for d in draws])
    return batch


# ---- training -----------------------------------------------------------------------------------------------

class Trainer(reference_model.Trainer):
    """Trains from given parameters on given batches."""

    def __init__(self, config, parameters, dtype=torch.float32):
        self.config = config
        self.parameters = {name: p.to(dtype).clone().requires_grad_() for name, p in parameters.items()}
        self.moments = {f"{name}.{moment}": torch.zeros_like(p) for name, p in self.parameters.items()
                        for moment in ("exp_avg", "exp_avg_sq")}
        self.decays = {name for name, p in self.parameters.items()
                       if p.dim() >= 2 and not name.endswith((".modulation", ".table"))}  # tables and modulations are added
        self.step_count = 0
        self.controller, self.normalization = reference_model.Controller(config), reference_model.ExpertNormalization({})

    def step(self, batch):
        """Runs one optimizer step on a global batch and returns its report."""
        self.step_count += 1
        size = self.config["training"]["micro_batch_size"]
        starts = range(0, len(batch["t"]), size)
        thresholds, report, pairs, margin, routed = self.controller.thresholds(), {}, None, math.inf, []
        for start in starts:
            part = {name: tensor[start:start + size] for name, tensor in batch.items()}
            values, _, _, layers = losses(self.config, self.parameters, part, thresholds, normalization=self.normalization)
            (values["total"] / len(starts)).backward()
            routed.append(layers)
            for name, value in values.items():
                report[name] = report.get(name, 0.0) + value.item() / len(starts)
            pairs = [c + layer["counts"].sum().item() for c, layer in zip(pairs or [0] * len(layers), layers)]
            margin = min([margin] + [layer["margin"] for layer in layers])
        report["grad_norm"] = self.clip_and_update(reference_model.learning_rate(self.config, self.step_count))
        report["margin"] = margin
        if pairs:
            active = [c / (len(batch["t"]) * tokens_of(self.config["model"])) for c in pairs]
            report["active_experts"] = sum(active) / len(active)
            if self.config["routing"]["method"] != "top_k":  # it has no threshold
                report |= {f"threshold/{n}": p for n, p in enumerate(thresholds)}
            self.controller.update(active)
            self.normalization.update(routed)
        return report
