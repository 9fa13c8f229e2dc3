"""Compares ten optimizer steps of `dtopp train` on one layer with ten steps of dtopp.MoE in a PyTorch model
with PyTorch's AdamW, both from the same checkpoint."""

import numpy as np
import pytest
import reference_model
import reference_sampler
import tiny_run
import torch
import torch.nn.functional as F
from package_forms import both_forms

import dtopp
from dtopp import functional

FIRST, LAST = 2, 11
# The losses are large enough to show. The eps keeps Adam from turning rounding errors of gradients near 0
# into whole steps.
COMMON = {
    "model.num_layers": 1, "training.steps": 12, "checkpoint.every": 1, "checkpoint.keep": 0, "validation.every": 0,
    "logging.tensorboard": "false", "model.init_std": 0.1, "optimizer.lr": 0.005, "optimizer.weight_decay": 0.1,
    "optimizer.eps": 1e-3, "loss.lm_z": 0.001, "loss.load_balance": 0.01, "loss.dynamic": 0.01,
    "loss.router_z": 0.001,
}
OWN_GATES = {"routing.normalization": "none", "routing.renormalize": "false", "loss.load_balance": 0}
CASES = {
    "pi": {},
    "solve": {"routing.controller": "solve"},
    "dtop_p_bias": {"routing.method": "dtop_p_bias", "routing.bias_rate": 0.05},
    "top_k_bias": {"routing.method": "top_k_bias", "routing.normalization": "none", "routing.experts": 2, "routing.bias_rate": 0.02},
    "dtop_p_bias_quantile": {"routing.method": "dtop_p_bias", "routing.bias_rule": "quantile", "routing.controller": "solve"},
    "top_k_bias_quantile": {"routing.method": "top_k_bias", "routing.normalization": "none", "routing.experts": 2,
                            "routing.bias_rule": "quantile"},
    "relu": OWN_GATES | {"routing.method": "relu", "routing.lambda_0": 0.01},
    "expert_threshold": OWN_GATES | {"routing.method": "expert_threshold", "routing.cut_decay": 0.7},
    "top_k": {"routing.method": "top_k", "routing.experts": 2, "routing.normalization": "fixed"},
    "zero_experts": {"model.zero_experts": 5, "model.zero_kind": "copy", "routing.controller": "solve"},
    "zero_experts_bias": {"model.zero_experts": 4, "routing.method": "top_k_bias", "routing.max_experts": 5, "routing.bias_rate": 0.02},
    "l2_gates": {"routing.renormalize": "l2"},
    "expert_normalization": {"routing.expert_normalization": "running", "model.zero_experts": 3},
    "hash": {"routing.method": "hash", "routing.normalization": "none", "routing.experts": 2, "loss.load_balance": 0,
             "loss.dynamic": 0, "loss.router_z": 0},
}
LAYER = "model.layers.0."


@pytest.fixture(scope="module", params=CASES)
def run(request, dtopp_binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    overrides = COMMON | CASES[request.param]
    done = tiny_run.dtopp("train", tiny_run.make(directory), *(f"{key}={value}" for key, value in overrides.items()))
    assert done.returncode == 0, done.stderr
    return directory


def load(run, step):
    return reference_model.load_checkpoint(run / f"run/checkpoints/step-{step:08d}")


def router_of(config):
    """A router that a name does not make, or the name."""
    routing, experts = config["routing"], config["model"]["num_experts"]
    if config["model"]["zero_experts"] > 0 and routing["method"] == "top_k_bias":
        return dtopp.TopKBiasZero(experts, routing["max_experts"], routing["experts"], rate=routing["bias_rate"])
    gains = {name: float(routing[name]) for name in ("kp", "ki")}
    bias = {"rate": routing["bias_rate"], "rule": routing["bias_rule"]}
    make = {"top_k_bias": lambda: dtopp.TopKBias(experts, int(routing["experts"]), **bias),
            "dtop_p_bias": lambda: dtopp.DTopPBias(experts, routing["experts"], routing["threshold"], controller=routing["controller"],
                                                   **bias, **gains),
            "relu": lambda: dtopp.Relu(routing["experts"], initial_weight=routing["lambda_0"], factor=routing["lambda_factor"]),
            "expert_threshold": lambda: dtopp.ExpertThreshold(experts, routing["experts"], decay=routing["cut_decay"]),
            "hash": lambda: dtopp.Hash(config["model"]["vocab_size"], experts, int(routing["experts"]))}
    return make[routing["method"]]() if routing["method"] in make else routing["method"]


# The names of state in a checkpoint: of the whole model, and of one layer.
NORMALIZATION = {"input_mean_D": "router_input_mean_LD", "logit_square_C": "logit_square_LC"}
STATE = {"threshold": "threshold_C", "error_sum": "error_sum_C", "bias_E": "bias_LE", "weight": "lambda", "cut_E": "cut_LE"}


def state_of(routers, saved):
    """The saved state under the names of RouterUpdater.state_dict()."""
    state = {f"0.{name}": saved[STATE[name]][0] if name in STATE else saved[name] for name in routers[0].state_names}
    if "normalization_steps" in saved:
        state |= {f"layer_00.{name}": saved[of_run][0] for name, of_run in NORMALIZATION.items()}
        state["layer_00.steps"] = saved["normalization_steps"]
    return state


class Model(torch.nn.Module):
    """The language model around one dtopp.MoE, with the parameters of a checkpoint."""

    def __init__(self, config, parameters):
        super().__init__()
        model, routing, loss = config["model"], config["routing"], config["loss"]
        self.moe = dtopp.MoE(
            model["hidden_size"], model["ffn_hidden_size"], model["num_experts"], router=router_of(config),
            target_experts=routing["experts"], threshold=routing["threshold"],
            **{name: routing[name] for name in ("normalization", "expert_normalization", "renormalize")},
            **{name: model[name] for name in ("zero_experts", "zero_kind")},
            **{name: loss[name] for name in ("load_balance", "dynamic", "router_z")})
        below = {name.removeprefix(LAYER + "mlp."): value.detach() for name, value in parameters.items()}
        self.moe.load_state_dict({name: below[name] for name in self.moe.state_dict()})
        self.others = {name: value for name, value in parameters.items() if not name.startswith(LAYER + "mlp.")}
        self.config, self.z_weight = config, loss["lm_z"]

    def named(self):
        return self.others | {LAYER + "mlp." + name: value for name, value in self.moe.named_parameters()}

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.others[name], eps=1e-5)

    def forward(self, tokens_BL1):
        embedding = self.others["model.embed_tokens.weight"]
        x = embedding[tokens_BL1[:, :-1]]
        x = x + reference_model.attention(self.config["model"], self.norm(x, LAYER + "input_layernorm.weight"),
                                          self.others.__getitem__, LAYER + "self_attn.",
                                          reference_model.hidden_keys(self.config, tokens_BL1[:, :-1]))
        x = x + self.moe(self.norm(x, LAYER + "post_attention_layernorm.weight"), tokens_BL1[:, :-1].contiguous())
        x = self.norm(x, "model.norm.weight").flatten(0, 1)
        return functional.linear_cross_entropy(x, embedding, tokens_BL1[:, 1:].flatten(), z_weight=self.z_weight)


