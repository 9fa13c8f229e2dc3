"""Tests Hugging Face's OLMoE in both directions: `dtopp convert to-hf --as olmoe` and `from-hf`."""

import json
import shutil

import numpy as np
import pytest
import tiny_run
import torch
import yaml
from huggingface_folder import LOADED, load, to_hf
from language_program import CASES, Both
from refusal import assert_refused
from safetensors.torch import load_file, save_file
from transformers import OlmoeConfig, OlmoeForCausalLM

BOUND = 2e-5


@pytest.fixture(scope="module", params=["olmoe", "olmoe_tied", "olmoe_gqa", "olmoe_renormalized"])
def case(request, dtopp_binary, program, tmp_path_factory):
    return Both(request.param, program("dtopp_parity"), tmp_path_factory.mktemp(request.param))


@pytest.fixture
def parity(case):
    return case.parity


def close(got, want):
    return (got - want).abs().max() <= BOUND * want.abs().max()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens).logits


def test_transformers_own_class_has_the_programs_logits(case, tmp_path):
    folder = to_hf(case.checkpoint, tmp_path / "hf", "--as", "olmoe")
    assert not list(folder.glob("*.py"))
    model, info = OlmoeForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in LOADED), info
    assert close(logits_of(model, case.tokens[:, :-1]), case.logits())
    assert close(logits_of(load(folder), case.tokens[:, :-1]), case.logits())


def test_back_from_there_it_has_the_same_bytes(case, tmp_path):
    folder = to_hf(case.checkpoint, tmp_path / "hf", "--as", "olmoe")
    done = tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "back")
    assert done.returncode == 0 and done.stdout == f"{tmp_path / 'back'}\n", done.stderr
    assert (tmp_path / "back/model.safetensors").read_bytes() == (case.checkpoint / "model.safetensors").read_bytes()
    before, after = (yaml.safe_load((path / "config.yaml").read_text()) for path in (case.checkpoint, tmp_path / "back"))
    assert before["model"] == after["model"]
    for key in ("method", "experts", "normalization", "renormalize"):
        assert before["routing"][key] == after["routing"][key]


OWN = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
       "num_experts": 8, "num_experts_per_tok": 3, "max_position_embeddings": 32, "initializer_range": 0.15,
       "eos_token_id": 0, "pad_token_id": None}


def random_olmoe(folder, **saving):
    """A model that dtopp did not write, with gains far from 1."""
    torch.manual_seed(4)
    model = OlmoeForCausalLM(OlmoeConfig(**OWN))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    model.to(saving.pop("dtype", torch.float32)).save_pretrained(folder, **saving)
    return OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("saving", [{}, {"max_shard_size": "20KB"}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}],
                         ids=["fp32", "shards", "bf16", "fp16"])
def test_a_model_of_transformers_has_its_logits_here(saving, case, tmp_path):
    model = random_olmoe(tmp_path / "own", **saving)
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "own", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert close(case.logits(tmp_path / "here"), logits_of(model, case.tokens[:, :-1]))
    again = to_hf(tmp_path / "here", tmp_path / "again", "--as", "olmoe")
    back = OlmoeForCausalLM.from_pretrained(again).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back[name], tensor), name


def test_training_goes_on_here_and_the_model_goes_back(own, tmp_path, dtopp_binary):
    done = tiny_run.dtopp("convert", "from-hf", own, tmp_path / "here")
    assert done.returncode == 0, done.stderr
    overrides = [f"{key}={value}" for key, value in CASES["olmoe"].items()]
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *overrides, f"training.initialize_from={tmp_path / 'here'}",
                          "optimizer.lr=0.001")
    assert done.returncode == 0, done.stderr
    lines = [line for line in tiny_run.metrics(tmp_path / "run") if "val/loss" in line]
    assert lines[-1]["val/loss"] < lines[0]["val/loss"]
    tokens = torch.from_numpy(np.fromfile(tmp_path / "train.npy", "<u2")[:33].astype("int64"))[None]
    with torch.no_grad():
        first = OlmoeForCausalLM.from_pretrained(own)(tokens, labels=tokens).loss
        last = OlmoeForCausalLM.from_pretrained(to_hf(tmp_path / "run", tmp_path / "back", "--as", "olmoe"))(
            tokens, labels=tokens).loss
    assert last < first


def test_experts_in_one_tensor_are_read_too(case, tmp_path):
    model = random_olmoe(tmp_path / "own")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, tmp_path / "own/model.safetensors")
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(tmp_path / "own/model.safetensors")
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "own", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert close(case.logits(tmp_path / "here"), logits_of(model, case.tokens[:, :-1]))


