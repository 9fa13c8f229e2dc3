"""Runs the experts of Hugging Face's models on dtopp's operators:

    import dtopp.huggingface
    model.set_experts_implementation("dtopp")

or pass `experts_implementation="dtopp"` to from_pretrained. The experts must be SwiGLU without biases, with
the gate rows of gate_up_proj first (OLMoE, Qwen-MoE, Mixtral, DeepSeek-V3 and others). Any number of experts
per token.
"""

from typing import cast

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _default_apply_gate

from dtopp import functional

__all__ = ["experts_forward"]

_UNFIT = {
    "has_gate": (True, "have no gate"),
    "has_bias": (False, "have biases"),
    "is_transposed": (False, "hold their weights transposed"),
    "is_concatenated": (True, "hold gate and up interleaved"),
    "has_post_expert_norm": (False, "normalize each expert's output"),
}


def _require_fit(experts: nn.Module) -> None:
    name = type(experts).__name__
    for flag, (wanted, cause) in _UNFIT.items():
        if getattr(experts, flag, wanted) is not wanted:  # older releases lack some flags
            raise ValueError(f"experts_implementation dtopp: {name} {cause}; dtopp's are SwiGLU without biases")
    act = experts.act_fn
    is_silu = act is nn.functional.silu or type(act).__name__ in ("SiLU", "SiLUActivation")
    if not is_silu or getattr(type(experts), "_apply_gate") is not _default_apply_gate:
        raise ValueError(f"experts_implementation dtopp: {name} use a gate function other than silu; dtopp's use silu")


def experts_forward(experts: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts implementation with the interface of transformers.

    Args:
        experts: module with gate_up_proj [E, 2F, D] and down_proj [E, D, F].
        hidden_states: [T, D].
        top_k_index: int64 [T, K]; num_experts stands for no expert.
        top_k_weights: [T, K].

    Returns:
        [T, D], with hidden_states' dtype.

    Raises:
        ValueError: experts of another kind.
    """
    _require_fit(experts)
    x_TD, gate_up, down = functional.in_autocast(
        hidden_states, cast(Tensor, experts.gate_up_proj), cast(Tensor, experts.down_proj))
    weights_TK = top_k_weights.to(torch.float64 if x_TD.dtype == torch.float64 else torch.float32)
    gates_TE = weights_TK.new_zeros(len(x_TD), gate_up.shape[0] + 1).scatter_add(1, top_k_index, weights_TK)
    y_TD = functional.moe_ffn(x_TD, gates_TE[:, :-1], gate_up, down)
    return y_TD.to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register("dtopp", experts_forward)
