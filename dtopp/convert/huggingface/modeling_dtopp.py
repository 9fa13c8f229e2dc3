"""DTop-p Mixture-of-Experts language models in transformers: OLMoE's decoder with dtopp's norms, router and experts.

The router selects a token's experts as in training, and writes them into a fixed number of slots. No shape depends on the data,
and the host does not wait for the device.

The model is one file, because `trust_remote_code` copies files one by one and users read it beside the weights.

Shapes: T tokens, E experts, C columns of a router (E experts, then the zero experts), K slots per token, V vocabulary.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.integrations import use_experts_implementation
from transformers.models.olmoe import modeling_olmoe as olmoe
from transformers.utils.output_capturing import OutputRecorder

from .configuration_dtopp import DtoppConfig


class DtoppLayerNorm(nn.LayerNorm):
    """LayerNorm without bias."""

    def __init__(self, size, eps):
        super().__init__(size, eps=eps, bias=False)


def make_norm(config, size=None):
    norm = olmoe.OlmoeRMSNorm if config.norm == "rms" else DtoppLayerNorm
    return norm(size or config.hidden_size, eps=config.rms_norm_eps)


class PerHead:
    """Makes a norm treat each head by itself."""

    def forward(self, x):
        return super().forward(x.unflatten(-1, (-1, len(self.weight)))).flatten(-2)


class DtoppHeadLayerNorm(PerHead, DtoppLayerNorm):
    pass


class DtoppHeadRMSNorm(PerHead, olmoe.OlmoeRMSNorm):
    pass


def make_qk_norm(config, heads):
    if config.qk_norm == "none":
        return nn.Identity()
    if config.qk_norm == "whole":
        return make_norm(config, heads * config.head_dim)
    norm = DtoppHeadRMSNorm if config.norm == "rms" else DtoppHeadLayerNorm
    return norm(config.head_dim, eps=config.rms_norm_eps)


class DtoppRouter(nn.Module):
    """Selects the experts of each token, and computes their weights in fp32."""

    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer, method = config, layer, config.router_method
        self.has_sigmoid_scores = method == "top_k_bias" and config.zero_experts == 0
        self.by_id = method == "hash" or layer < config.router_hash_layers
        if self.by_id:
            self.register_buffer("expert_VK", torch.zeros(config.vocab_size, config.router_top_k, dtype=torch.int32))
            return
        self.weight = nn.Parameter(torch.zeros(config.num_experts + config.zero_experts, config.hidden_size))
        if config.router_normalization == "dynamic":
            self.scale = nn.Parameter(torch.ones(()))
        if config.router_expert_normalization == "running":
            self.register_buffer("input_mean_D", torch.zeros(config.hidden_size, dtype=torch.float64))
            self.register_buffer("logit_square_C", torch.ones(len(self.weight), dtype=torch.float64))
        if method in ("top_k_bias", "dtop_p_bias"):
            self.register_buffer("bias_E", torch.zeros(config.num_experts, dtype=torch.float64))
        if method == "expert_threshold":
            self.register_buffer("cut_E", torch.zeros(config.num_experts, dtype=torch.float64))

    def forward(self, x_TD, ids_T=None):
        """Returns the logits [T, E]; the weights and the experts of each token [T, K]; and the sum of the weights of its zero
        experts [T, 1]. K is `config.num_experts_per_tok`. A slot without an expert has expert 0 and weight 0."""
        config = self.config
        if self.by_id:
            expert_TK = self.expert_VK[ids_T].long()
            none_TE = torch.zeros(len(x_TD), config.num_experts, device=x_TD.device)  # there are no logits
            weight_TK = torch.full_like(expert_TK, 1 / config.router_top_k, dtype=torch.float32)
            empty = (0, config.num_experts_per_tok - config.router_top_k)
            return none_TE, F.pad(weight_TK, empty), F.pad(expert_TK, empty), none_TE[:, :1]
        logits_TC = self.logits(x_TD)
        gate_TC = self.gates(logits_TC)
        gate_TE, zero_gate_TZ = gate_TC.split([config.num_experts, config.zero_experts], -1)
        # vLLM replaces routers that call softmax and topk. This one must stay, so it calls sort.
        weight_TE, expert_TE = torch.sort(gate_TE, dim=-1, descending=True, stable=True)
        weight_TK, expert_TK = weight_TE[:, :config.num_experts_per_tok], expert_TE[:, :config.num_experts_per_tok]
        return (logits_TC[:, :config.num_experts], weight_TK, expert_TK.masked_fill(weight_TK == 0, 0),
                zero_gate_TZ.sum(-1, keepdim=True))

    def logits(self, x_TD):
        """z [T, C]: w_e x, or w_e (x - m) / s_e with running means m and s_e² of training."""
        weight_CD = self.weight.float()
        logits_TC = F.linear(x_TD.float(), weight_CD)
        if self.config.router_expert_normalization == "running":
            logits_TC = (logits_TC - weight_CD @ self.input_mean_D.float()) * (self.logit_square_C + 1e-6).rsqrt().float()
        return logits_TC

    def gates(self, logits_TC):
        """Weights [T, C]; 0 for experts that are not selected."""
        if self.config.router_method == "relu":
            return logits_TC.relu()
        if self.config.router_method == "expert_threshold":
            return logits_TC.sigmoid() * self.reached(logits_TC)
        P_TC = self.probabilities(logits_TC)
        chosen_TC = places(self.scores(P_TC, logits_TC)) < self.counts(P_TC)
        gate_TC = P_TC * chosen_TC
        if self.config.router_renormalize:
            order = 2 if self.config.router_renormalize == "l2" else 1
            gate_TC = gate_TC / gate_TC.norm(order, dim=-1, keepdim=True)
        return gate_TC * self.config.router_gate_scale

    def probabilities(self, logits_TC):
        """P [T, C]."""
        if self.has_sigmoid_scores:
            return F.logsigmoid(logits_TC).softmax(-1)  # the sigmoids over their sum
        if self.config.router_normalization != "none":
            mean = logits_TC.mean(-1, keepdim=True)
            logits_TC = (logits_TC - mean) / (logits_TC.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        if self.config.router_normalization == "dynamic":
            logits_TC = logits_TC * self.scale.float()
        return logits_TC.softmax(-1)

    def counts(self, P_TC):
        """How many experts a token selects [T, 1] (or one number for all tokens)."""
        if self.config.router_method in ("top_k", "top_k_bias"):
            return self.config.router_top_k
        count_T1 = (before(P_TC) < self.config.router_thresholds[self.layer]).sum(-1, keepdim=True)
        return count_T1.clamp(1, self.config.router_max_experts or P_TC.shape[-1])

    def scores(self, P_TC, logits_TC):
        """A token selects the experts with the largest scores [T, C]."""
        if self.config.router_method not in ("top_k_bias", "dtop_p_bias"):
            return P_TC
        if self.config.zero_experts > 0:
            return P_TC + F.pad(self.bias_E.float(), (0, self.config.zero_experts))  # zero experts have no bias
        bias_E = (self.bias_E - self.bias_E.mean()).float()
        return logits_TC.sigmoid() + bias_E if self.has_sigmoid_scores else P_TC * bias_E.exp()

    def reached(self, logits_TE):
        """Whether each logit reaches its expert's threshold [T, E]. Before the first step there are no thresholds."""
        steps = self.config.router_cut_steps
        if steps == 0:
            return places(logits_TE) < int(self.config.router_target_experts + 0.5)
        return logits_TE >= (self.cut_E / (1 - self.config.router_cut_decay**steps)).float()


