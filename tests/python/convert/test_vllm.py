"""Tests the plugin of vLLM on a stand-in for vLLM, which is not installed here."""

import importlib
import tomllib

import pytest
import torch
import transformers
import vllm_stand_in
from huggingface_folder import Case, remote_code
from safetensors.torch import load_file
from tiny_run import ROOT

BOUND = 2e-5


@pytest.fixture
def plugin(monkeypatch):
    """The function that the entry point names."""
    vllm_stand_in.install(monkeypatch)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, function = groups["vllm.general_plugins"]["dtopp"].partition(":")
    return getattr(importlib.import_module(module), function)


def model_class():
    module, _, name = vllm_stand_in.ModelRegistry.models["DtoppForCausalLM"].partition(":")
    return getattr(importlib.import_module(module), name)


def test_the_architecture_is_registered_once(plugin):
    plugin()
    plugin()  # vLLM may call it again
    assert list(vllm_stand_in.ModelRegistry.models) == ["DtoppForCausalLM"]
    assert issubclass(model_class(), vllm_stand_in.TransformersMoEForCausalLM)


@pytest.mark.parametrize("name", ["dtop_p", "dtop_p_bias", "expert_threshold", "top_k_bias_zero_experts_that_copy", "hash",
                                  "dtop_p_expert_normalization"])
def test_its_model_has_the_programs_logits(name, plugin, tmp_path, program, dtopp_binary, remote_code):
    case = Case(name, program("dtopp_parity"), tmp_path)
    config = transformers.AutoConfig.from_pretrained(case.folder, trust_remote_code=True)
    plugin()
    model = model_class()(config=config, dtype=torch.float32).eval()
    weights = load_file(case.folder / "model.safetensors")
    assert model.load_weights(weights.items()) == weights.keys()
    with torch.no_grad():
        positions = torch.arange(case.inputs.shape[1])
        logits = torch.stack([model(ids, positions) for ids in case.inputs]) @ model.model.embed_tokens.weight.T
    want = case.logits()
    assert (logits - want).abs().max() <= BOUND * want.abs().max()


def test_the_router_stays_in_fp32(plugin, tmp_path, program, dtopp_binary, remote_code):
    case = Case("dtop_p_bias", program("dtopp_parity"), tmp_path)
    plugin()
    config = transformers.AutoConfig.from_pretrained(case.folder, trust_remote_code=True)
    model = model_class()(config=config, dtype=torch.bfloat16)
    weights = load_file(case.folder / "model.safetensors")
    model.load_weights(weights.items())
    for name, value in model.state_dict().items():
        if ".mlp.gate." in name:
            assert torch.equal(value, weights[name]), name
        else:
            assert value.dtype == torch.bfloat16, name
