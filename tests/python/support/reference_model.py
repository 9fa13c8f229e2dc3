"""The language model, its losses, controller and optimizer in plain PyTorch, as a reference for dtopp.

Written from the definitions alone (paper and docs) and for clarity: every expert runs on every token, the
whole tokens x vocabulary matrix is stored, and autograd runs the backward pass. Shapes: T tokens, D hidden, E
experts, F expert FFN, V vocabulary, H heads, L positions.
"""

import functools
import json
import math
import pathlib

import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file

LOSSES = ("lm", "lm_z", "load_balance", "dynamic", "router_z")


def load_checkpoint(directory, dtype=torch.float32):
    """Returns (configuration, parameters, moments, state) of a checkpoint directory."""
    directory = pathlib.Path(directory)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    state = load_state(directory)
    parameters = {name: tensor.to(dtype).requires_grad_() for name, tensor in
                  load_file(directory / "model.safetensors").items()}
    moments = {name: tensor.to(dtype) for name, tensor in load_file(directory / "optimizer.safetensors").items()}
    return config, parameters, moments, state


def load_state(directory):
    """Returns the numbers of state.json and router.safetensors, a list or a number per name."""
    directory = pathlib.Path(directory)
    state = json.loads((directory / "state.json").read_text())
    if (directory / "router.safetensors").exists():
        state |= {name: tensor.tolist() for name, tensor in load_file(directory / "router.safetensors").items()}
    return state


# ---- the forward pass ---------------------------------------------------------------------------------------

def rope(x_BHLK, base=10000.0):
    """Rotates the pair (i, i + K / 2) of position l by l / base^(2 i / K)."""
    length, size = x_BHLK.shape[-2:]
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    cos, sin = (torch.cat([f, f], -1).to(x_BHLK.dtype) for f in (angle.cos(), angle.sin()))
    first, second = x_BHLK.chunk(2, -1)
    return x_BHLK * cos + torch.cat([-second, first], -1) * sin


def norm_of(model, x, gain):
    norm = F.rms_norm if model.get("norm") == "rms" else F.layer_norm
    return norm(x, x.shape[-1:], weight=gain, eps=model.get("norm_eps", 1e-5))


def hidden_keys(config, tokens_BL):
    """The attention mask, bool [B, 1, L, L]: later tokens, tokens before the attention window and, unless tokens attend
    across documents, those of other documents."""
    every = torch.ones(tokens_BL.shape[1], tokens_BL.shape[1], dtype=torch.bool)
    hidden = every.triu(1)
    if config["model"].get("attention_window", 0) > 0:
        hidden = hidden | every.tril(-config["model"]["attention_window"])
    hidden = hidden.expand(len(tokens_BL), 1, -1, -1)
    if config["model"]["attend_across_documents"]:
        return hidden
    ends = (tokens_BL == config["data"]["end_of_text"]).long()
    document = ends.cumsum(1) - ends  # a document's end token belongs to it
    return hidden | (document[:, None, :, None] != document[:, None, None, :])


def attention(model, x_BLD, weight, prefix, hidden):
    def projected(x, name):
        y = x @ weight(prefix + name + ".weight").T
        return y + weight(prefix + name + ".bias") if model.get("qkv_bias") else y

    def norm(x, name):
        kind = model.get("qk_norm", "whole")
        if kind == "none":
            return x
        parts = x.unflatten(-1, (-1, size)) if kind == "head" else x
        return norm_of(model, parts, weight(prefix + name)).reshape(x.shape)

    shared = model["num_heads"] // (model.get("num_kv_heads") or model["num_heads"])
    size = model.get("head_size") or model["hidden_size"] // model["num_heads"]
    base = model.get("rope_base", 10000.0)

    def heads(x):
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    q = heads(norm(projected(x_BLD, "q_proj"), "q_norm.weight"))
    k = heads(norm(projected(x_BLD, "k_proj"), "k_norm.weight"))
    v = heads(projected(x_BLD, "v_proj"))
    k, v = rope(k, base).repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = rope(q, base) @ k.transpose(-1, -2) / math.sqrt(size)
    mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(-2) @ weight(prefix + "o_proj.weight").T