UNFIT = {
    "num_key_value_heads": (3, "model.num_kv_heads: 3 "),
    "clip_qkv": (8.0, "clip_qkv"),
    "rms_norm_eps": (-1e-6, "model.norm_eps"),
    "hidden_act": ("gelu", ["hidden_act", "gelu"]),
    "attention_bias": (True, "attention_bias"),
    "rope_parameters": ({"rope_type": "linear", "factor": 2.0}, "rope_parameters"),
    "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, "rope_scaling"),
    "model_type": ("phimoe", ["model_type", "phimoe"]),
    "num_hidden_layers": (10**15, "num_layers"),
    "num_experts": (10**15, "num_experts"),
    "num_experts_per_tok": (9, "routing.experts"),
    "num_attention_heads": (5, ["model.num_kv_heads: 4 ", "num_heads 5"]),
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("olmoe") / "own"
    random_olmoe(folder)
    return folder


@pytest.mark.parametrize("key", UNFIT)
def test_what_does_not_fit_is_refused_in_a_line(key, own, tmp_path, dtopp_binary):
    folder = shutil.copytree(own, tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config[key], names = UNFIT[key]
    (folder / "config.json").write_text(json.dumps(config))
    refused(2, names, "from-hf", folder, tmp_path / "here")


def refused(status, names, *arguments):
    assert_refused(tiny_run.dtopp("convert", *arguments), status, names)
    assert not arguments[2].exists() or list(arguments[2].iterdir()) == [arguments[2] / "mine"]


def test_damage_is_refused_in_a_line(own, tmp_path, dtopp_binary):
    def damaged(name):
        return shutil.copytree(own, tmp_path / name)

    cut = damaged("cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    refused(3, "model.safetensors", "from-hf", cut.parent, tmp_path / "here")
    no_json = damaged("no_json") / "config.json"
    no_json.write_text("{")
    refused(3, "config.json", "from-hf", no_json.parent, tmp_path / "here")
    text = damaged("text") / "config.json"
    text.write_text(text.read_text().replace('"vocab_size": 256', '"vocab_size": "256"'))
    refused(3, "vocab_size", "from-hf", text.parent, tmp_path / "here")
    (damaged("empty") / "model.safetensors").unlink()
    refused(2, "model.safetensors", "from-hf", tmp_path / "empty", tmp_path / "here")
    for name, change, names in [
            ("fewer", lambda t: t.pop("model.norm.weight"), '"model.norm.weight"'),
            ("more", lambda t: t.update({"model.bias": torch.zeros(3)}), '"model.bias"'),
            ("shape", lambda t: t.update({"model.norm.weight": torch.zeros(3)}), ["F32 [3]", "[32]"]),
            ("dtype", lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int64)}), "I64 [32]")]:
        file = damaged(name) / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        refused(3, names, "from-hf", file.parent, tmp_path / "here")


def test_nothing_is_overwritten(own, case, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine").write_text("kept")
    refused(2, tmp_path / "there", "from-hf", own, tmp_path / "there")
    refused(2, tmp_path / "there", "to-hf", case.checkpoint, tmp_path / "there")
    (tmp_path / "empty").mkdir()
    to_hf(case.checkpoint, tmp_path / "empty")
    assert (tmp_path / "empty/config.json").exists()


def test_a_folder_may_be_named_with_a_slash_at_its_end(own, tmp_path):
    for there in (False, True):
        folder = tmp_path / str(there) / "checkpoint"
        if there:
            folder.mkdir(parents=True)
        done = tiny_run.dtopp("convert", "from-hf", own, f"{folder}/")
        assert done.returncode == 0, done.stderr
        assert (folder / "config.yaml").exists() and [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("override, key", [
    ("model.norm=layer", "model.norm"), ("routing.method=dtop_p", "routing.method"),
    ("routing.normalization=fixed", "routing.normalization"),
    ("routing.normalization=fixed routing.expert_normalization=running", "routing.expert_normalization"),
    ("model.num_experts=1", "model.num_experts"),
    ("model.qk_norm=head", "model.qk_norm"), ("model.qkv_bias=true", "model.qkv_bias"),
    ("model.attend_across_documents=false data.end_of_text=7", "model.attend_across_documents")])
def test_what_olmoe_cannot_say_is_refused(override, key, tmp_path, dtopp_binary):
    run = tiny_run.trained(tmp_path, "training.steps=1", "validation.every=0", "optimizer.warmup_steps=0",
                           *(f"{k}={v}" for k, v in CASES["olmoe"].items()), *override.split()) / "run"
    refused(2, f"--as olmoe: {key}", "to-hf", run, tmp_path / "hf", "--as", "olmoe")
