"""Tests `dtopp convert to-hf`: transformers' results with the folder against the program's."""

import json
import re
import shutil

import pytest
import tiny_language_run
import tiny_run
import tokenizers
import torch
import transformers
import yaml
from huggingface_folder import LOADED, Case, load, logits_of, remote_code, routed, run_as_user, to_hf
from language_program import ROUTERS
from refusal import assert_refused
from safetensors.torch import load_file, save_file
from vllm_stand_in import fused_experts

NAMES = ["dense", "dense_untied", "top_k", "top_1_without_renormalization", "top_p", "top_p_capped", "dtop_p", "dtop_p_rms",
         "dtop_p_layer", "dtop_p_without_renormalization", "dtop_p_gqa", "dtop_p_norm_of_each_head", "dtop_p_without_qk_norm",
         "dtop_p_shared_experts", "dtop_p_shared_gate", "dtop_p_zero_experts", "dtop_p_zero_experts_that_copy",
         "dtop_p_expert_normalization_zero_experts", "dtop_p_l2_gates", "top_k_l2_gates", *ROUTERS]
BOUND = 2e-5


@pytest.fixture(scope="module", params=NAMES)
def case(request, dtopp_binary, program, tmp_path_factory, remote_code):
    return Case(request.param, program("dtopp_parity"), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def dtop_p(dtopp_binary, program, tmp_path_factory, remote_code):
    return Case("dtop_p", program("dtopp_parity"), tmp_path_factory.mktemp("alone"))


def test_logits_are_the_programs(case):
    want = case.logits()
    for experts in ("eager",) if case.case.startswith("dense") else ("eager", "grouped_mm", "batched_mm"):
        model, info = load(case.folder, experts_implementation=experts, output_loading_info=True)
        assert not any(info[key] for key in LOADED), (experts, info)
        assert (logits_of(model, case.inputs) - want).abs().max() <= BOUND * want.abs().max(), experts


def test_a_token_has_a_fixed_number_of_slots_that_fused_experts_take(case):
    if case.case.startswith("dense"):
        return
    model = load(case.folder)
    for layer, (x_TD, weight_TK, expert_TK) in zip(model.model.layers, routed(model, case.inputs)):
        assert weight_TK.shape == expert_TK.shape == (case.inputs.numel(), model.config.num_experts_per_tok)
        used_TK = weight_TK != 0
        assert (expert_TK[~used_TK] == 0).all()
        assert all(expert[used].unique().numel() == used.sum() for expert, used in zip(expert_TK, used_TK))
        experts = layer.mlp.experts
        with torch.no_grad():
            want = experts(x_TD, expert_TK, weight_TK)
            got = fused_experts(x_TD, experts.gate_up_proj, experts.down_proj, weight_TK, expert_TK.int())
        assert (got - want).abs().max() <= BOUND * want.abs().max()


def test_generation_with_a_cache_equals_generation_without(case):
    model = load(case.folder)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached, uncached = (model.generate(case.inputs, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, uncached)
    assert cached.shape == (3, 44)


def test_a_padded_batch_gives_what_single_texts_give(case):
    model = load(case.folder)
    lengths = [32, 20, 7]
    ids, mask = torch.zeros(3, 32, dtype=torch.long), torch.zeros(3, 32, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = case.inputs[row, :length], 1
    batch = logits_of(model, ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    for row, length in enumerate(lengths):
        single = logits_of(model, case.inputs[row:row + 1, :length])[0]
        assert (batch[row, -length:] - single).abs().max() <= BOUND * single.abs().max()


def test_in_bf16_the_router_stays_exact(case):
    model, exact = load(case.folder, dtype=torch.bfloat16), load(case.folder)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if ".mlp.gate." in name else torch.bfloat16), name
        if ".mlp.gate." in name:
            assert torch.equal(parameter, exact.get_parameter(name))
    got, want = logits_of(model, case.inputs).float(), logits_of(exact, case.inputs)
    assert (got - want).norm() < 0.1 * want.norm()


def test_saved_and_loaded_again_it_is_the_same(case, tmp_path):
    model = load(case.folder)
    model.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    want = model.state_dict()
    assert want.keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, want[name]) for name, tensor in again.state_dict().items())
    assert (logits_of(again, case.inputs) - logits_of(model, case.inputs)).abs().max() < 1e-4
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "again", tmp_path / "back")
    assert done.returncode == 0, done.stderr
    assert torch.equal(case.logits(tmp_path / "back"), case.logits())
    assert_same_router(case.checkpoint, tmp_path / "back")


def assert_same_router(checkpoint, back):
    """The state that the selection of experts needs has the same bits."""
    if not (checkpoint / "router.safetensors").exists():
        return
    before, after = (load_file(path / "router.safetensors") for path in (checkpoint, back))
    assert before.keys() == after.keys()
    for name in before.keys() & {"threshold_C", "bias_LE", "cut_LE", "cut_steps", "router_input_mean_LD", "logit_square_LC",
                                 "normalization_steps"}:
        assert torch.equal(before[name], after[name]), name