def adamw(model, config, moments):
    o = config["optimizer"]
    decays = [[], []]
    for name, value in model.named().items():
        decays[value.dim() >= 2].append(value)
    optimizer = torch.optim.AdamW([{"params": decays[0], "weight_decay": 0.0}, {"params": decays[1]}],
                                  betas=o["betas"], eps=o["eps"], weight_decay=o["weight_decay"])
    for name, value in model.named().items():
        optimizer.state[value] = {"step": torch.tensor(float(FIRST - 1))} | {
            key: moments[f"{name}.{key}"].view_as(value) for key in ("exp_avg", "exp_avg_sq")}
    return optimizer


def test_ten_steps_are_those_of_the_trainer(run, both_forms):
    config, parameters, moments, state = load(run, FIRST - 1)
    model, routing = Model(config, parameters), config["routing"]
    gains = {name: float(value) for name, value in routing.items() if name in ("kp", "ki")}
    if routing["method"] == "dtop_p":
        controller = dtopp.ThresholdController(model, controller=routing["controller"], **gains)
    else:
        controller = dtopp.RouterUpdater(model)
    controller.load_state_dict(state_of(controller.routers, state))
    optimizer = adamw(model, config, moments)
    controller.attach(optimizer)
    tokens = np.fromfile(run / "train.npy", "<u2")
    training, lines = config["training"], {line["step"]: line for line in tiny_run.metrics(run / "run")}
    for step in range(FIRST, LAST + 1):
        windows = torch.from_numpy(reference_sampler.samples(
            tokens, config["model"]["sequence_length"], training["seed"], (step - 1) * training["global_batch_size"],
            training["global_batch_size"]))
        micro_batches = windows.split(training["micro_batch_size"])
        dtopp.set_loss_scale(1 / len(micro_batches))
        for batch in micro_batches:
            (model(batch).loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(list(model.named().values()), config["optimizer"]["grad_clip"])
        for group in optimizer.param_groups:
            group["lr"] = reference_model.learning_rate(config, step)
        optimizer.step()
        optimizer.zero_grad()
        numbers = controller.metrics()
        assert numbers == pytest.approx({name: lines[step][name] for name in numbers}, rel=1e-5)
    compare(model, controller, load(run, LAST), load(run, FIRST - 1)[1])


def compare(model, controller, checkpoint, first):
    config, parameters, _, state = checkpoint
    assert sorted(parameters) == sorted(model.named())
    for name, value in model.named().items():
        want = parameters[name].detach()
        assert (value.detach().view_as(want) - want).norm() < 1e-6 * want.norm(), name
        assert (first[name].detach() - want).norm() > 1e-4 * want.norm(), f"{name} was not trained"
    for name, want in state_of(controller.routers, state).items():
        assert controller.state_dict()[name] == pytest.approx(want, rel=1e-5, abs=1e-7), name
