"""Times a training step of a diffusion transformer against an equal one in PyTorch (diffusion_torch_steps.py)
on the same machine, for CIFAR-10's preset, dense DiT-S/2, and DiT-S/2 with 16 experts, 4 of them active.

Both sides read and mirror images, draw noise, t and dropped classes, compute the flow-matching loss, clip
gradients, run a step of fused AdamW and update the moving average of the weights. dtopp also selects a
varying number of experts, computes the router's losses and controls the mean number.

First both compute one batch in fp32 with the same random weights (dtopp with Top-k, as Hugging Face does):
loss and gradients must agree. Then each trains in a process of its own, which is stopped while the other one
runs, as in training_step.py. Prints one JSON line per case and precision: images/s (median over steps), CPU
seconds per step, both ratios, and the peak resident memory.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
import yaml
from diffusion_torch_steps import DiffusionTransformer, Images
from safetensors.torch import load_file, save_file
from training_side import BINARY, Side, routing_of, start_run

HERE = pathlib.Path(__file__).resolve().parent
DIT_S = {"hidden_size": 384, "num_layers": 12, "num_heads": 6, "image_size": 32, "channels": 4, "patch_size": 2,
         "num_classes": 1000, "batch": 32, "micro_batch": 16}
CASES = {
    "cifar10": {"hidden_size": 256, "num_layers": 6, "num_heads": 4, "ffn_hidden_size": 128, "num_experts": 16, "active": 4,
                "image_size": 32, "channels": 3, "patch_size": 4, "num_classes": 10, "batch": 128, "micro_batch": 32},
    "dit-dense-s": DIT_S | {"ffn_hidden_size": 1024, "num_experts": 1},
    "dit-moe-s-16e4a": DIT_S | {"ffn_hidden_size": 256, "num_experts": 16, "active": 4},
    "quick": {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "ffn_hidden_size": 32, "num_experts": 8, "active": 2,
              "image_size": 16, "channels": 3, "patch_size": 4, "num_classes": 10, "batch": 8, "micro_batch": 4},
}


def configuration(case, method, precision, threads):
    model = {k: v for k, v in case.items() if k not in ("active", "batch", "micro_batch")}
    dense = case["num_experts"] == 1
    return {
        "name": "diffusion_step", "model": model | {"type": "diffusion_transformer"},
        "routing": routing_of("dense" if dense else method, case["num_experts"], case.get("active")),
        "loss": {"load_balance": 0.0 if dense else 1e-6, "dynamic": 0.0 if dense else 1e-5, "router_z": 0.0},
        "optimizer": {"lr": 1e-4, "min_lr": 1e-4, "warmup_steps": 0},
        "training": {"steps": 100000, "global_batch_size": case["batch"], "micro_batch_size": case["micro_batch"],
                     "precision": precision, "device": "cpu", "threads": threads},
    }


# ---- the same computation -----------------------------------------------------------------------------------

def random_weights(model):
    """Weights that keep the scale of the residual stream, none of them 0 or 1."""
    return {name: 1 + 0.3 * torch.randn(p.shape) if name.endswith("norm.weight")
            else torch.randn(p.shape) * (p.shape[-1] ** -0.5 if p.dim() > 1 and "embed" not in name else 0.3)
            for name, p in model.state_dict().items()}


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def apart(case, folder):
    """Relative differences of one batch's loss and gradients; for gradients, the largest over parameters."""
    torch.manual_seed(3)
    model = DiffusionTransformer(case)
    weights, batch = random_weights(model), Images(case, 16).batch(4)
    model.load_state_dict(weights)
    config = configuration(case, "top_k", "fp32", 2)
    config["routing"]["normalization"] = "none"
    config["loss"] = {"load_balance": 0.0, "dynamic": 0.0, "router_z": 0.0}
    (folder / "check.yaml").write_text(yaml.safe_dump(config))
    thresholds = torch.zeros(case["num_layers"], dtype=torch.float64)
    save_file(weights | batch | {"threshold": thresholds}, folder / "input.safetensors")
    subprocess.run([BINARY.with_name("dtopp_parity"), "diffusion", folder / "check.yaml", folder / "input.safetensors",
                    folder / "output.safetensors"], check=True)
    ours = load_file(folder / "output.safetensors")
    loss = model.loss(batch)
    loss.backward()
    gradients = max(distance(ours["grad/" + name], p.grad) for name, p in model.named_parameters())
    return distance(ours["loss/total"], loss.detach()), gradients


