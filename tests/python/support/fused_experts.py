"""A stand-in for the fused experts of vLLM and SGLang, in plain PyTorch."""

import torch
import torch.nn.functional as F


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
