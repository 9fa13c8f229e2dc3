"""Tests `dtopp convert from-hf` and `to-hf --as` with other families of transformers: Mixtral, Qwen2-MoE and Qwen3-MoE."""

import json
import shutil

import pytest
import tiny_run
import torch
import transformers
import yaml
from huggingface_folder import LOADED, keep_modules_in, load, to_hf
from language_program import Program
from refusal import assert_refused
from safetensors.torch import load_file, save_file
from tokenize_lines import marked_file, tokenize

BOUND = 1e-5  # of the largest logit

SHAPE = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 32, "initializer_range": 0.15, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
MIXTRAL = ("mixtral", SHAPE | {"intermediate_size": 16, "num_local_experts": 8, "num_experts_per_tok": 2})
QWEN = SHAPE | {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 48}
QWEN2 = ("qwen2_moe", QWEN | {"shared_expert_intermediate_size": 32})
QWEN3 = ("qwen3_moe", QWEN | {"head_dim": 12, "norm_topk_prob": True})


def changed(family, **keys):
    return family[0], family[1] | keys


FAMILIES = {
    "mixtral": MIXTRAL,
    "mixtral_window": changed(MIXTRAL, sliding_window=7, head_dim=12, tie_word_embeddings=True),
    "mixtral_wide_window": changed(MIXTRAL, sliding_window=32, num_key_value_heads=4, num_experts_per_tok=1),
    "qwen2_moe": QWEN2,
    "qwen2_moe_without_bias": changed(QWEN2, qkv_bias=False, norm_topk_prob=True, rms_norm_eps=1e-3),
    "qwen3_moe": QWEN3,
    "qwen3_moe_window": changed(QWEN3, norm_topk_prob=False, use_sliding_window=True, sliding_window=9,
                                rope_parameters={"rope_type": "default", "rope_theta": 100.0}),
}


def config_of(family):
    kind, keys = family
    return transformers.AutoConfig.for_model(kind, **keys)


def random_model(family, folder):
    """A model whose gains and biases are far from 1 and 0. Returns it as transformers loads it."""
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(config_of(family))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):
                parameter.copy_(("norm" in name) + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


class Case(Program):
    """A model of transformers in the folder `own`, and the checkpoint made from it."""

    def __init__(self, name, parity, directory):
        super().__init__(parity, directory)
        self.kind, self.own = FAMILIES[name][0], directory / "own"
        self.model = random_model(FAMILIES[name], self.own)
        self.checkpoint = directory / "here"
        done = tiny_run.dtopp("convert", "from-hf", self.own, self.checkpoint)
        assert done.returncode == 0, done.stderr

    def logits_of(self, model):
        with torch.no_grad():
            return model(input_ids=self.tokens[:, :-1]).logits

    def back(self, name, *arguments):
        return to_hf(self.checkpoint, self.directory / name, *arguments)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, dtopp_binary, program, tmp_path_factory):
    return Case(request.param, program("dtopp_parity"), tmp_path_factory.mktemp(request.param))


def close(got, want):
    return (got - want).abs().max() <= BOUND * want.abs().max()


def test_its_logits_are_the_same_here(case):
    assert close(case.logits(), case.logits_of(case.model))


def test_it_goes_back_with_the_same_bytes(case):
    folder = case.back("again", "--as", case.kind)
    before, after = (load_file(path / "model.safetensors") for path in (case.own, folder))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(tensor, after[name]), name
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model) is type(case.model) and not any(info[key] for key in LOADED), info
    assert torch.equal(case.logits_of(model), case.logits_of(case.model))


def test_dtopps_own_class_has_its_logits_too(case, tmp_path):
    if yaml.safe_load((case.checkpoint / "config.yaml").read_text())["model"]["attention_window"]:
        assert_refused(tiny_run.dtopp("convert", "to-hf", case.checkpoint, tmp_path / "own"), 2, "model.attention_window")
        return
    with keep_modules_in(tmp_path):
        folder = case.back("as_dtopp")
        assert close(case.logits_of(load(folder)), case.logits_of(case.model))
    done = tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "back")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back/model.safetensors").read_bytes() == (case.checkpoint / "model.safetensors").read_bytes()
    before, after = (yaml.safe_load((path / "config.yaml").read_text()) for path in (case.checkpoint, tmp_path / "back"))
    assert before["model"] == after["model"] and before["routing"] == after["routing"]


def test_training_goes_on(case, tmp_path):
    run = tiny_run.make(tmp_path)
    config = yaml.safe_load((case.checkpoint / "config.yaml").read_text())
    run.write_text(yaml.safe_dump(yaml.safe_load(run.read_text()) | {key: config[key] for key in ("model", "routing", "loss")}))
    done = tiny_run.dtopp("train", run, f"training.initialize_from={case.checkpoint}", "training.steps=10",
                          "optimizer.lr=0.003", "optimizer.warmup_steps=0", "validation.every=10", "checkpoint.every=0")
    assert done.returncode == 0, done.stderr
    losses = [line["val/loss"] for line in tiny_run.metrics(tmp_path / "run") if "val/loss" in line]
    assert losses[-1] < losses[0]
    trained = to_hf(tmp_path / "run", tmp_path / "trained", "--as", case.kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(trained)
    assert close(case.logits(tmp_path / "run/checkpoints/step-00000010"), case.logits_of(model))


def test_experts_in_one_tensor_are_read_too(case, tmp_path):
    shutil.copytree(case.own, tmp_path / "own")
    tensors = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in tensors
    save_file(tensors, tmp_path / "own/model.safetensors")
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "own", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here/model.safetensors").read_bytes() == (case.checkpoint / "model.safetensors").read_bytes()


def test_its_tokenizer_with_marks_for_spaces_comes_along(tmp_path, dtopp_binary):
    random_model(changed(MIXTRAL, vocab_size=300), tmp_path / "own")
    (tmp_path / "own/tokenizer.json").write_text(json.dumps(marked_file()))
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "own", tmp_path / "here")
    assert done.returncode == 0, done.stderr
    done = tiny_run.dtopp("generate", tmp_path / "here", "--prompt", "a a", "--temperature", 0, "--max-tokens", 4)
    assert done.returncode == 0, done.stderr
    theirs = transformers.AutoTokenizer.from_pretrained(to_hf(tmp_path / "here", tmp_path / "back", "--as", "mixtral"))
    lines = ["", " ", "a a", "  aa a", "é</s> a", "\u2581a"]
    assert [theirs(line)["input_ids"] for line in lines] == tokenize(tmp_path / "here/tokenizer.json", lines)
    assert theirs.eos_token == "</s>"


