"""A diffusion transformer's training run that is small enough for tests: its data, its configuration, and the
reference trainer that resumes from its checkpoint."""

import pathlib

import numpy as np
import reference_diffusion
import reference_model
import tiny_run
import torch
from safetensors.torch import save_file

CONFIG = """\
name: tiny
model: {{type: diffusion_transformer, hidden_size: 32, num_layers: 2, num_heads: 4, ffn_hidden_size: 16, num_experts: 8,
        image_size: 8, channels: {channels}, patch_size: 2, num_classes: 5}}
routing: {{method: dtop_p, experts: 3, threshold: 0.4}}
loss: {{load_balance: 0.1, dynamic: 0.1}}
diffusion: {{condition_dropout: 0.3, samples_every: 0}}
optimizer: {{lr: 1.0e-2, min_lr: 1.0e-2, warmup_steps: 3}}
data: {{train: [{data}/train], validation: [{data}/validation]}}
training: {{steps: 12, global_batch_size: 4, micro_batch_size: 2, seed: 3, precision: fp32, device: {device}, threads: 1}}
validation: {{every: 6, tokens: 100000}}
checkpoint: {{every: 4, keep: 0}}
logging: {{tensorboard: false, console_every: 1}}
output: {data}/run
"""
SCALE, SHIFT = [0.5, 2.0, 1.0, 0.25], 0.1  # for latents


def samples(kind, count, seed):
    """The input of `dtopp prepare images`: pictures of squares, or latents with captions."""
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(generator.integers(0, 5, count))
    labels[:5] = torch.arange(5)
    if kind == "pixels":
        images = generator.integers(0, 60, (count, 3, 8, 8))
        for i, label in enumerate(labels):
            images[i, :, 1:label + 3, 0:4] += 150
        return {"images": torch.from_numpy(images.astype(np.uint8)), "labels": labels}
    normal = [torch.from_numpy(generator.standard_normal((count, *shape), np.float32)) for shape in ((4, 8, 8), (4, 8, 8), (3, 6))]
    return dict(zip(("latents", "latents_flip", "text"), normal)) | {"labels": labels}


def make(directory, kind="pixels"):
    """Prepares data and writes config.yaml below `directory`. Returns the path of the configuration."""
    directory = pathlib.Path(directory)
    options = ["--scale", ",".join(map(str, SCALE)), "--shift", str(SHIFT)] if kind == "latents" else []
    for name, count, seed in (("train", 21, 1), ("validation", 13, 2)):
        save_file(samples(kind, count, seed), directory / f"{name}.safetensors")
        done = tiny_run.dtopp("prepare", "images", directory / f"{name}.safetensors", "--output", directory / name, *options)
        assert done.returncode == 0, done.stderr
    config = directory / "run.yaml"
    config.write_text(CONFIG.format(data=directory, channels=3 if kind == "pixels" else 4, device=tiny_run.DEVICE))
    return config


class Pictures:
    """x0 in the form in which the model receives it, mirrored or not, with label and text."""

    def __init__(self, kind, count, seed):
        raw = samples(kind, count, seed)
        self.count, self.label, self.text = count, raw["labels"], raw.get("text")
        if kind == "pixels":
            self.x0 = raw["images"].float() / 127.5 - 1
            self.mirrored = self.x0.flip(-1)
        else:
            scale = torch.tensor(SCALE)[:, None, None]
            self.x0, self.mirrored = ((raw[name] - SHIFT) * scale for name in ("latents", "latents_flip"))

    def batch(self, config, draws, first):
        made = {"x0": self.x0, "label": self.label, "text": self.text}
        batch = reference_diffusion.make_batch(config, made, [d | {"flip": False} for d in draws], first)
        batch["x0"] = torch.stack([(self.mirrored if d["flip"] else self.x0)[d["image"]] for d in draws])
        return batch


class Trainer(reference_diffusion.Trainer):
    """Resumes from a checkpoint."""

    def __init__(self, checkpoint):
        config, parameters, moments, state = reference_model.load_checkpoint(checkpoint)
        super().__init__(config, {name: p.detach() for name, p in parameters.items()})
        self.moments, self.step_count = moments, state["step"]
        self.controller = reference_model.Controller(config, state)
        self.normalization = reference_model.ExpertNormalization(state)