def places(score_TC):
    """The place of each expert when the scores fall. Equal scores are in the order of their indices."""
    return torch.sort(score_TC, dim=-1, descending=True, stable=True).indices.argsort(-1)


def before(P_TC):
    """For each expert, the sum of the probabilities of the experts before it."""
    P_TC, order_TC = torch.sort(P_TC.double(), dim=-1, descending=True, stable=True)
    return (P_TC.cumsum(-1) - P_TC).gather(-1, order_TC.argsort(-1))


@use_experts_implementation
class DtoppExperts(nn.Module):
    """SwiGLU experts. The gate rows of gate_up_proj precede the up rows."""

    def __init__(self, config):
        super().__init__()
        self.num_experts = config.num_experts
        self.gate_up_proj = nn.Parameter(torch.empty(config.num_experts, 2 * config.intermediate_size, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(config.num_experts, config.hidden_size, config.intermediate_size))
        self.act_fn = F.silu

    def forward(self, x_TD, expert_TK, weight_TK):
        y_TD = torch.zeros_like(x_TD)
        for expert in expert_TK.unique().tolist():
            token, place = torch.where((expert_TK == expert) & (weight_TK != 0))
            gate, up = F.linear(x_TD[token], self.gate_up_proj[expert]).chunk(2, -1)
            y = F.linear(self.act_fn(gate) * up, self.down_proj[expert])
            y_TD.index_add_(0, token, (y * weight_TK[token, place, None]).to(y_TD.dtype))
        return y_TD


class DtoppMoE(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.gate, self.experts = DtoppRouter(config, layer), DtoppExperts(config)
        self.shared_experts = DtoppMLP(config, config.shared_experts) if config.shared_experts > 0 else None
        self.shared_gate = nn.Linear(config.hidden_size, 1, bias=False) if config.shared_gate else None
        self.copies_input = config.zero_experts > 0 and config.zero_kind == "copy"
        self.ids_T = None  # the tokens' ids, which DtoppModel sets for layers that select by them

    def forward(self, x):
        x_TD = x.reshape(-1, x.shape[-1])
        _, weight_TK, expert_TK, zero_weight_T1 = self.gate(x_TD, self.ids_T)
        y_TD = self.experts(x_TD, expert_TK, weight_TK.to(x.dtype))
        if self.copies_input:
            y_TD = y_TD + (x_TD * zero_weight_T1).to(x.dtype)
        y = y_TD.view(x.shape)
        if self.shared_experts is None:
            return y
        shared = self.shared_experts(x)
        return y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)


class DtoppMLP(nn.Module):
    """The feed-forward layer of a dense model, or the shared experts."""

    def __init__(self, config, times=1):
        super().__init__()
        size = times * config.intermediate_size
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * size, bias=False)
        self.down_proj = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class DtoppPreTrainedModel(olmoe.OlmoePreTrainedModel):
    config_class = DtoppConfig
    config: DtoppConfig
    _no_split_modules = ["OlmoeDecoderLayer"]
    _keep_in_fp32_modules_strict = ["mlp.gate.weight", "mlp.gate.scale"]
    _can_record_outputs = olmoe.OlmoePreTrainedModel._can_record_outputs | {"router_logits": OutputRecorder(DtoppRouter, index=0)}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, DtoppExperts):
            init.normal_(module.gate_up_proj, mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=std)
        elif isinstance(module, DtoppRouter) and not module.by_id:
            init.normal_(module.weight, mean=0.0, std=std)


