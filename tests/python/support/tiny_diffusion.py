"""Tiny diffusion transformers: prepared images written independently of dtopp, runs on them, and checkpoints
whose weights are random enough to distinguish every part of the model."""

import pathlib

import numpy as np
import reference_model
import tiny_run
import torch
import yaml
from manifests import write_manifest
from safetensors.torch import load_file, save_file

CLASSES = ["apple", "boat", "a class with a long name"]
MODEL = {"type": "diffusion_transformer", "hidden_size": 32, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 16,
         "num_experts": 8, "image_size": 8, "channels": 3, "patch_size": 2, "num_classes": 3}
LATENT = {"channels": 4}
TEXT = {"num_classes": 0, "text_size": 6, "text_length": 3}
SCALE, SHIFT = [0.5, 2.0, 1.0, 0.25], [0.1, -0.2, 0.0, 0.3]


def images(model, count, seed):
    """The tensors of a prepared folder."""
    rng = np.random.default_rng(seed)
    shape = (count, model["channels"], model["image_size"], model["image_size"])
    if model["channels"] == 3:
        made = {"images": torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))}
    else:
        made = {"latents": torch.from_numpy(rng.normal(size=shape).astype(np.float32))}
    if model["num_classes"]:
        made["labels"] = torch.from_numpy(rng.integers(0, model["num_classes"], count))
    if model.get("text_length"):
        lengths = rng.integers(1, model["text_length"] + 1, count)
        made["text"] = torch.from_numpy(rng.normal(size=(lengths.sum(), model["text_size"])).astype(np.float32))
        made["text_offsets"] = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
    return made


def write_images(folder, model, count, seed, classes=None):
    """Writes a folder as `dtopp prepare images` does. Returns its tensors."""
    folder.mkdir(parents=True)
    tensors = images(model, count, seed)
    save_file(tensors, folder / "images-00000.safetensors")
    latent = "latents" in tensors
    about = {"kind": "latents" if latent else "pixels", "images": count,
             "shape": [model["channels"], model["image_size"], model["image_size"]],
             "classes": (classes or CLASSES) if "labels" in tensors else [],
             "job": {"size": 0, "channels": 3, "sources": []} | ({"scale": SCALE, "shift": SHIFT} if latent else {}),
             "skipped": []}
    if latent:
        about["latents"] = {"dtype": "F32", "flipped": 0}
    if "text" in tensors:
        about["text"] = {"dtype": "F32", "size": model["text_size"], "longest": model["text_length"]}
    write_manifest(folder, "dtopp image data 1", about)
    return tensors


def as_seen(tensors, model):
    """x0, label and text in the form in which the model receives them."""
    if "images" in tensors:
        seen = {"x0": tensors["images"].double() / 127.5 - 1}
    else:
        of_channels = [torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (SHIFT, SCALE)]
        seen = {"x0": (tensors["latents"].double() - of_channels[0]) * of_channels[1]}
    if "labels" in tensors:
        seen["label"] = tensors["labels"]
    if "text" in tensors:
        offsets = tensors["text_offsets"].tolist()
        seen["text"] = torch.zeros(len(offsets) - 1, model["text_length"], model["text_size"], dtype=torch.float64)
        for i, (begin, end) in enumerate(zip(offsets, offsets[1:])):
            seen["text"][i, :end - begin] = tensors["text"][begin:end]
    return seen


def train(directory, model=None, steps=2, **sections):
    """Trains a few steps below `directory`, with images in "train" and "held-out". Returns the directory."""
    model = MODEL | (model or {})
    write_images(directory / "train", model, 24, seed=1)
    write_images(directory / "held-out", model, 25, seed=2)
    config = {"name": "tiny", "model": model, "output": str(directory / "run"),
              "routing": {"method": "dtop_p", "experts": 3, "threshold": 0.4},
              "optimizer": {"lr": 1e-2, "min_lr": 1e-2, "warmup_steps": 1},
              "data": {"train": [str(directory / "train")], "validation": [str(directory / "held-out")]},
              "training": {"steps": steps, "global_batch_size": 4, "micro_batch_size": 4, "seed": 3, "precision": "fp32",
                           "device": tiny_run.DEVICE, "threads": 1},
              "validation": {"every": steps, "tokens": 25 * 19}}
    for section, values in sections.items():
        config[section] = config.get(section, {}) | values
    (directory / "run.yaml").write_text(yaml.safe_dump(config))
    done = tiny_run.dtopp("train", directory / "run.yaml")
    assert done.returncode == 0, done.stderr
    return directory


def checkpoint_of(directory):
    return sorted((pathlib.Path(directory) / "run/checkpoints").iterdir())[-1]


def randomize(directory):
    """Replaces the newest checkpoint's weights by others, none of them 0 or 1, and the average by different
    ones."""
    checkpoint = checkpoint_of(directory)
    for seed, name in enumerate(("model", "ema")):
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for key, tensor in load_file(checkpoint / f"{name}.safetensors").items():
            noise = torch.randn(tensor.shape, generator=generator)
            weights[key] = 1 + 0.3 * noise if key.endswith(("_norm.weight", "gate.scale")) else 0.15 * noise
        save_file(weights, checkpoint / f"{name}.safetensors", {"format": "pt"})
    write_manifest(checkpoint, "dtopp checkpoint 1")
    return directory


class Reference:
    """A checkpoint in plain PyTorch, f64."""

    def __init__(self, directory, weights="model"):
        checkpoint = checkpoint_of(directory)
        self.config = yaml.safe_load((checkpoint / "config.yaml").read_text())
        self.parameters = {name: tensor.double() for name, tensor in
                           load_file(checkpoint / f"{weights}.safetensors").items()}
        state = reference_model.load_state(checkpoint)
        self.thresholds = reference_model.Controller(self.config, state).thresholds()