def check_equality(case, folder):
    """Compares the gradients of two layers with every expert active: otherwise rounding decides the last
    expert of some tokens."""
    loss, _ = apart(case, folder)
    _, gradients = apart(case | {"active": case["num_experts"], "num_layers": 2}, folder)
    if not (loss < 1e-4 and gradients < 1e-3):
        sys.exit(f"diffusion_step: the two sides compute different results; relative differences: loss {loss}, gradients {gradients}")
    return {"loss": float(f"{loss:.1g}"), "gradients": float(f"{gradients:.1g}")}


# ---- both sides ---------------------------------------------------------------------------------------------

def start_dtopp(case, method, precision, threads, folder, options=()):
    folder.mkdir(parents=True)
    torch.manual_seed(2)
    images = Images(case)
    latents = case["channels"] != 3
    save_file({"latents" if latents else "images": images.images, "labels": images.labels}, folder / "images.safetensors")
    scale = ["--scale", "1", "--shift", "0"] if latents else []
    subprocess.run([BINARY, "prepare", "images", folder / "images.safetensors", "--output", folder / "train", *scale],
                   check=True, capture_output=True)
    config = configuration(case, method, precision, threads)
    config["data"] = {"train": [str(folder / "train")]}
    return start_run(config, folder, options)


def start_torch(case, args, precision, folder):
    log = folder / "torch.jsonl"
    preload = ["env", f"LD_PRELOAD={args.torch_allocator}"] if args.torch_allocator else []
    command = [*preload, sys.executable, HERE / "diffusion_torch_steps.py", json.dumps(case), "--precision", precision,
               "--threads", str(args.threads)]
    return Side(command, log, log)


class Measured:
    """The measurements of one side over its turns."""

    def __init__(self, side):
        self.side, self.seconds = side, []
        self.begin = len(side.read()), side.cpu_seconds()

    def turn(self, count, batch_tokens):
        self.seconds += [step["seconds"] if "seconds" in step else batch_tokens / step["throughput/tokens_per_second"]
                         for step in self.side.steps(count)]

    def cpu_seconds_a_step(self):
        """CPU seconds per step, over all steps including those interrupted by a stop."""
        return (self.side.cpu_seconds() - self.begin[1]) / (len(self.side.read()) - self.begin[0])


def measure(name, case, precision, args, folder):
    result = {"case": "diffusion_step " + name, "precision": precision, "threads": args.threads,
              "apart": check_equality(case, folder)}
    batch_tokens = case["batch"] * (case["image_size"] // case["patch_size"]) ** 2
    with contextlib.ExitStack() as running:
        sides = {"dtopp": start_dtopp(case, args.method, precision, args.threads, folder / "dtopp"),
                 "torch": start_torch(case, args, precision, folder)}
        sides = {name: Measured(running.enter_context(side)) for name, side in sides.items()}
        for _ in range(args.rounds):
            for side in sides.values():
                side.turn(args.steps, batch_tokens)
        for name, side in sides.items():
            result |= {f"{name}_images_per_second": round(case["batch"] / statistics.median(side.seconds), 2),
                       f"{name}_cpu_seconds_a_step": round(side.cpu_seconds_a_step(), 3),
                       f"{name}_peak_bytes": side.side.peak_bytes()}
    result["ratio"] = round(result["dtopp_images_per_second"] / result["torch_images_per_second"], 2)
    result["cpu_ratio"] = round(result["torch_cpu_seconds_a_step"] / result["dtopp_cpu_seconds_a_step"], 2)
    result["memory_ratio"] = round(result["dtopp_peak_bytes"] / result["torch_peak_bytes"], 2)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[name for name in CASES if name != "quick"], choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps per side and round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--method", default="dtop_p", choices=["dtop_p", "top_k"], help="dtopp's routing method in cases with experts")
    parser.add_argument("--torch-allocator", help="a library to preload on PyTorch's side, such as libjemalloc.so.2")
    args = parser.parse_args()
    for precision in args.precisions:
        for name in args.cases:
            with tempfile.TemporaryDirectory() as folder:
                print(json.dumps(measure(name, CASES[name], precision, args, pathlib.Path(folder))), flush=True)


if __name__ == "__main__":
    main()