class DtoppModel(DtoppPreTrainedModel, olmoe.OlmoeModel):
    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.input_layernorm, layer.post_attention_layernorm = make_norm(config), make_norm(config)
            attention, heads = layer.self_attn, config.num_key_value_heads
            attention.q_norm, attention.k_norm = make_qk_norm(config, config.num_attention_heads), make_qk_norm(config, heads)
            if config.qkv_bias:
                attention.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * config.head_dim)
                attention.k_proj, attention.v_proj = (nn.Linear(config.hidden_size, heads * config.head_dim) for _ in range(2))
            layer.mlp = DtoppMLP(config) if config.num_experts == 1 else DtoppMoE(config, index)
        self.norm = make_norm(config)
        self.post_init()

    def forward(self, input_ids=None, *args, **kwargs):  # the other arguments have other names in each release
        if self.config.num_experts > 1 and (self.config.router_method == "hash" or self.config.router_hash_layers > 0):
            if input_ids is None:
                raise ValueError("this model selects experts by token id: pass input_ids, not inputs_embeds")
            for layer in self.layers:
                layer.mlp.ids_T = input_ids.flatten()
        return super().forward(input_ids, *args, **kwargs)


class DtoppForCausalLM(DtoppPreTrainedModel, olmoe.OlmoeForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model = DtoppModel(config)
        self.post_init()

    @torch.no_grad()
    def set_target_experts(self, target_experts, input_ids, tolerance=1e-3, passes=40):
        """Sets `config.router_thresholds` such that tokens of `input_ids` [B, L] use `target_experts` experts.

        target_experts: one number, the mean over layers, with one p for all of them; or a list with a number per layer.
        tolerance: largest allowed relative error of the mean.

        Returns the mean number of experts of each layer at that p. Raises ValueError if the model has no thresholds.
        """
        config = self.config
        if config.num_experts == 1 or config.router_method not in ("top_p", "dtop_p", "dtop_p_bias"):
            raise ValueError("this model has no thresholds p: it is dense, or its router has another method")
        by_id = config.router_hash_layers / config.num_hidden_layers  # these layers keep their experts
        most = min(config.router_max_experts or config.num_experts, config.num_experts)
        least, most = (by_id * config.router_top_k + (1 - by_id) * limit for limit in (0 if config.zero_experts > 0 else 1, most))
        per_layer = not isinstance(target_experts, (int, float))
        targets = [float(t) for t in target_experts] if per_layer else [float(target_experts)]
        if per_layer and len(targets) != config.num_hidden_layers or not all(least <= t <= most for t in targets):
            raise ValueError(f"target_experts: expected a number from {least:g} to {most:g}, or one for each of "
                             f"{config.num_hidden_layers} layers, got {target_experts}")
        self.eval()
        config.router_target_experts = targets if per_layer else targets[0]
        if per_layer:
            # The input of a layer's router depends on p of the layers below, so those are solved first.
            for layer, target in enumerate(targets):
                config.router_thresholds = [*config.router_thresholds]
                config.router_thresholds[layer] = _solved([self._cumulative_probs(input_ids)[layer]], target)
        else:
            self._solve_shared(input_ids, targets[0], tolerance, passes)
        return [_mean_experts(cumulative_probs, p) for cumulative_probs, p in zip(self._cumulative_probs(input_ids), config.router_thresholds)]

    def _solve_shared(self, input_ids, target, tolerance, passes):
        """Finds one p for all layers. The count rises with p, but p also changes the inputs of the routers. The p that fits one
        pass is therefore the guess for the next, if it lies between bounds known to be too small and too large."""
        low, high, p = 0.0, 1.0, self.config.router_thresholds[0]
        for _ in range(passes):
            self.config.router_thresholds = [p] * self.config.num_hidden_layers
            cumulative_probs = self._cumulative_probs(input_ids)
            mean = sum(_mean_experts(layer, p) for layer in cumulative_probs) / len(cumulative_probs)
            if abs(mean - target) <= tolerance * target:
                return
            low, high = (p, high) if mean < target else (low, p)
            guess = _solved(cumulative_probs, target)
            p = guess if low < guess < high else (low + high) / 2

    def _cumulative_probs(self, input_ids):
        """Per layer: the sums [T, E] of the probabilities before each expert; infinite beyond `router_max_experts`."""
        cumulative_probs = []
        most = self.config.router_max_experts or self.config.num_experts + self.config.zero_experts

        def hook(router, arguments, output):
            if router.by_id:  # its experts count for any p
                sums_TE = torch.full((len(arguments[0]), self.config.num_experts), torch.inf)
                sums_TE[:, :self.config.router_top_k] = 0
                cumulative_probs.append(sums_TE)
                return
            P_TC = router.probabilities(router.logits(arguments[0]))
            cumulative_probs.append(before(P_TC).masked_fill(places(P_TC) >= most, torch.inf)[:, :self.config.num_experts])

        hooks = [layer.mlp.gate.register_forward_hook(hook) for layer in self.model.layers]
        try:
            self.model(input_ids=input_ids, use_cache=False)
        finally:
            for handle in hooks:
                handle.remove()
        return cumulative_probs


def _mean_experts(cumulative_probs_TE, p):
    return (cumulative_probs_TE < p).sum().item() / len(cumulative_probs_TE)


def _solved(cumulative_probs, target):
    """p between the last probability sum that must count and the first that must not."""
    values = torch.cat([layer.flatten() for layer in cumulative_probs])
    values = values[values.isfinite()].sort().values
    wanted = max(round(target * sum(len(layer) for layer in cumulative_probs)), 1)
    if wanted >= len(values):
        return 1 - 1e-6  # the largest p of a checkpoint
    return max((values[wanted - 1] + values[wanted]).item() / 2, 1e-6)