def select(P_TE, routing, threshold):
    """Returns the selected set as 0 / 1, constant for the gradient, and the smallest distance of a decision
    from its limit."""
    P = P_TE.detach()
    ordered, index = torch.sort(P, dim=-1, descending=True, stable=True)
    if routing["method"] == "top_k":
        chosen = torch.arange(P.shape[-1]).expand_as(P) < routing["experts"]
        margin = math.inf
    else:
        before = ordered.double().cumsum(-1) - ordered.double()
        chosen = before < threshold
        margin = (before - threshold).abs().min().item()
    if routing["max_experts"] > 0:
        chosen = chosen & (torch.arange(P.shape[-1]) < routing["max_experts"])
    return torch.zeros_like(P).scatter(-1, index, chosen.to(P.dtype)), margin


def route(z_TE, scale, routing, threshold, num_experts):
    """Returns the gates and the values that the losses and the controller need from one layer. Columns of the logits after
    num_experts are zero experts."""
    s = z_TE
    if routing["normalization"] != "none":
        mean = z_TE.mean(-1, keepdim=True)
        s = (z_TE - mean) / torch.sqrt(((z_TE - mean) ** 2).mean(-1, keepdim=True) + 1e-6)
    if routing["normalization"] == "dynamic":
        s = scale * s
    P = s.softmax(-1)
    chosen, margin = select(P, routing, threshold)
    gates = P * chosen
    if routing["renormalize"]:
        gates = gates / (gates.norm(dim=-1, keepdim=True) if routing["renormalize"] == "l2" else gates.sum(-1, keepdim=True))
    zero_gate = gates[:, num_experts:].sum(-1, keepdim=True)
    gates, chosen = gates[:, :num_experts], chosen[:, :num_experts]
    return gates, {
        "zero_gate": zero_gate,
        "gates": gates,
        "counts": chosen.sum(0).long(),
        "histogram": torch.bincount(chosen.sum(-1).long(), minlength=num_experts + 1),
        "Q": s[:, :num_experts].softmax(-1).mean(0),
        "entropy": -(P * s.log_softmax(-1)).sum(-1).mean(),
        "router_z": {"raw": (z_TE.logsumexp(-1) ** 2).mean(), "normalized": (s.logsumexp(-1) ** 2).mean()},
        "margin": margin,
    }


def swiglu(x, gate_up, down):
    gate, up = (x @ gate_up.transpose(-1, -2)).chunk(2, -1)
    return (F.silu(gate) * up) @ down.transpose(-1, -2)


class ExpertNormalization:
    """Logits w_e (x - m) / s_e, with running means m of x and s_e² of the squares of w_e (x - m), from the state of a
    checkpoint. A state without means leaves logits w_e x."""

    def __init__(self, state):
        self.steps = state.get("normalization_steps")
        self.means, self.squares = (torch.tensor(state.get(name, []), dtype=torch.float64)
                                    for name in ("router_input_mean_LD", "logit_square_LC"))

    def logits(self, layer, x_TD, weight_CD):
        if self.steps is None:
            return x_TD @ weight_CD.T
        z_TC = (x_TD - self.means[layer].to(x_TD.dtype)) @ weight_CD.T
        return z_TC / (self.squares[layer].to(x_TD.dtype) + 1e-6).sqrt()

    def update(self, micro_batches):
        """Ends a step with these layers' routing. Earlier steps weigh a hundredth of their number."""
        if self.steps is None:
            return
        weight = 1 / (self.steps / 100 + 1)
        for layer, (x_TD, z_TC) in enumerate(zip(joined(micro_batches, "x"), joined(micro_batches, "z"))):
            square_C = z_TC.double().square().mean(0) * (self.squares[layer] + 1e-6)
            self.means[layer] += weight * (x_TD.double().mean(0) - self.means[layer])
            self.squares[layer] += weight * (square_C - self.squares[layer])
        self.steps += 1


def joined(micro_batches, name):
    """A tensor of the routing, over all micro-batches, per layer."""
    return [torch.cat([layer[name] for layer in of_layer]) for of_layer in zip(*micro_batches)]