@pytest.mark.parametrize("name, tensor, change, status, words", [
    ("hash", "expert_VK", lambda value: value.flip(0), 2, "selects other experts"),
    ("dtop_p_bias", "bias_E", lambda value: value.float(), 3, ["is F32", "expected F64"]),
    ("top_k_expert_normalization", "input_mean_D", lambda value: value[1:].contiguous(), 3, ["F64 [31]", "[32]"]),
    ("expert_threshold", "cut_E", lambda value: value[1:].contiguous(), 3, ["F64 [7]", "[8]"])])
def test_a_changed_state_of_a_router_is_refused(name, tensor, change, status, words, tmp_path, program, dtopp_binary):
    file = Case(name, program("dtopp_parity"), tmp_path).folder / "model.safetensors"
    tensors, key = load_file(file), f"model.layers.1.mlp.gate.{tensor}"
    save_file(tensors | {key: change(tensors[key])}, file)
    assert_refused(tiny_run.dtopp("convert", "from-hf", file.parent, tmp_path / "here"), status, [key, *([words] if isinstance(words, str) else words)])


def test_what_sets_documents_apart_comes_back(tmp_path, dtopp_binary, remote_code):
    run = tiny_run.trained(tmp_path, "training.steps=1", "validation.every=0", "optimizer.warmup_steps=0",
                           "model.attend_across_documents=false", "data.end_of_text=7") / "run"
    load(to_hf(run, tmp_path / "hf")).save_pretrained(tmp_path / "again")
    for folder in ("hf", "again"):
        done = tiny_run.dtopp("convert", "from-hf", tmp_path / folder, tmp_path / folder / "back")
        assert done.returncode == 0, done.stderr
        config = yaml.safe_load((tmp_path / folder / "back/config.yaml").read_text())
        assert config["model"]["attend_across_documents"] is False and config["data"]["end_of_text"] == 7


def test_it_trains(case):
    model = load(case.folder).train()
    before = model(input_ids=case.inputs, labels=case.inputs)
    before.loss.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # A single expert with weight 1, or 1 / 1, hides the router from the loss.
    assert not [name for name in without if ".mlp.gate." not in name]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad
    assert model(input_ids=case.inputs, labels=case.inputs).loss < before.loss


def test_the_trainer_of_transformers_predicts_the_logits(dtop_p, tmp_path):
    model = load(dtop_p.folder)
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, use_cache=True)
    texts = [{"input_ids": ids, "labels": ids} for ids in dtop_p.inputs]
    predicted = torch.from_numpy(transformers.Trainer(model, arguments).predict(texts).predictions)
    assert (predicted - dtop_p.logits()).abs().max() <= BOUND * predicted.abs().max()


def test_a_fresh_model_has_finite_random_weights(dtop_p):
    config = transformers.AutoConfig.from_pretrained(dtop_p.folder, trust_remote_code=True)
    model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    experts = model.model.layers[0].mlp.experts
    for weight in (experts.gate_up_proj, experts.down_proj, model.model.layers[1].mlp.gate.weight):
        assert weight.std().item() == pytest.approx(config.initializer_range, rel=0.2)
    assert torch.isfinite(logits_of(model.eval(), dtop_p.inputs)).all()


@pytest.mark.parametrize("target", [2, 3.5, [1.5, 6]])
def test_thresholds_are_solved_for_any_budget(dtop_p, target):
    model = load(dtop_p.folder)
    means = model.set_target_experts(target, dtop_p.inputs)
    if isinstance(target, list):
        assert means == pytest.approx(target, abs=0.02)
    else:
        assert len(set(model.config.router_thresholds)) == 1
        assert sum(means) / 2 == pytest.approx(target, rel=0.01)
    counts = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _, __, output: counts.append((output[1] > 0).sum(-1).double().mean().item()))
    logits_of(model, dtop_p.inputs)
    assert counts == pytest.approx(means)


@pytest.mark.parametrize("name, target", [("dtop_p_bias", 3), ("dtop_p_zero_experts", 0.9), ("dtop_p_zero_experts", 3)])
def test_a_budget_counts_no_zero_experts(name, target, tmp_path, program, dtopp_binary, remote_code):
    case = Case(name, program("dtopp_parity"), tmp_path)
    model = load(case.folder)
    means = model.set_target_experts(target, case.inputs)
    assert sum(means) / 2 == pytest.approx(target, rel=0.02)
    counts = [(weight_TK > 0).sum(-1).double().mean().item() for _, weight_TK, _ in routed(model, case.inputs)]
    assert counts == pytest.approx(means)


