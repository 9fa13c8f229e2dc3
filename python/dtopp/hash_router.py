"""Routing by token id: nothing is learned, so a learned router has to beat it. T tokens, V ids, E experts."""

import torch
from torch import Tensor

from dtopp.functional import Routing
from dtopp.routers import Router, RouterInput

_WORD = 0xFFFFFFFF


class Hash(Router):
    """top_k experts that a token's id determines, with equal gates. The experts are those of the program's router hash,
    whose layers differ: `layer` counts them from 0. The layer needs no logits, renormalize True and no losses, and
    takes `ids` in its call."""

    has_logits = False

    def __init__(self, num_ids: int, num_experts: int, top_k: int, *, layer: int = 0) -> None:
        super().__init__()
        self.num_experts, self.top_k = num_experts, top_k
        self.expert_VK = _draw(num_ids, num_experts, top_k, f"hash router {layer}")

    def place(self, device: torch.device) -> None:
        if device.type != "meta":
            self.expert_VK = self.expert_VK.to(device)

    def select(self, input: RouterInput) -> Routing:
        if input.ids_T is None:
            raise ValueError("Hash: expected the ids of the tokens, layer(x, ids), got none")
        expert_TK = self.expert_VK[input.ids_T]
        none_TE = input.logits_TE.new_zeros(len(expert_TK), self.num_experts)
        gates_TE = none_TE.scatter(1, expert_TK, 1 / self.top_k)
        active_T = torch.full_like(input.ids_T, self.top_k)
        histogram = torch.zeros(self.num_experts + 1, dtype=torch.int64, device=active_T.device)
        return Routing(gates_TE, (gates_TE != 0).sum(0), histogram.scatter_add(0, active_T, torch.ones_like(active_T)),
                       none_TE.sum(0), none_TE.sum(), none_TE.sum())


def _draw(num_ids: int, num_experts: int, top_k: int, purpose: str) -> Tensor:
    """int64 [V, K]: the first K experts of a random order of them, per id."""
    order_VE = torch.arange(num_experts, device="cpu").repeat(num_ids, 1)
    ids = torch.arange(num_ids, device="cpu")
    for n in range(top_k):
        high, low = _random_words(ids * num_experts + n, _fnv1a(purpose))
        left = num_experts - n  # of the 64-bit number, the remainder
        drawn = n + ((high % left) * (2**32 % left) + low % left) % left
        chosen = order_VE[ids, drawn]
        order_VE[ids, drawn] = order_VE[:, n]
        order_VE[:, n] = chosen
    return order_VE[:, :top_k].contiguous()


def _fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def _random_words(index: Tensor, stream: int) -> tuple[Tensor, Tensor]:
    """The first two 32-bit words of Philox 4x32-10 with key 0 at (index, stream), in int64. A product of two words wraps
    at 64 bits, so its halves are right."""
    counter = [index & _WORD, index >> 32, torch.full_like(index, stream & _WORD), torch.full_like(index, stream >> 32)]
    key = [0, 0]
    for _ in range(10):
        product = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(product[1] >> 32 & _WORD) ^ counter[1] ^ key[0], product[1] & _WORD,
                   (product[0] >> 32 & _WORD) ^ counter[3] ^ key[1], product[0] & _WORD]
        key = [key[0] + 0x9E3779B9 & _WORD, key[1] + 0xBB67AE85 & _WORD]
    return counter[0], counter[1]
