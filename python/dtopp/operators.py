"""PyTorch operators around either form, so that compilers, checkpoints and exports see one node per operator."""

from typing import Any, List, Sequence  # torch 2.6 infers schemas from these names only

import torch
from torch import Tensor

from dtopp import form


@torch.library.custom_op("dtopp::experts", mutates_args=())
def experts(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (y_TD, pre_activations_AG); differentiable in all four arguments through y."""
    return form.current.experts_forward(x_TD, gates_TE, gate_up_proj, down_proj)


@experts.register_fake
def _(x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.library.get_ctx().new_dynamic_size()
    return torch.empty_like(x_TD), x_TD.new_empty(pairs, gate_up_proj.shape[1])


@torch.library.custom_op("dtopp::experts_backward", mutates_args=())
def experts_backward(grad_y_TD: Tensor, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor,
                     down_proj: Tensor, pre_activations_AG: Tensor, needed: Sequence[bool]) -> List[Tensor]:
    """Returns the gradients of experts' four arguments, with an empty tensor for each that is not needed."""
    grads = form.current.experts_backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                                          pre_activations_AG, list(needed))
    return [grad if need and grad is not None else x_TD.new_empty(0) for need, grad in zip(needed, grads)]


@experts_backward.register_fake
def _(grad_y_TD: Tensor, x_TD: Tensor, gates_TE: Tensor, gate_up_proj: Tensor, down_proj: Tensor,
      pre_activations_AG: Tensor, needed: Sequence[bool]) -> List[Tensor]:
    inputs = (x_TD, gates_TE, gate_up_proj, down_proj)
    return [torch.empty_like(t) if need else x_TD.new_empty(0) for need, t in zip(needed, inputs)]


def _save_for_experts(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _experts_grads(ctx: Any, grad_y_TD: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    needed = list(ctx.needs_input_grad)
    if grad_y_TD is None:
        return (None,) * len(needed)
    grads = experts_backward(grad_y_TD.contiguous(), *ctx.saved_tensors, needed)
    return tuple(grad if need else None for need, grad in zip(needed, grads))


experts.register_autograd(_experts_grads, setup_context=_save_for_experts)


@torch.library.custom_op("dtopp::tally_", mutates_args=("tally",))
def tally_(tally: Tensor, counts: Tensor) -> None:
    """tally += counts, except during a backward pass, so that recomputed activations count once."""
    if torch._C._current_graph_task_id() == -1:
        tally.add_(counts)


@tally_.register_fake
def _(tally: Tensor, counts: Tensor) -> None:
    return None


@torch.library.custom_op("dtopp::add_loss", mutates_args=())
def add_loss(gates_TE: Tensor, loss: Tensor, scale: Tensor) -> Tensor:
    """Returns the gates. Their backward pass also gives `loss`, f32 [], the gradient `scale`, f32 [], as if
    scale * loss were added to the objective."""
    return gates_TE.clone()


@add_loss.register_fake
def _(gates_TE: Tensor, loss: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(gates_TE)


def _save_for_add_loss(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[2])


def _add_loss_grads(ctx: Any, grad_gates_TE: Tensor) -> tuple[Tensor, Tensor, None]:
    return grad_gates_TE, grad_gates_TE.new_ones(()) * ctx.saved_tensors[0], None


add_loss.register_autograd(_add_loss_grads, setup_context=_save_for_add_loss)

# Multiplies the gradients of all routers' losses. It lies on the CPU: kernels of every device take it as an
# argument.
loss_scale = torch.ones(())
