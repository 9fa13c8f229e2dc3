"""Tests that converted models need no shape that depends on data: a limit of experts per token, and compilation into one graph."""

import re

import numpy as np
import pytest
import tiny_run
import torch
from huggingface_folder import Case, load, logits_of, remote_code, routed, to_hf
from refusal import assert_refused
from transformers import StaticCache

BOUND = 2e-5
WINDOW = 32


@pytest.fixture(scope="module", params=["top_p", "relu", "expert_threshold"])
def case(request, dtopp_binary, program, tmp_path_factory, remote_code):
    return Case(request.param, program("dtopp_parity"), tmp_path_factory.mktemp(request.param))


def close(got, want):
    return (got - want).abs().max() <= BOUND * want.abs().max()


def counts(folder, inputs):
    """Experts per layer and token, [L, T]."""
    return torch.stack([(weight_TK != 0).sum(-1) for _, weight_TK, _ in routed(load(folder), inputs)])


def test_a_limit_that_no_token_reaches_changes_nothing(case, tmp_path):
    most = counts(case.folder, case.inputs).max().item()
    model = load(to_hf(case.checkpoint, tmp_path / "hf", "--max-experts", most))
    assert most < 8 and model.config.router_max_experts == model.config.num_experts_per_tok == most
    assert all(weight_TK.shape[1] == most for _, weight_TK, _ in routed(model, case.inputs))
    assert close(logits_of(model, case.inputs), case.logits())


def test_the_tokens_beyond_the_limit_are_counted_on_a_text(case, tmp_path):
    windows = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (6, WINDOW)))
    ids = torch.cat([windows.flatten(), torch.tensor([9])])
    ids.numpy().astype("<u2").tofile(tmp_path / "text.npy")
    done = tiny_run.dtopp("convert", "to-hf", case.checkpoint, tmp_path / "hf", "--max-experts", 4, "--text", tmp_path / "text.npy")
    assert done.returncode == 0, done.stderr
    used = counts(case.folder, windows)
    share = 100 * (used > 4).double().mean(-1)
    assert 0 < share.mean() < 100
    mean, most, cut, limit, layer, worst = re.match(
        r"experts +(\S+) per token, at most (\d+)\ncut +(\S+) % of tokens have more than (\d+) \(layer (\d+): (\S+) %\)\n",
        done.stdout).groups()
    assert float(mean) == pytest.approx(used.double().mean().item(), abs=1e-4)
    assert (int(most), int(limit), int(layer)) == (used.max(), 4, share.argmax())
    assert [float(cut), float(worst)] == pytest.approx([share.mean().item(), share.max().item()], abs=1e-4)
    assert counts(tmp_path / "hf", windows).max() == 4


def test_the_program_computes_the_same_with_the_limit(case, tmp_path):
    folder = to_hf(case.checkpoint, tmp_path / "hf", "--max-experts", 2 if case.case == "top_p" else 4)
    done = tiny_run.dtopp("convert", "from-hf", folder, tmp_path / "back")
    if case.case == "top_p":
        assert done.returncode == 0, done.stderr
        want = case.logits(tmp_path / "back")
        assert close(logits_of(load(folder), case.inputs), want) and not close(case.logits(), want)
    else:
        assert_refused(done, 2, "routing.max_experts")


@pytest.mark.parametrize("name, limit, words", [
    ("dtop_p", 2, "mean number"), ("dtop_p", 9, "8"), ("top_k", 4, "same number"), ("hash", 4, "same number"),
    ("dtop_p_zero_experts", 4, "zero_experts"), ("dense", 4, "dense")])
def test_a_limit_that_does_not_fit_is_refused(name, limit, words, tmp_path, program, dtopp_binary):
    checkpoint = Case(name, program("dtopp_parity"), tmp_path).checkpoint
    done = tiny_run.dtopp("convert", "to-hf", checkpoint, tmp_path / "limited", "--max-experts", limit)
    assert_refused(done, 2, ["--max-experts", words])


PROMPT, NEW, PROMPTS = 12, 4, 100


@pytest.mark.parametrize("name, backend", [
    ("dtop_p", "aot_eager"), ("dtop_p_zero_experts_that_copy", "aot_eager"), ("hash", "aot_eager"),
    *tiny_run.in_full(("dtop_p", "inductor"), ("top_k_bias", "inductor"), ("expert_threshold", "aot_eager"), ("relu", "aot_eager"))])
def test_a_hundred_prompts_need_two_graphs(name, backend, tmp_path, program, dtopp_binary, remote_code):
    """A graph for prompts and one for single tokens, each without a break."""
    model = load(Case(name, program("dtopp_parity"), tmp_path).folder)
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + NEW)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)

    def next_token(call, ids, first):
        position = torch.arange(first, ids.shape[1])[None]
        return call(input_ids=ids[:, first:], position_ids=position, past_key_values=cache).logits[:, -1]

    prompts = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (PROMPTS, 1, PROMPT)))
    with torch.no_grad():
        next_token(model, prompts[0], 0)  # allocates the cache
        torch._dynamo.utils.counters.clear()
        for number, ids in enumerate(prompts):
            with torch.compiler.set_stance("fail_on_recompile" if number > 0 else "default"):
                cache.reset()
                for first in (0, *range(PROMPT, PROMPT + NEW)):
                    logits = next_token(compiled, ids, first)
                    ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], -1)
            assert close(logits, logits_of(model, ids[:, :-1])[:, -1])
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]
