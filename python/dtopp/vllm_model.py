"""Models of `dtopp convert to-hf` in vLLM, through its backend for models of transformers.

That backend builds the model from the code in its folder, and replaces attention and experts. The experts get the router's
output as it is: `num_experts_per_tok` ids per token and their weights.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from vllm.model_executor.models.transformers import TransformersMoEForCausalLM

__all__ = ["DtoppForCausalLM"]


class DtoppForCausalLM(TransformersMoEForCausalLM):  # type: ignore[misc]
    """Adds the routers: their parameters stay in fp32, and their buffers are loaded."""

    def init_parameters(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        super().init_parameters(module, dtype)
        for name, parameter in module.named_parameters():
            if ".mlp.gate." in f".{name}":
                parameter.data = parameter.data.float()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        buffers = dict(self.named_buffers())
        loaded: set[str] = set()

        def parameters() -> Iterator[tuple[str, Tensor]]:
            for name, value in weights:
                if name in buffers:
                    buffers[name].copy_(value)
                    loaded.add(name)
                else:
                    yield name, value

        loaded_parameters: set[str] = super().load_weights(parameters())
        return loaded_parameters | loaded
