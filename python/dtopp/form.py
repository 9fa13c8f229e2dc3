"""Chooses the form that computes: the compiled operators, or plain PyTorch if they are missing."""

from typing import Protocol

from torch import Tensor

from dtopp import compiled, library, plain


class Form(Protocol):
    """The interface of both forms. Shapes, equations and errors are those of dtopp.functional."""

    def route(self, logits_TE: Tensor, scale: Tensor, threshold: Tensor, normalization: str, top_k: int,
              max_experts: int,
              renormalize: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...

    def route_selected(self, logits_TE: Tensor, scale: Tensor, chosen_TE: Tensor, normalization: str,
                       renormalize: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]: ...

    def experts_forward(self, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                        down_proj: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (y_TD, pre_activations_AG): W_gate x and W_up x of each of the A pairs, for the backward
        pass."""

    def experts_backward(self, grad_y_TD: Tensor, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                         down_proj: Tensor, pre_activations_AG: Tensor,
                         needed: list[bool]) -> list[Tensor | None]:
        """Returns the gradients of x, gates, gate_up_proj, down_proj; None is allowed for those not needed."""

    def cumulative_prob_histogram(self, logits_TE: Tensor, scale: Tensor, normalization: str, max_experts: int,
                       stride: int, zero_experts: int) -> Tensor: ...

    def linear_cross_entropy(self, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_weight: float,
                             ignore_index: int) -> tuple[Tensor, Tensor, Tensor]: ...

    def token_log_probs(self, x_TD: Tensor, weight_VD: Tensor,
                        targets_T: Tensor) -> tuple[Tensor, Tensor]: ...


current: Form = compiled if library.load() else plain
