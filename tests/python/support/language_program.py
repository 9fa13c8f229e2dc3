"""Runs dtopp_parity and the plain PyTorch model on small language models: configurations, checkpoints,
inputs, and distances between results."""


import numpy as np
import reference_model
import start
import tiny_run
import torch
import yaml
from safetensors.torch import load, load_file, save_file

# A wide initialization and three large steps make routing far from uniform, and no gain or theta stays 1. The
# coefficients are large enough for every loss to show in the gradients.
COMMON = {
    "model.init_std": 0.15, "training.steps": 3, "optimizer.lr": 0.05, "optimizer.warmup_steps": 1,
    "validation.every": 0, "checkpoint.every": 0, "logging.tensorboard": "false",
    "loss.lm_z": 0.01, "loss.load_balance": 0.1, "loss.dynamic": 0.1, "loss.router_z": 0.01,
}
OLMOE = {"model.norm": "rms", "routing.method": "top_k", "routing.experts": 3, "routing.normalization": "none",
         "routing.renormalize": "false"}
CASES = {
    "olmoe": OLMOE | {"model.tie_embeddings": "false"},
    "olmoe_tied": OLMOE,
    "olmoe_renormalized": OLMOE | {"routing.renormalize": "true"},
    "olmoe_gqa": OLMOE | {"model.num_kv_heads": 2, "model.norm_eps": 1e-3, "model.rope_base": 100},
    "dense": {"model.num_experts": 1},
    "dense_untied": {"model.num_experts": 1, "model.tie_embeddings": "false"},
    "top_k": {"routing.method": "top_k", "routing.experts": 3, "routing.normalization": "fixed"},
    "top_k_of_all": {"routing.method": "top_k", "routing.experts": 8, "routing.normalization": "none"},
    "top_1_without_renormalization": {"routing.method": "top_k", "routing.experts": 1, "routing.renormalize": "false",
                                      "routing.normalization": "none"},
    "top_k_dynamic": {"routing.method": "top_k", "routing.experts": 2},
    "top_p": {"routing.method": "top_p", "routing.threshold": 0.6, "routing.normalization": "none"},
    "top_p_capped": {"routing.method": "top_p", "routing.threshold": 0.7, "routing.normalization": "fixed",
                     "routing.max_experts": 2},
    "dtop_p": {},
    "dtop_p_rms": {"model.norm": "rms"},
    "dtop_p_of_all": {"routing.experts": 8, "routing.threshold": 0.99999},
    "dtop_p_layer": {"routing.scope": "layer", "routing.experts": "[2, 5]"},
    "dtop_p_without_renormalization": {"routing.renormalize": "false", "model.tie_embeddings": "false"},
    "dtop_p_l2_gates": {"routing.renormalize": "l2", "model.zero_experts": 4},
    "top_k_l2_gates": {"routing.method": "top_k", "routing.experts": 3, "routing.renormalize": "l2"},
    "dtop_p_z_of_normalized_logits": {"loss.router_z_on": "normalized", "loss.router_z": 0.1},
    "top_k_z_of_normalized_logits": {"routing.method": "top_k", "routing.experts": 3, "routing.normalization": "fixed",
                                     "loss.router_z_on": "normalized", "loss.router_z": 0.1},
    "top_p_z_where_nothing_is_normalized": {"routing.method": "top_p", "routing.threshold": 0.6,
                                            "routing.normalization": "none", "loss.router_z_on": "normalized"},
    "dtop_p_documents": {"model.attend_across_documents": "false", "data.end_of_text": 7},
    "dtop_p_gqa": {"model.num_kv_heads": 1, "model.head_size": 12, "model.norm_eps": 1e-3, "model.rope_base": 100},
    "dtop_p_norm_of_each_head": {"model.qk_norm": "head", "model.num_kv_heads": 2, "model.head_size": 12},
    "dtop_p_without_qk_norm": {"model.qk_norm": "none", "model.qkv_bias": "true", "model.num_kv_heads": 2},
    "dtop_p_window": {"model.attention_window": 5, "model.num_kv_heads": 2},
    "dtop_p_window_documents": {"model.attention_window": 9, "model.attend_across_documents": "false", "data.end_of_text": 7},
    "dtop_p_zero_experts": {"model.zero_experts": 4},
    "dtop_p_zero_experts_that_copy": {"model.zero_experts": 4, "model.zero_kind": "copy"},
    "dtop_p_shared_experts": {"model.shared_experts": 2},
    "dtop_p_shared_gate": {"model.shared_experts": 2, "model.shared_gate": "true", "model.norm": "rms", "model.qk_norm": "head"},
    "dtop_p_slow_router": {"optimizer.router_lr_factor": 0.3, "optimizer.router_warmup_steps": 5},
    "top_k_expert_normalization": {"routing.method": "top_k", "routing.experts": 3, "routing.expert_normalization": "running"},
    "dtop_p_expert_normalization": {"routing.expert_normalization": "running"},
    "dtop_p_expert_normalization_zero_experts": {"routing.expert_normalization": "running", "model.zero_experts": 4},
    "dtop_p_lm_loss_alone": {"loss.lm_z": 0, "loss.load_balance": 0, "loss.dynamic": 0, "loss.router_z": 0},
}