def common_logit_share(z_TC):
    """The share of the variance of the logits, each token's centered over its experts, that all tokens have in common."""
    c_TC = z_TC.double() - z_TC.double().mean(-1, keepdim=True)
    return (c_TC.mean(0).square().sum() / c_TC.square().sum(-1).mean()).item()


def moe(x_TD, parameters, weight, prefix, routing, threshold, copies_input=False, logits_of=None):
    router_x_TD = x_TD.to(parameters[prefix + "gate.weight"].dtype)
    z_TE = (logits_of or F.linear)(router_x_TD, parameters[prefix + "gate.weight"])
    gates_TE, routed = route(z_TE, parameters.get(prefix + "gate.scale"), routing, threshold,
                             len(parameters[prefix + "experts.down_proj"]))
    routed |= {"x": router_x_TD.detach(), "z": z_TE.detach()}
    y_ETD = swiglu(x_TD, weight(prefix + "experts.gate_up_proj"), weight(prefix + "experts.down_proj"))
    y_TD = (gates_TE.T.unsqueeze(-1) * y_ETD).sum(0).to(x_TD.dtype)
    if copies_input:
        y_TD = y_TD + (x_TD * routed["zero_gate"]).to(x_TD.dtype)
    if prefix + "shared_experts.down_proj.weight" in parameters:
        shared_TD = swiglu(x_TD, weight(prefix + "shared_experts.gate_up_proj.weight"),
                           weight(prefix + "shared_experts.down_proj.weight"))
        if prefix + "shared_gate.weight" in parameters:
            shared_TD = shared_TD * (x_TD @ weight(prefix + "shared_gate.weight").T).sigmoid()
        y_TD = y_TD + shared_TD
    return y_TD, routed


def forward(config, parameters, tokens_BL, thresholds, compute=None, normalization=None):
    """Returns the logits [B, L, V] and each layer's routing. `thresholds` holds p per layer. `compute` is the
    dtype of everything but the router, if it differs from the parameters' dtype. `normalization` is that of experts."""
    model = config["model"]

    def weight(name):
        return parameters[name] if compute is None else parameters[name].to(compute)

    def norm(x, name):
        return norm_of(model, x, weight(name))

    x = weight("model.embed_tokens.weight")[tokens_BL]
    layers, hidden = [], hidden_keys(config, tokens_BL)
    for n in range(model["num_layers"]):
        prefix = f"model.layers.{n}."
        x = x + attention(model, norm(x, prefix + "input_layernorm.weight"), weight, prefix + "self_attn.", hidden)
        h = norm(x, prefix + "post_attention_layernorm.weight")
        if model["num_experts"] == 1:
            x = x + swiglu(h, weight(prefix + "mlp.gate_up_proj.weight"), weight(prefix + "mlp.down_proj.weight"))
        else:
            y, routed = moe(h.flatten(0, 1), parameters, weight, prefix + "mlp.", config["routing"], thresholds[n],
                            model.get("zero_kind") == "copy", normalization and functools.partial(normalization.logits, n))
            x = x + y.unflatten(0, h.shape[:2])
            layers.append(routed)
    head = weight("model.embed_tokens.weight" if model["tie_embeddings"] else "lm_head.weight")
    x = norm(x, "model.norm.weight")
    return x.to(parameters["model.norm.weight"].dtype) @ head.to(parameters["model.norm.weight"].dtype).T, layers


# ---- losses -------------------------------------------------------------------------------------------------

def losses(config, logits_BLV, layers, targets_BL, shares=None):
    """Returns the unweighted losses by name, and "total". `shares` holds f [E] of the last step per layer, if
    load balance counts the whole batch."""
    lse = logits_BLV.logsumexp(-1)
    picked = logits_BLV.gather(-1, targets_BL.unsqueeze(-1)).squeeze(-1)
    values = {"lm": (lse - picked).mean(), "lm_z": (lse**2).mean()}
    values |= router_losses(config, layers, targets_BL.numel(), shares)
    weights = {"lm": 1.0} | {name: config["loss"][name] for name in LOSSES[1:]}
    values["total"] = sum(weights[name] * value for name, value in values.items())
    return values


