"""A plugin of vLLM: the entry point of the group vllm.general_plugins (pyproject.toml)."""

__all__ = ["register"]


def register() -> None:
    """Registers the architecture of models that `dtopp convert to-hf` wrote. vLLM calls it in each of its processes, and imports
    the model itself when it is needed."""
    from vllm import ModelRegistry

    if "DtoppForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("DtoppForCausalLM", "dtopp.vllm_model:DtoppForCausalLM")