def test_a_layer_by_token_id_keeps_its_experts_in_a_budget(tmp_path, program, dtopp_binary, remote_code):
    case = Case("dtop_p_hash_layers", program("dtopp_parity"), tmp_path)
    model = load(case.folder)
    K = model.config.router_top_k
    means = model.set_target_experts(K + 1, case.inputs)
    assert means[0] == K and sum(means) / 2 == pytest.approx(K + 1, rel=0.02)
    with pytest.raises(ValueError, match=f"expected a number from {(K + 1) / 2:g} to {(K + 8) / 2:g}"):
        model.set_target_experts((K + 1) / 2 - 0.1, case.inputs)


def test_one_budget_has_the_threshold_that_the_program_finds(dtop_p):
    """Checks with the program's own solution of p on the same tokens, through a checkpoint that has this p."""
    model = load(dtop_p.folder)
    model.set_target_experts(4, dtop_p.inputs)
    config = json.loads((dtop_p.folder / "config.json").read_text())
    config["router_thresholds"] = model.config.router_thresholds
    changed = dtop_p.directory / "changed"
    model.save_pretrained(changed)
    done = tiny_run.dtopp("convert", "from-hf", changed, dtop_p.directory / "solved")
    assert done.returncode == 0, done.stderr
    state = load_file(dtop_p.directory / "solved/router.safetensors")
    assert state["threshold_C"][0].item() == model.config.router_thresholds[0]
    histogram = sum(dtop_p.dtopp("fp32", dtop_p.directory / "solved")[f"active_histogram/{layer}"] for layer in range(2))
    mean = (histogram * torch.arange(len(histogram))).sum() / histogram.sum()
    assert mean.item() == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("thresholds", [[7, 0.5], [0.5, -1], [0.5, 1], [0, 0.5]])
def test_thresholds_out_of_range_are_refused(dtop_p, tmp_path, thresholds):
    folder = shutil.copytree(dtop_p.folder, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"router_thresholds": thresholds}))
    done = tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "here")
    assert_refused(done, 2, ["config.json", "router_thresholds", "between 0 and 1"])


def test_a_budget_of_all_experts_goes_to_a_checkpoint(dtop_p, tmp_path):
    model = load(dtop_p.folder)
    model.set_target_experts([8, 8], dtop_p.inputs)
    model.save_pretrained(tmp_path / "hf")
    done = tiny_run.dtopp("convert", "from-hf", tmp_path / "hf", tmp_path / "here")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", [0.5, 9, [3], [2, 3, 4]])
def test_a_budget_that_cannot_be_is_refused(dtop_p, target):
    with pytest.raises(ValueError, match="target_experts: expected a number from 1 to 8, or one for each of 2 layers"):
        load(dtop_p.folder).set_target_experts(target, dtop_p.inputs)


@pytest.fixture(scope="module")
def with_text(dtopp_binary, tmp_path_factory, remote_code):
    """A folder with a tokenizer, and the run it was converted from."""
    directory = tmp_path_factory.mktemp("text")
    run = tiny_language_run.train(directory, "dtop_p", 64)
    return to_hf(run, directory / "hf"), run


HARD = ["", " ", "  two  spaces\n\n\tand\ttabs ", "don't I'll THEY'RE", "naïve café e\u0301", "漢字 and かな", "🙂👩‍👩‍👧 x", "1234567890 3.14",
        "<|endoftext|>", "a<|endoftext|>b <|padding|>", "\u200b\u00a0zero\ufeff", "<p>&amp;</p> \\ \"quoted\"", "end. \n"]


def test_the_tokenizer_is_the_checkpoints(with_text):
    folder, run = with_text
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizers.Tokenizer.from_file(str(sorted((run / "checkpoints").iterdir())[-1] / "tokenizer.json"))
    for text in HARD:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert theirs(text)["input_ids"] == ids, text
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False), text
    assert theirs.eos_token == theirs.pad_token == "<|endoftext|>"
    assert theirs.model_max_length == 64


def test_the_page_runs_without_questions_and_warnings(with_text, tmp_path):
    (tmp_path / "quickstart-hf").symlink_to(with_text[0])
    code = re.search(r"^```python\n(.*?)^```", (tiny_run.ROOT / "docs/how-to/hugging-face.md").read_text(), re.M | re.S)[1]
    done = run_as_user(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The captain")


def test_a_pipeline_writes_what_generate_writes(with_text):
    folder, run = with_text
    pipe = transformers.pipeline("text-generation", model=str(folder), trust_remote_code=True)
    prompt = "The fog came down"
    text = pipe(prompt, max_new_tokens=8, do_sample=False)[0]["generated_text"]
    done = tiny_run.dtopp("generate", run, "--prompt", prompt, "--temperature", 0, "--max-tokens", 8)
    assert done.returncode == 0, done.stderr
    assert text.removeprefix(prompt).strip() == done.stdout.removeprefix(prompt).strip()