def router_losses(config, layers, tokens, shares=None):
    if not layers:
        return {}
    load_balance = []
    for n, layer in enumerate(layers):
        f = layer["counts"] / tokens if shares is None else shares[n]
        load_balance.append(len(f) * (f * layer["Q"]).sum())
    logits = config["loss"]["router_z_on"]
    return {"load_balance": sum(load_balance) / len(layers),
            "dynamic": sum(layer["entropy"] for layer in layers) / len(layers),
            "router_z": sum(layer["router_z"][logits] for layer in layers) / len(layers)}


# ---- training -----------------------------------------------------------------------------------------------

def learning_rate(config, step):
    """The learning rate of step 1, 2, …: linear from 0, then a cosine that reaches min_lr at the last step."""
    o, steps = config["optimizer"], config["training"]["steps"]
    if step <= o["warmup_steps"]:
        return o["lr"] * step / o["warmup_steps"]
    share = (step - o["warmup_steps"]) / (steps - o["warmup_steps"])
    return o["min_lr"] + 0.5 * (o["lr"] - o["min_lr"]) * (1 + math.cos(math.pi * share))


def router_factor(optimizer, step):
    """The factor of the routers' learning rate in step 1, 2, …."""
    warmup = optimizer.get("router_warmup_steps", 0)
    return optimizer.get("router_lr_factor", 1.0) * (min(step / warmup, 1.0) if warmup else 1.0)


