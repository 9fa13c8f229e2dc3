"""Tests evaluate experts against the plain PyTorch model."""

import json
import os
import re

import numpy as np
import pytest
import reference_model
import tiny_language_run
import tiny_run
import tokenizers
import torch
from needs import needs_program
from refusal import assert_refused
from scipy import stats

pytestmark = needs_program
LENGTH = 32


@pytest.fixture(scope="module", params=["dtop_p", "dtop_p_layer"])
def run(request, tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp(request.param), request.param, LENGTH)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_language_run.TEXT * 2 + "Caf\u00e9s in 1984, antidisestablishmentarianism!")
    return path


def analyse(run, text, *options):
    done = tiny_run.dtopp("evaluate", "experts", run, "--text", text, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reference_counts(run, text):
    """The active experts of each token in the windows, [tokens, layers], and the selected gates, [layers,
    experts]."""
    reference = tiny_language_run.Reference(run)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_language_run.TOKENIZER))
    ids = tokenizer.encode(text.read_text()).ids + [0]
    active, load = [], 0
    for start in range(0, len(ids) - 1, LENGTH):
        window = ids[start:start + LENGTH]
        window = window[:len(ids) - 1 - start]
        with torch.no_grad():
            _, routing = reference_model.forward(reference.config, reference.parameters, torch.tensor([window]),
                                                 reference.thresholds)
        chosen = torch.stack([layer["gates"].reshape(len(window), -1) != 0 for layer in routing])
        active.append(chosen.sum(-1).T)
        load = load + chosen.sum(1)
    return torch.cat(active), load


def test_layers_and_experts_are_the_reference_models(run, text, tmp_path):
    result = json.loads(analyse(run, text, "--json", "--output", tmp_path / "out.json"))
    assert json.loads((tmp_path / "out.json").read_text()) == result
    active, load = reference_counts(run, text)
    assert result["tokens"] == len(active)
    assert result["mean"] == pytest.approx(active.double().mean().item(), abs=1e-9)
    assert result["deviation"] == pytest.approx(active.double().std(correction=0).item(), abs=1e-9)
    for n, layer in enumerate(result["layers"]):
        assert layer["layer"] == n
        assert layer["mean"] == pytest.approx(active[:, n].double().mean().item(), abs=1e-9)
        experts = load.shape[1]
        assert layer["histogram"] == torch.bincount(active[:, n], minlength=experts + 1).tolist()
        assert layer["expert_load"] == pytest.approx((load[n] / len(active)).tolist(), abs=1e-6)


def test_each_text_has_a_file_of_its_own_in_a_folder(run, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(tiny_language_run.TEXT)
    folder = tmp_path / "results"
    folder.mkdir()
    results = [json.loads(analyse(run, text, "--json", "--output", folder, *options)) for options in ([], ["--text", other])]
    assert {path.name: json.loads(path.read_text()) for path in folder.iterdir()} == {
        "experts-text-step-00000004.json": results[0], "experts-text+other-step-00000004.json": results[1]}
    assert results[1]["texts"] == [str(text), str(other)]
    file = folder / "experts-text-step-00000004.json"
    done = tiny_run.dtopp("evaluate", "experts", run, "--text", other, "--output", file)
    assert_refused(done, 2, file)
    assert json.loads(file.read_text()) == results[0]


def test_the_progress_ends_at_100_percent(run, text):
    done = tiny_run.dtopp("evaluate", "experts", run, "--text", text)
    assert re.search(r"experts +100%", done.stderr), done.stderr


def test_kinds_divide_the_tokens(run, text):
    result = json.loads(analyse(run, text, "--json"))
    active, _ = reference_counts(run, text)
    for name in ("frequency", "position", "part_of_word"):
        kinds = result["tokens_by"][name]
        assert sum(kind["tokens"] for kind in kinds) == result["tokens"]
        total = sum(kind["tokens"] * kind["mean"] for kind in kinds)
        assert total == pytest.approx(result["tokens"] * result["mean"], rel=1e-9)
    positions = {kind["kind"]: kind for kind in result["tokens_by"]["position"]}
    first = active[::LENGTH].double()
    assert positions["0"]["tokens"] == len(first)
    assert positions["0"]["mean"] == pytest.approx(first.mean().item(), abs=1e-9)
    assert positions["0"]["layer_means"] == pytest.approx(first.mean(0).tolist(), abs=1e-9)
    words = {kind["kind"] for kind in result["tokens_by"]["part_of_word"]}
    assert {"whole word", "beginning of a word", "rest of a word", "number", "punctuation", "white space"} <= words


def reference_losses(run, texts):
    """Each token's experts over all layers, loss, window, source and id, from the plain model."""
    reference = tiny_language_run.Reference(run)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_language_run.TOKENIZER))
    rows, windows = [], 0
    for source, text in enumerate(texts):
        ids = tokenizer.encode(text.read_text()).ids + [0]
        for start in range(0, len(ids) - 1, LENGTH):
            window = torch.tensor(ids[start:start + LENGTH + 1])
            with torch.no_grad():
                logits, routing = reference_model.forward(reference.config, reference.parameters, window[None, :-1],
                                                          reference.thresholds)
            experts = sum((layer["gates"].reshape(len(window) - 1, -1) != 0).sum(-1) for layer in routing)
            losses = -logits[0].log_softmax(-1).gather(-1, window[1:, None])[:, 0]
            rows += [(*row, windows, source) for row in zip(experts.tolist(), losses.tolist(), window[:-1].tolist())]
            windows += 1
    experts, losses, ids, windows, sources = map(np.array, zip(*rows))
    return experts, losses, windows, sources, ids


