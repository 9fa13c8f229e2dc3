"""Runs dtopp_parity on small diffusion transformers: configurations, inputs, and distances between results."""


import start
import torch
import yaml
from safetensors.torch import load_file, save_file

BASE = {
    "model": {"type": "diffusion_transformer", "hidden_size": 32, "num_layers": 2, "num_heads": 4, "ffn_hidden_size": 16,
              "num_experts": 8, "image_size": 8, "channels": 3, "patch_size": 2, "num_classes": 5, "text_size": 0,
              "text_length": 0, "position": "rotary", "qk_norm": "whole"},
    "routing": {"method": "dtop_p", "experts": 3, "threshold": 0.4},
    "loss": {"load_balance": 0.1, "dynamic": 0.1, "router_z": 0.01},
    "diffusion": {"objective": "flow", "timesteps": "logit_normal", "flip": True, "condition_dropout": 0.3},
    "optimizer": {"lr": 1.0e-2, "min_lr": 1.0e-2, "warmup_steps": 3, "weight_decay": 0.1},
    "training": {"steps": 13, "global_batch_size": 4, "micro_batch_size": 2, "seed": 3, "precision": "fp32",
                 "device": "cpu", "threads": 1},
}
DENSE = {"model": {"num_experts": 1}, "loss": {"load_balance": 0.0, "dynamic": 0.0, "router_z": 0.0}}
TEXT = {"text_size": 6, "text_length": 3}


def merged(base, case):
    return {section: base.get(section, {}) | case.get(section, {}) for section in base | case}


class Program:
    """Runs dtopp_parity on one configuration."""

    def __init__(self, parity, directory, case):
        self.parity, self.directory = parity, directory
        self.path = directory / "run.yaml"
        self.path.write_text(yaml.safe_dump(merged(BASE, case)))

    def __call__(self, what, tensors, precision="fp32"):
        config = yaml.safe_load(self.path.read_text())
        config["training"]["precision"] = precision
        self.path.write_text(yaml.safe_dump(config))
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, self.directory / "input.safetensors")
        output = self.directory / f"{what}.safetensors"
        start.run([self.parity, what, self.path, self.directory / "input.safetensors", output], check=True,
                  timeout=120)
        return load_file(output)


def resolved(case):
    """The configuration with the defaults that the reference reads."""
    defaults = {"routing": {"scope": "global", "kp": 0.1, "ki": 0.1, "anti_windup": True,
                            "normalization": "dynamic", "renormalize": True, "max_experts": 0},
                "loss": {"router_z_on": "raw"},
                "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8, "grad_clip": 1.0}}
    return merged(defaults, merged(BASE, case))


def pictures(model, count, seed):
    generator = torch.Generator().manual_seed(seed)
    size = model["image_size"]
    made = {"x0": torch.rand(count, model["channels"], size, size, generator=generator) * 2 - 1}
    if model["num_classes"]:
        made["label"] = torch.randint(model["num_classes"], (count,), generator=generator)
    if model["text_length"]:
        made["text"] = torch.randn(count, model["text_length"], model["text_size"], generator=generator)
    return made


def batch_of(config, count):
    """A hand-made batch with every kind of condition and with t at both ends."""
    made = pictures(config["model"], count, seed=5)
    generator = torch.Generator().manual_seed(6)
    t = torch.linspace(0, 0.999, count) if config["diffusion"]["objective"] == "ddpm" else torch.linspace(0, 1, count)
    batch = {"x0": made["x0"], "noise": torch.randn(made["x0"].shape, generator=generator),
             "t": (t * 1000).round() / 1000}
    if "label" in made:
        batch["class"] = made["label"]
        batch["class"][-1] = config["model"]["num_classes"]
    if "text" in made:
        batch["text"] = made["text"]
        batch["text"][-1] = 0
    return batch


def wide_parameters(initial, seed=4):
    """Parameters of the same names and shapes, none of them 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in initial.items():
        noise = torch.randn(tensor.shape, generator=generator)
        made[name] = 1 + 0.3 * noise if name.endswith(("_norm.weight", "gate.scale")) else 0.2 * noise
    return made


def distance(a, b):
    """Norm of the difference relative to the norm of b."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12)).item()