UNFIT = [
    ("mixtral", "router_jitter_noise", 0.1, "router_jitter_noise"),
    ("mixtral", "hidden_act", "gelu", ["hidden_act", "gelu"]),
    ("mixtral", "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e6}, "rope_parameters"),
    ("mixtral", "num_key_value_heads", 3, "model.num_kv_heads: 3 "),
    ("mixtral", "kv_lora_rank", 8, ["kv_lora_rank", "MLA"]),
    ("mixtral", "model_type", "granitemoe", ["model_type", "granitemoe", "qwen3_moe"]),
    ("qwen3_moe", "decoder_sparse_step", 2, "decoder_sparse_step"),
    ("qwen3_moe", "mlp_only_layers", [1], "mlp_only_layers"),
    ("qwen3_moe", "attention_bias", True, "attention_bias"),
    ("qwen3_moe", "rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_scaling"),
    ("qwen2_moe", "use_sliding_window", True, "use_sliding_window"),
    ("qwen2_moe", "layer_types", ["full_attention", "sliding_attention"], "layer_types"),
    ("qwen2_moe", "shared_expert_intermediate_size", 24, ["shared_expert_intermediate_size", "16"]),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {kind: tmp_path_factory.mktemp(kind) / "own" for kind in ("mixtral", "qwen2_moe", "qwen3_moe")}
    for kind, folder in made.items():
        random_model(FAMILIES[kind], folder)
    return made


@pytest.mark.parametrize("kind, key, value, names", UNFIT, ids=[f"{kind}-{key}" for kind, key, *_ in UNFIT])
def test_what_does_not_fit_is_refused_in_a_line(kind, key, value, names, folders, tmp_path, dtopp_binary):
    folder = shutil.copytree(folders[kind], tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    if key == "use_sliding_window":
        config["sliding_window"] = 8
    (folder / "config.json").write_text(json.dumps(config | {key: value}))
    assert_refused(tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "here"), 2, names)
    assert not (tmp_path / "here").exists()


# The config.json of published models.
PUBLISHED = {
    "Mixtral-8x7B-v0.1": {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": True, "vocab_size": 32000},
    "Qwen1.5-MoE-A2.7B": {
        "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "decoder_sparse_step": 1, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False, "use_sliding_window": False,
        "vocab_size": 151936},
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_fit(name, tmp_path, dtopp_binary):
    """Only the weights are missing."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    assert_refused(tiny_run.dtopp("convert", "from-hf", tmp_path, tmp_path / "here"), 2, "holds neither model.safetensors")


def test_a_tensor_that_is_missing_is_named(folders, tmp_path, dtopp_binary):
    folder = shutil.copytree(folders["qwen2_moe"], tmp_path / "own")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.shared_expert.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    done = tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "here")
    assert_refused(done, 3, '"model.layers.1.mlp.shared_expert.up_proj.weight"')


FITTING = {"model.norm": "rms", "routing.method": "top_k", "routing.experts": 3, "routing.normalization": "none"}
CANNOT = [("mixtral", {"model.qk_norm": "head"}, "model.qk_norm"),
          ("mixtral", {"model.qk_norm": "none", "routing.renormalize": "false"}, "routing.renormalize"),
          ("qwen3_moe", {"model.qk_norm": "head", "model.shared_experts": 1}, "model.shared_experts"),
          ("qwen3_moe", {"model.qk_norm": "head", "model.norm": "layer"}, "model.norm"),
          ("qwen3_moe", {"model.qk_norm": "head", "routing.renormalize": "l2"}, "routing.renormalize"),
          ("qwen2_moe", {"model.qk_norm": "none"}, "model.shared_experts"),
          ("qwen2_moe", {"model.qk_norm": "none", "model.shared_experts": 1}, "model.shared_gate"),
          ("qwen2_moe", {"model.qk_norm": "none", "model.shared_experts": 1, "model.shared_gate": "true",
                         "model.attention_window": 4}, "model.attention_window")]


@pytest.mark.parametrize("kind, keys, name", CANNOT, ids=[f"{kind}-{name}" for kind, _, name in CANNOT])
def test_what_a_family_cannot_say_is_refused(kind, keys, name, tmp_path, dtopp_binary):
    run = tiny_run.trained(tmp_path, "training.steps=1", "validation.every=0", "optimizer.warmup_steps=0",
                           *(f"{k}={v}" for k, v in (FITTING | keys).items())) / "run"
    assert_refused(tiny_run.dtopp("convert", "to-hf", run, tmp_path / "hf", "--as", kind), 2, f"--as {kind}: {name}")