def orthogonalized(matrices):
    """Muon's Newton-Schulz iteration, five steps, on [..., M, N]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = matrices.double() / matrices.double().norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    wide = X.shape[-2] <= X.shape[-1]
    X = X if wide else X.mT
    for _ in range(5):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return (X if wide else X.mT).to(matrices.dtype)


class Trainer:
    """Resumes from a checkpoint with given batches."""

    def __init__(self, checkpoint, dtype=torch.float32):
        self.config, self.parameters, self.moments, state = load_checkpoint(checkpoint, dtype)
        self.step_count = state["step"]
        self.controller, self.normalization = Controller(self.config, state), ExpertNormalization(state)
        self.decays = {name for name, p in self.parameters.items() if p.dim() >= 2}  # gains are vectors, theta a scalar
        self.last_shares = None  # f per layer, if the loss uses the last step's
        if "tokens_per_expert_LE" in state:
            counts = torch.tensor(state["tokens_per_expert_LE"], dtype=dtype)
            model, training = self.config["model"], self.config["training"]
            self.last_shares = counts / (training["global_batch_size"] * model["sequence_length"])

    def step(self, tokens_BL1):
        """Runs one optimizer step on a global batch [B, L + 1] and returns its entries of metrics.jsonl."""
        self.step_count += 1
        micro_batches = tokens_BL1.split(self.config["training"]["micro_batch_size"])
        report, counts, margin, tokens, used, routed = {}, None, math.inf, 0, [], []
        thresholds = self.controller.thresholds()
        for batch in micro_batches:
            logits, layers = forward(self.config, self.parameters, batch[:, :-1], thresholds, normalization=self.normalization)
            values = losses(self.config, logits, layers, batch[:, 1:], self.last_shares)
            (values["total"] / len(micro_batches)).backward()
            for name, value in values.items():
                report[name] = report.get(name, 0.0) + value.item() / len(micro_batches)
            counts = [c + layer["counts"] for c, layer in zip(counts or [0] * len(layers), layers)]
            tokens += batch[:, 1:].numel()
            if layers:
                routed.append(layers)
                used.append(torch.stack([(layer["gates"] > 0).sum(-1) for layer in layers]))
            margin = min([margin] + [layer["margin"] for layer in layers])
        report["lr"] = learning_rate(self.config, self.step_count)
        report["grad_norm"] = self.clip_and_update(report["lr"])
        report["margin"] = margin
        if counts:
            active = [c.sum().item() / tokens for c in counts]
            report["active_experts"] = sum(active) / len(active)
            used = torch.cat(used, 1)  # [layers, tokens]
            report["token_mean_std"] = used.double().mean(0).std(unbiased=False).item()
            report["used"] = used.flatten().tolist()
            report["thresholds"] = list(thresholds)
            self.controller.update(active)
            report["common_logit_share"] = sum(map(common_logit_share, joined(routed, "z"))) / len(layers)
            self.normalization.update(routed)
            if self.config["loss"]["batch_statistics"] == "global":
                self.last_shares = [c / tokens for c in counts]
        return report

    def clip_and_update(self, lr):
        o = self.config["optimizer"]
        beta1, beta2 = o["betas"]
        gradients = {name: p.grad for name, p in self.parameters.items()}
        norm = math.sqrt(sum(g.double().pow(2).sum().item() for g in gradients.values()))
        shrink = o["grad_clip"] / norm if 0 < o["grad_clip"] < norm else 1.0
        with torch.no_grad():
            for name, p in self.parameters.items():
                rate = lr * router_factor(o, self.step_count) if ".gate." in name else lr
                g = gradients[name] * shrink
                if name + ".momentum_buffer" in self.moments:
                    self.muon(name, p, g, rate)
                    continue
                m, v = self.moments[name + ".exp_avg"], self.moments[name + ".exp_avg_sq"]
                m.mul_(beta1).add_(g, alpha=1 - beta1)
                v.mul_(beta2).add_(g * g, alpha=1 - beta2)
                if name in self.decays:
                    p.mul_(1 - rate * o["weight_decay"])
                m_hat = m / (1 - beta1**self.step_count)
                v_hat = v / (1 - beta2**self.step_count)
                p.sub_(rate * m_hat / (v_hat.sqrt() + o["eps"]))
                p.grad = None
        return norm

    def muon(self, name, p, g, rate):
        o, m = self.config["optimizer"], self.moments[name + ".momentum_buffer"]
        m.add_(g - m, alpha=1 - o["momentum"])
        direction = g + o["momentum"] * (m - g)
        parts = direction.chunk(2, -2) if "gate_up_proj" in name else [direction]
        step = torch.cat([orthogonalized(part) * 0.2 * max(part.shape[-2:]) ** 0.5 for part in parts], -2)
        p.mul_(1 - rate * o["weight_decay"]).sub_(rate * step)
        p.grad = None


class Controller:
    """p = p_0 + K_p e + K_i sum(e), e = (T - a) / E; one p for all layers or one per layer."""

    LOW, HIGH = 1e-6, 1 - 1e-6

    def __init__(self, config, state=None):
        state = state or {}  # only DTop-p has p in its state
        self.routing = config["routing"]
        self.num_layers = config["model"]["num_layers"]
        self.num_experts = config["model"]["num_experts"]
        self.per_layer = self.routing["scope"] == "layer"
        count = self.num_layers if self.per_layer else 1

        def listed(value):
            return list(value) if isinstance(value, list) else [value] * count

        self.targets = listed(self.routing["experts"])
        self.targets = self.targets * count if len(self.targets) == 1 else self.targets
        self.p = listed(state.get("threshold_C", self.routing["threshold"]))
        self.error_sum = listed(state.get("error_sum_C", 0.0))

    def thresholds(self):
        return self.p if self.per_layer else self.p * self.num_layers

    def update(self, active_per_layer):
        """Updates the thresholds from every layer's active experts per token."""
        if self.routing["method"] != "dtop_p":
            return
        measured = active_per_layer if self.per_layer else [sum(active_per_layer) / len(active_per_layer)]
        for i, a in enumerate(measured):
            e = (self.targets[i] - a) / self.num_experts
            proportional = self.routing["threshold"] + self.routing["kp"] * e
            p = proportional + self.routing["ki"] * (self.error_sum[i] + e)
            outwards = (p > self.HIGH and e > 0) or (p < self.LOW and e < 0)
            if not (self.routing["anti_windup"] and outwards):
                self.error_sum[i] += e
            self.p[i] = min(max(p, self.LOW), self.HIGH)