# The routers that reference_model.py does not have. Large rates let every state show in the selection.
OWN_GATES = {"routing.normalization": "none", "routing.renormalize": "false", "loss.load_balance": 0}
ROUTERS = {
    "top_k_bias": {"routing.method": "top_k_bias", "routing.experts": 3, "routing.normalization": "none", "routing.bias_rate": 0.1,
                   "routing.gate_scale": 1.5},
    "top_k_bias_without_renormalization": {"routing.method": "top_k_bias", "routing.experts": 2, "routing.normalization": "none",
                                           "routing.renormalize": "false", "routing.bias_rate": 0.1},
    "top_k_bias_zero_experts": {"routing.method": "top_k_bias", "routing.max_experts": 5, "routing.bias_rate": 0.2,
                                "model.zero_experts": 4},
    "top_k_bias_zero_experts_that_copy": {"routing.method": "top_k_bias", "routing.max_experts": 4, "routing.bias_rate": 0.2,
                                          "model.zero_experts": 3, "model.zero_kind": "copy"},
    "dtop_p_bias": {"routing.method": "dtop_p_bias", "routing.bias_rate": 0.5},
    "dtop_p_bias_capped": {"routing.method": "dtop_p_bias", "routing.bias_rate": 0.5, "routing.threshold": 0.7,
                           "routing.max_experts": 3},
    "relu": {"routing.method": "relu", **OWN_GATES},
    "expert_threshold": {"routing.method": "expert_threshold", "routing.cut_decay": 0.5, **OWN_GATES},
    "hash": {"routing.method": "hash", "routing.experts": 2, "routing.normalization": "none", "loss.load_balance": 0,
             "loss.dynamic": 0, "loss.router_z": 0},
    "dtop_p_hash_layers": {"routing.hash_layers": 1},
    "top_k_hash_layers": {"routing.method": "top_k", "routing.experts": 3, "routing.hash_layers": 1,
                          "routing.expert_normalization": "running"},
}


class Program:
    """Runs checkpoints on one batch of tokens."""

    checkpoint = None

    def __init__(self, parity, directory):
        self.parity, self.directory = parity, directory
        self.tokens = torch.from_numpy(np.random.default_rng(7).integers(0, 256, (3, 33)))
        self.write_tokens()

    def write_tokens(self):
        save_file({"tokens": self.tokens}, self.directory / "tokens.safetensors")

    def logits(self, checkpoint=None):
        """The program's fp32 logits of all tokens but the last."""
        return self.dtopp("fp32", checkpoint)["logits"]

    def dtopp(self, precision, checkpoint=None):
        checkpoint = checkpoint or self.checkpoint
        config = yaml.safe_load((checkpoint / "config.yaml").read_text())
        config["training"]["precision"] = precision
        config["data"]["train"], config["output"] = ["unused"], "unused"
        path = self.directory / f"{precision}.yaml"
        path.write_text(yaml.safe_dump(config))
        output = self.directory / f"{precision}.safetensors"
        start.run([self.parity, path, checkpoint, self.directory / "tokens.safetensors", output], check=True,
                  timeout=60)
        return load(output.read_bytes())  # not load_file: its tensors would change with the file


class Both(Program):
    """Runs one checkpoint and one batch through both implementations."""

    def __init__(self, case, parity, directory):
        run, overrides = directory / "run", (CASES | ROUTERS)[case]
        done = tiny_run.dtopp("train", tiny_run.make(directory),
                              *(f"{key}={value}" for key, value in (COMMON | overrides).items()))
        assert done.returncode == 0, done.stderr
        super().__init__(parity, directory)
        self.case, self.checkpoint = case, run / "checkpoints/step-00000003"
        if "data.end_of_text" in overrides:
            # Documents that end at a window's end, a document of one token, and a window of a single
            # document.
            self.tokens[0, [9, 10, 31]] = overrides["data.end_of_text"]
            self.tokens[1, [0, 20]] = overrides["data.end_of_text"]
            self.write_tokens()

    def reference(self, dtype=torch.float32, compute=None):
        config, parameters, _, state = reference_model.load_checkpoint(self.checkpoint, dtype)
        thresholds = reference_model.Controller(config, state).thresholds()
        logits, layers = reference_model.forward(config, parameters, self.tokens[:, :-1], thresholds, compute,
                                                 reference_model.ExpertNormalization(state))
        values = reference_model.losses(config, logits, layers, self.tokens[:, 1:])
        values["total"].backward()
        result = {"logits": logits.detach()}
        result |= {"loss/" + name: value.detach() for name, value in values.items()}
        result |= {"grad/" + name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        result |= {f"active_histogram/{n}": layer["histogram"] for n, layer in enumerate(layers)}
        return result, min((layer["margin"] for layer in layers), default=1.0)


def distance(a, b):
    """Norm of the difference relative to the norm of b."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-12)).item()
