"""Tests `dtopp convert to-gguf`: the file's fields and tensors (the package gguf), and llama.cpp's tokens and texts.

llama.cpp is not among the tests' requirements, because its build takes minutes: pip install llama-cpp-python."""

import itertools
import json

import numpy as np
import pytest
import tiny_language_run
import tiny_run
import tokenizers
from needs import needs_program
from refusal import assert_refused
from safetensors.numpy import load_file

gguf = pytest.importorskip("gguf")
pytestmark = needs_program

OLMOE = ["model.norm=rms", "routing.method=top_k", "routing.normalization=none", "routing.renormalize=false", "loss.dynamic=0"]
QWEN = ["model.norm=rms", "model.tie_embeddings=false", "model.qk_norm=head", "model.num_kv_heads=2", "routing.method=top_k", "routing.normalization=none",
        "routing.renormalize=true", "loss.dynamic=0"]
ARCHITECTURES = {"olmoe": OLMOE, "qwen3moe": QWEN}
PROMPT = "The fog came down at noon, and I'll say nothing (of the kind) for 1234 years."


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request, tmp_path_factory):
    """(architecture, run, file)"""
    folder = tmp_path_factory.mktemp(request.param)
    run = tiny_language_run.train(folder, "dtop_p", 128, *ARCHITECTURES[request.param], "model.init_std=0.3",
                                  tokenizer=tiny_language_run.SMALL_TOKENIZER)
    done = tiny_run.dtopp("convert", "to-gguf", run, folder / "model.gguf")
    assert done.returncode == 0, done.stderr
    return request.param, run, folder / "model.gguf"


def tensors_of(run):
    (file,) = sorted((run / "checkpoints").iterdir())[-1].glob("model.safetensors")
    return load_file(file)


def test_the_file_has_the_models_numbers_and_tensors(case):
    architecture, run, file = case
    reader = gguf.GGUFReader(file)
    value = lambda key: reader.fields[key].contents()
    assert value("general.architecture") == architecture
    assert value(f"{architecture}.expert_used_count") == 3 and value(f"{architecture}.block_count") == 2
    assert value(f"{architecture}.attention.head_count_kv") == (2 if architecture == "qwen3moe" else 4)
    want = tensors_of(run)
    got = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    assert np.array_equal(got["token_embd.weight"], want["model.embed_tokens.weight"])
    want.setdefault("lm_head.weight", want["model.embed_tokens.weight"])
    assert np.array_equal(got["output.weight"], want["lm_head.weight"])
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.experts."
        gate, up = np.split(want[name + "gate_up_proj"], 2, axis=1)
        assert np.array_equal(got[f"blk.{layer}.ffn_gate_exps.weight"], gate)
        assert np.array_equal(got[f"blk.{layer}.ffn_up_exps.weight"], up)
        assert np.array_equal(got[f"blk.{layer}.ffn_down_exps.weight"], want[name + "down_proj"])
    assert sum(tensor.size for tensor in got.values()) == sum(tensor.size for tensor in want.values())
    tokens = value("tokenizer.ggml.tokens")
    vocabulary = json.loads(tiny_language_run.SMALL_TOKENIZER.read_text())["model"]["vocab"]
    assert len(tokens) == 4096 and all(tokens[id] == token for token, id in vocabulary.items())


def test_llama_cpp_gives_the_same_tokens_and_text(case):
    llama_cpp = pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python")
    _, run, file = case
    # By default, llama.cpp keeps keys and values in fp16.
    model = llama_cpp.Llama(str(file), n_ctx=128, verbose=False, n_threads=1, type_k=llama_cpp.GGML_TYPE_F32,
                            type_v=llama_cpp.GGML_TYPE_F32)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_language_run.SMALL_TOKENIZER))
    ids = tokenizer.encode(PROMPT).ids
    assert model.tokenize(PROMPT.encode(), add_bos=False) == ids
    generated = list(itertools.islice(model.generate(ids, temp=0), 24))
    done = tiny_run.dtopp("generate", run, "--prompt", PROMPT, "--max-tokens", 24, "--temperature", 0)
    assert done.stdout == tokenizer.decode(generated) + "\n"


@pytest.mark.parametrize("overrides, key", [
    ("routing.method=dtop_p", "routing.method must be top_k"),
    ("routing.normalization=fixed routing.expert_normalization=running", "routing.expert_normalization must be none"),
    ("routing.renormalize=true", "routing.renormalize must be false"),
    ("routing.renormalize=l2", "routing.renormalize must be true or false"),
    ("model.norm=layer", "model.norm must be rms")])
def test_another_model_is_refused_by_its_key(overrides, key, tmp_path):
    run = tiny_run.trained(tmp_path, *OLMOE, "training.steps=4", *overrides.split()) / "run"
    assert_refused(tiny_run.dtopp("convert", "to-gguf", run, tmp_path / "model.gguf"), 2,
                   ["llama.cpp", f"{key}; train such a model", "to-hf"])
    assert not (tmp_path / "model.gguf").exists()


def test_an_existing_file_is_kept(case, tmp_path):
    (tmp_path / "here").write_text("mine")
    assert_refused(tiny_run.dtopp("convert", "to-gguf", case[1], tmp_path / "here"), 2, "exists")
    assert (tmp_path / "here").read_text() == "mine"
