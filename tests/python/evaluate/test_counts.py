"""`evaluate text --counts` gives tokens other numbers of experts, and several `--text` are measured each on its own."""

import json
import os

import numpy as np
import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused
from safetensors.numpy import load_file

pytestmark = needs_program

WINDOW = 32
SIZES = {"a": 300, "b": 150}  # tokens of each source
PERMUTED = ["permuted:layer", "permuted:source", "permuted:window"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tiny_run.trained(tmp_path_factory.mktemp("counts"), "validation.every=0", "model.init_std=0.2")
    for name, size in SIZES.items():
        np.random.default_rng(size).integers(0, 256, size).astype("<u2").tofile(directory / f"{name}.npy")
    return directory


def evaluate(directory, *options, texts=tuple(SIZES), run="run"):
    # One thread for each process: threads decide the last bits of sums.
    several = [option for name in texts for option in ("--text", directory / f"{name}.npy")]
    return tiny_run.dtopp("evaluate", "text", directory / run, *several, "--json", "--batch-size", 2, *options,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})


def result(directory, *options, **how):
    done = evaluate(directory, *options, **how)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def windows():
    """The columns of each window's tokens in a dump, by source."""
    first, sources = 0, []
    for size in SIZES.values():
        sources.append([range(first + begin, first + min(begin + WINDOW, size - 1)) for begin in range(0, size - 1, WINDOW)])
        first += size
    return sources


def groups_of(rule):
    """The columns among which a rule moves numbers."""
    if rule == "permuted:window":
        return [list(window) for source in windows() for window in source]
    sources = [[column for window in source for column in window] for source in windows()]
    return sources if rule == "permuted:source" else [sum(sources, [])]


def selection(directory, tmp_path, *options):
    """Each layer's chosen experts, [tokens, experts], and the result."""
    measured = result(directory, *options, "--dump-routing", tmp_path / "dump")
    return [layer for _, layer in sorted(load_file(tmp_path / "dump").items())], measured


def test_a_source_has_the_loss_of_its_own_evaluation(trained):
    together = result(trained)
    assert [source["source"] for source in together["sources"]] == list(SIZES)
    for source in together["sources"]:
        alone = result(trained, texts=[source["source"]])
        assert source["nll"] == alone["nll"] and source["tokens"] == alone["tokens"] == SIZES[source["source"]] - 1
        assert "sources" not in alone
    tokens = sum(SIZES.values()) - 2
    assert together["tokens"] == tokens
    mean = sum(source["nll"] * source["tokens"] for source in together["sources"]) / tokens
    assert together["nll"] == pytest.approx(mean, rel=1e-12)
    assert together == result(trained, "--processes", 2)


def test_counts_as_they_are_change_nothing(trained):
    assert result(trained, "--counts", "as-is") == result(trained)


@pytest.mark.parametrize("rule", PERMUTED)
def test_a_permutation_moves_the_numbers_of_a_layer_within_its_groups(trained, tmp_path, rule):
    own, as_is = selection(trained, tmp_path)
    moved, permuted = selection(trained, tmp_path, "--counts", rule)
    before, after = ([layer.sum(1) for layer in layers] for layers in (own, moved))
    for group in groups_of(rule):
        for layer_before, layer_after in zip(before, after):
            assert sorted(layer_before[group]) == sorted(layer_after[group])
    assert any((one != other).any() for one, other in zip(before, after))
    if rule != "permuted:layer":  # numbers stay in their group, but some leave every smaller one
        assert permuted["nll"] != as_is["nll"]
    # The first layer's scores are the same, so that a token's sets of likeliest experts are nested.
    assert ((own[0] & moved[0]).sum(1) == np.minimum(before[0], after[0])).all()
    assert permuted["counts"] == rule and permuted["counts_seed"] == 1
    assert result(trained, "--replay-routing", tmp_path / "dump")["nll"] == permuted["nll"]


def test_uniform_counts_are_the_mean_rounded_up_or_down(trained, tmp_path):
    own, _ = selection(trained, tmp_path)
    even, _ = selection(trained, tmp_path, "--counts", "uniform")
    used = groups_of("permuted:layer")[0]
    before = np.stack([layer.sum(1)[used] for layer in own])
    after = np.stack([layer.sum(1)[used] for layer in even])
    assert after.sum() == before.sum()
    assert set(np.unique(after)) == {before.sum() // before.size, before.sum() // before.size + 1}
    assert len(np.unique(before)) > 2


@pytest.mark.parametrize("rule", ["uniform", *PERMUTED])
def test_processes_permute_alike_and_seeds_do_not(trained, rule):
    one = result(trained, "--counts", rule)
    assert result(trained, "--counts", rule, "--processes", 2) == one
    assert result(trained, "--counts", rule, "--counts-seed", 2)["nll"] != one["nll"]


@pytest.mark.parametrize("rule", ["uniform", "permuted:source"])
def test_equal_counts_stay_as_they_are(trained, rule):
    """With Top-k, every token has the same number: the result is that of its own router, but for rounding."""
    done = tiny_run.dtopp("train", trained / "run.yaml", "validation.every=0", "routing.method=top_k", f"output={trained}/top-k")
    assert done.returncode == 0, done.stderr
    counted, plain = result(trained, "--counts", rule, run="top-k"), result(trained, run="top-k")
    assert counted["nll"] == pytest.approx(plain["nll"], rel=1e-6)
    assert [source["active_experts"] for source in counted["sources"]] == [3, 3]


def test_options_that_exclude_each_other_are_refused(trained):
    for options in (["--counts", "other"], ["--counts", "uniform", "--sweep-target", "2"], ["--counts-seed", "3"],
                    ["--counts", "uniform", "--by-document"]):
        assert evaluate(trained, *options).returncode == 2
    assert_refused(evaluate(trained, texts=["a", "a"]), 2, ["--text", "a.npy"])


def test_a_source_without_a_token_to_predict_is_named(trained):
    np.zeros(1, "<u2").tofile(trained / "one.npy")
    assert_refused(evaluate(trained, texts=["a", "one"]), 3, "one.npy")


def test_a_dense_model_has_no_counts(trained):
    dense = ["model.num_experts=1", "loss.load_balance=0", "loss.dynamic=0", "validation.every=0", f"output={trained}/dense"]
    assert tiny_run.dtopp("train", trained / "run.yaml", *dense).returncode == 0
    assert_refused(evaluate(trained, "--counts", "uniform", run="dense"), 2, "dense")