def tenths(values):
    """Ten groups by rank; equal values have the rank of their middle."""
    middle = stats.rankdata(values, "average") - 0.5
    return np.minimum((10 * middle / len(values)).astype(int), 9)


def assert_relates(result, experts, losses, windows, layers):
    if len(set(experts)) == 1 or len(experts) < 2:
        assert result["spearman"] is None
    else:
        assert result["spearman"] == pytest.approx(stats.spearmanr(experts, losses).statistic, abs=2e-3)
    group = tenths(experts)
    assert len(result["groups"]) == len(set(group))
    for got, own in zip(result["groups"], sorted(set(group))):
        chosen = group == own
        assert (got["least"], got["most"]) == pytest.approx((experts[chosen].min() / layers, experts[chosen].max() / layers))
        assert got["tokens"] == chosen.sum()
        mean = losses[chosen].mean()
        assert got["nll"] == pytest.approx(mean, abs=1e-4)
        sums = np.array([(losses[chosen & (windows == w)] - mean).sum() for w in set(windows[chosen])])
        if len(sums) == 1:
            assert got["standard_error"] is None
        else:  # the standard error of a mean of sums, per token
            error = stats.sem(sums) * len(sums) / chosen.sum()
            assert got["standard_error"] == pytest.approx(error, rel=1e-3, abs=1e-6)


def test_losses_by_experts_are_those_of_the_reference_model(run, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Nobody spoke, and the silence came down with the fog. " * 20)
    command = ["evaluate", "experts", run, "--text", text, "--text", other]
    # One thread for each process: threads decide the last bits of sums.
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = tiny_run.dtopp(*command, "--json", env=one_thread)
    assert done.returncode == 0, done.stderr
    analysis = json.loads(done.stdout)
    experts, losses, windows, sources, ids = reference_losses(run, [text, other])
    layers = len(analysis["layers"])
    assert analysis["tokens"] == len(experts) and analysis["nll"] == pytest.approx(losses.mean(), abs=1e-5)
    result = analysis["nll_by_experts"]
    assert_relates(result, experts, losses, windows, layers)
    occurrences = np.array([(ids == one).sum() for one in ids])
    kinds = {"source": sources, "frequency": tenths(occurrences)}
    assert result["within"].keys() == kinds.keys()
    for by, kind in kinds.items():
        within = result["within"][by]
        assert len(within["kinds"]) == len(set(kind))
        for got, own in zip(within["kinds"], sorted(set(kind))):
            chosen = kind == own
            assert got["tokens"] == chosen.sum()
            assert_relates(got, experts[chosen], losses[chosen], windows[chosen], layers)
        weights = [(got["spearman"], got["tokens"]) for got in within["kinds"] if got["spearman"] is not None]
        values, tokens = zip(*weights)
        assert within["spearman"] == pytest.approx(np.average(values, weights=tokens))
    names = [kind["kind"] for kind in result["within"]["source"]["kinds"]]
    assert names == ["text", "other"]
    if tiny_run.DEVICE == "cpu":  # two ranks need a device each
        assert json.loads(tiny_run.dtopp(*command, "--json", "--processes", 2, env=one_thread).stdout) == analysis
    table = tiny_run.dtopp(*command).stdout
    assert f"Spearman's rank correlation of experts and nll: {result['spearman']:.3f}" in table


def test_batches_do_not_change_it(run, text):
    one, five = (json.loads(analyse(run, text, "--json", "--batch-size", size)) for size in ("1", "5"))
    assert one.pop("nll") == pytest.approx(five.pop("nll"), rel=1e-5)
    assert one.pop("nll_by_experts").keys() == five.pop("nll_by_experts").keys()  # the last bits of losses differ
    assert one == five


def test_the_table_shows_layers_and_kinds(run, text):
    table = analyse(run, text)
    assert "layer" in table and "whole word" in table and "rank 1-10" in table


def test_a_dense_model_has_none(tmp_path):
    dense = tiny_language_run.train(tmp_path, "dense", LENGTH)
    assert_refused(tiny_run.dtopp("evaluate", "experts", dense, "--text", tmp_path / "source.txt"), 2, "dense")
