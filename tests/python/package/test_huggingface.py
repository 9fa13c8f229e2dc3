"""Tests experts_implementation="dtopp": transformers models with and without it."""

import importlib
import subprocess
import sys

import pytest
import torch
import transformers
from packaging import version
from tiny_run import ROOT
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# The list of docs/how-to/hugging-face.md.
MODELS = ["deepseek_v2", "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "hunyuan_v1_moe", "minimax",
          "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"]
if version.parse(transformers.__version__) >= version.parse("5.13"):
    MODELS.append("granitemoe")
# Every name that some model uses for a size.
TINY = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 16, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "head_dim": 8, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_topk": 2, "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}


importlib.import_module("dtopp.huggingface")


def model_of(name, **options):
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    model_class = getattr(module, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**(TINY | options))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1) if parameter.dim() > 1 else parameter.fill_(1.0)
    return model


def step(model, implementation, **options):
    model.set_experts_implementation(implementation)
    model.zero_grad()
    ids = torch.randint(2, 100, (2, 17), generator=torch.Generator().manual_seed(2))
    out = model(input_ids=ids, labels=ids, **options)
    out.loss.backward()
    return out.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_transformers_own(name):
    model = model_of(name)
    logits, gradients = step(model, "eager")
    got, got_gradients = step(model, "dtopp")
    assert any("experts" in parameter for parameter in gradients)
    assert (got - logits).abs().max() <= 1e-5 * logits.abs().max()
    assert got_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        assert (got_gradients[parameter] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-7, parameter


def test_under_autocast_experts_compute_in_bf16():
    model = model_of("olmoe")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, gradients = step(model, "eager")
        got, got_gradients = step(model, "dtopp")
    exact, _ = step(model, "eager")
    assert (got.float() - exact).norm() < 2 * (logits.float() - exact).norm() + 1e-3 * exact.norm()
    assert got_gradients["model.layers.0.mlp.experts.down_proj"].dtype == torch.float32


def test_a_model_in_bf16_stays_in_bf16():
    model = model_of("olmoe").to(torch.bfloat16)
    got, gradients = step(model, "dtopp")
    want, _ = step(model, "eager")
    assert got.dtype == torch.bfloat16 and gradients["model.layers.0.mlp.experts.gate_up_proj"].dtype == torch.bfloat16
    assert (got - want).float().norm() < 0.05 * want.float().norm()


def test_other_experts_are_refused_by_name():
    with pytest.raises(ValueError, match="experts_implementation dtopp: GptOssExperts have biases"):
        step(model_of("gpt_oss"), "dtopp")
    with pytest.raises(ValueError, match="OlmoeExperts use a gate function other than silu"):
        step(model_of("olmoe", hidden_act="gelu"), "dtopp")


def test_importing_it_alone_is_enough(tmp_path):
    code = ("import dtopp.huggingface, transformers\n"
            "from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS\n"
            "assert 'dtopp' in ALL_EXPERTS_FUNCTIONS")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=300,
                          env={"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert transformers.__version__.startswith("5.")
