"""A stand-in for vLLM with the functions that dtopp's plugin uses (vllm/model_executor/models/transformers: Base and MoEMixin), and with its
fused experts, which are SGLang's too, in plain PyTorch."""

import sys
import types

import torch
import torch.nn.functional as F
import transformers


def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids):
    """Has the first arguments of vLLM's and SGLang's functions of this name, and their conditions: int32 ids of real experts,
    equally many per token, and f32 weights that are used as they are.

    Shapes: hidden_states [T, D], w1 [E, 2F, D] (gate rows first), w2 [E, D, F], topk_weights and topk_ids [T, K] -> [T, D]
    """
    assert topk_ids.dtype == torch.int32 and topk_weights.dtype == torch.float32
    assert topk_ids.shape == topk_weights.shape == (len(hidden_states), topk_ids.shape[1])
    assert topk_ids.min() >= 0 and topk_ids.max() < len(w1)
    out = torch.zeros_like(hidden_states)
    for weight_T, id_T in zip(topk_weights.T, topk_ids.T.long()):
        gate, up = torch.einsum("td,tgd->tg", hidden_states, w1[id_T]).chunk(2, -1)
        out += weight_T[:, None] * torch.einsum("tf,tdf->td", F.silu(gate) * up, w2[id_T])
    return out


class ModelRegistry:
    models: dict[str, str] = {}

    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()

    @classmethod
    def register_model(cls, model_arch, model_cls):
        assert model_arch not in cls.models and model_cls.count(":") == 1
        cls.models[model_arch] = model_cls


class FusedMoE(torch.nn.Module):
    """Has the experts' weights, and computes with the ids and weights of a router in transformers."""

    def __init__(self, experts):
        super().__init__()
        self.gate_up_proj, self.down_proj = experts.gate_up_proj, experts.down_proj

    def forward(self, hidden_states, topk_ids, topk_weights, **kwargs):
        return fused_experts(hidden_states, self.gate_up_proj, self.down_proj, topk_weights.to(torch.float32), topk_ids.to(torch.int32))


class TransformersMoEForCausalLM(torch.nn.Module):
    def __init__(self, *, config, dtype):
        super().__init__()
        self.dtype = config.dtype = dtype
        # Parameters have no memory yet; buffers have.
        register = torch.nn.Module.register_parameter

        def on_meta(module, name, parameter):
            register(module, name, None if parameter is None else torch.nn.Parameter(parameter.data.to("meta")))

        torch.nn.Module.register_parameter = on_meta
        try:
            self.model = transformers.AutoModel.from_config(config, dtype=dtype, trust_remote_code=True)
        finally:
            torch.nn.Module.register_parameter = register
        self.top_k = config.num_experts_per_tok
        for layer in self.model.layers:
            layer.mlp.experts = FusedMoE(layer.mlp.experts)
        self.init_parameters(self.model)

    def init_parameters(self, module, dtype=None):
        for child in module.modules():
            for name, parameter in child.named_parameters(recurse=False):
                if parameter.device == torch.device("meta"):
                    setattr(child, name, torch.nn.Parameter(torch.empty_like(parameter.data, dtype=dtype or self.dtype, device="cpu")))

    def load_weights(self, weights):
        parameters, loaded = dict(self.named_parameters()), set()
        for name, value in weights:
            parameters[name].data.copy_(value)
            loaded.add(name)
        return loaded

    def forward(self, input_ids, positions):
        outputs = self.model(input_ids=input_ids[None], inputs_embeds=None, use_cache=False, position_ids=positions[None],
                             attention_instances={}, return_dict=False)
        return outputs[0][0]


def install(patch):
    """Makes these the modules that the plugin imports."""
    ModelRegistry.models = {}
    for name, contents in [("vllm", {"ModelRegistry": ModelRegistry}), ("vllm.model_executor", {}), ("vllm.model_executor.models", {}),
                           ("vllm.model_executor.models.transformers", {"TransformersMoEForCausalLM": TransformersMoEForCausalLM})]:
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, "dtopp.vllm_model", raising=False)
