"""DTop-p Mixture-of-Experts language models in transformers: OLMoE's decoder with dtopp's norms, router and experts.

The router selects a token's experts as in training. It normalizes the router logits and takes the probabilities P, largest first,
while the sum of the larger ones is below the layer's threshold p; or it takes the first k.
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
        self.config, self.layer = config, layer
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))
        if config.router_normalization == "dynamic":
            self.scale = nn.Parameter(torch.ones(()))

    def probabilities(self, logits_TE):
        """Probabilities of all experts, largest first, with their indices; equal ones are in the order of their indices."""
        if self.config.router_normalization != "none":
            mean = logits_TE.mean(-1, keepdim=True)
            logits_TE = (logits_TE - mean) / (logits_TE.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        if self.config.router_normalization == "dynamic":
            logits_TE = logits_TE * self.scale.float()
        return torch.sort(logits_TE.softmax(-1), dim=-1, descending=True, stable=True)

    def forward(self, x_TD):
        """Returns the logits [T, E], and weights and experts [T, K] of each token. K is the largest number of experts per token.
        A token with fewer experts is padded with the index `num_experts`, which is no expert, and weight 0."""
        config = self.config
        logits_TE = F.linear(x_TD.float(), self.weight.float())
        P_TE, expert_TE = self.probabilities(logits_TE)
        place_E = torch.arange(config.num_experts, device=x_TD.device)
        if config.router_method == "top_k":
            chosen_TE = (place_E < config.router_top_k).expand_as(P_TE)
        else:
            chosen_TE = before(P_TE) < config.router_thresholds[self.layer]
            if config.router_max_experts > 0:
                chosen_TE = chosen_TE & (place_E < config.router_max_experts)
        most = max(int(chosen_TE.sum(-1).max()), 1) if len(x_TD) > 0 else 1
        chosen_TK = chosen_TE[:, :most]
        weight_TK = P_TE[:, :most] * chosen_TK
        if config.router_renormalize:
            weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
        return logits_TE, weight_TK, expert_TE[:, :most].masked_fill(~chosen_TK, config.num_experts)


def before(P_TE):
    """For each expert, the sum of the probabilities of the experts before it."""
    P_TE = P_TE.double()
    return P_TE.cumsum(-1) - P_TE


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
            if expert == self.num_experts:
                continue
            token, place = torch.where(expert_TK == expert)
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
        # Makes every implementation of experts treat the index num_experts as no expert. The decorator has
        # set it to False.
        self.experts._is_expert_parallel = True

    def forward(self, x):
        x_TD = x.reshape(-1, x.shape[-1])
        _, weight_TK, expert_TK = self.gate(x_TD)
        y = self.experts(x_TD, expert_TK, weight_TK.to(x.dtype)).view(x.shape)
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
        elif isinstance(module, DtoppRouter):
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
        if config.num_experts == 1 or config.router_method == "top_k":
            raise ValueError("this model has no thresholds: it is dense, or uses top-k")
        most = config.router_max_experts or config.num_experts
        per_layer = not isinstance(target_experts, (int, float))
        targets = [float(t) for t in target_experts] if per_layer else [float(target_experts)]
        if per_layer and len(targets) != config.num_hidden_layers or not all(1 <= t <= most for t in targets):
            raise ValueError(f"target_experts: expected a number from 1 to {most}, or one for each of "
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
        """Per layer and token: the sum of the probabilities before each expert (largest first, at most `router_max_experts`)."""
        cumulative_probs = []
        most = self.config.router_max_experts or self.config.num_experts

        def hook(router, arguments, output):
            P_TE, _ = router.probabilities(output[0])
            cumulative_probs.append(before(P_TE)[:, :most])

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
    # A token's first expert has sum 0.
    values = torch.cat([layer[:, 1:].flatten() for layer in cumulative_probs]).sort().values
    wanted = round((target - 1) * sum(len(layer) for layer in cumulative_probs))
    if wanted >= len(values):
        return 1 - 1e-6  # the largest p of a checkpoint
    return (values[wanted] / 2 if wanted == 0 else (values[wanted - 1] + values[wanted]) / 2).item()
