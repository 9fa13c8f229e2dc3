"""Weighted sources: their shares and epochs in the metrics, and the same bits after a stop and on several
processes."""

import json
import shutil

import numpy as np
import pytest
import tiny_diffusion_run
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

WINDOW = 32


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixture")
    for folder, samples, first in (("web", 20, 0), ("code", 5, 64), ("books", 200, 128)):
        (directory / folder).mkdir()
        ids = first + np.random.default_rng(first).integers(0, 64, samples * WINDOW + 1)
        ids.astype("<u2").tofile(directory / folder / "train.npy")
    return tiny_run.trained(directory, *overrides(directory))


def overrides(directory):
    sources = ", ".join(f"{{path: {directory}/{name}/train.npy, weight: {weight}}}"
                        for name, weight in (("web", 6), ("code", 3), ("books", 1)))
    held_out = ", ".join(f"{{path: {directory}/{name}/train.npy, name: {name}_train}}" for name in ("books", "web", "code"))
    return [f"data.train=[{sources}]", f"data.validation=[{held_out}]", "training.micro_batch_size=1"]


def test_shares_and_epochs_are_reported(reference):
    lines = [line for line in tiny_run.metrics(reference / "run") if "train/loss" in line]
    for line in lines:
        samples = 4 * line["step"]
        for name, weight, size in (("web_train", 0.6, 20), ("code_train", 0.3, 5), ("books_train", 0.1, 200)):
            share = line[f"data/{name}/share"]
            assert abs(share * samples - weight * samples) <= 1
            assert line[f"data/{name}/epoch"] == pytest.approx(share * samples / size, rel=1e-12)
    assert not any(key.startswith("data/") for key in tiny_run.metrics(reference / "run")[0])


def test_a_stopped_run_goes_on_to_the_bit(reference, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(reference / "run", run)
    shutil.rmtree(run / "checkpoints/step-00000012")
    shutil.rmtree(run / "checkpoints/step-00000008")
    done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), f"output={run}")
    assert done.returncode == 0 and "step-00000004" in done.stderr
    assert tiny_run.state(run, 12) == tiny_run.state(reference / "run", 12)
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(reference / "run"))


def test_processes_give_the_same_bits(reference, tmp_path):
    done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), f"output={tmp_path}/run", "--processes", 4)
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(reference / "run", 12)
    assert tiny_run.timeless(tiny_run.metrics(tmp_path / "run")) == tiny_run.timeless(tiny_run.metrics(reference / "run"))


def test_sources_are_validated_by_themselves(reference, tmp_path):
    """A source's loss is that of a run on it alone, with the same parameters: those before the first step."""
    together = tiny_run.metrics(reference / "run")[0]
    weights = {"web": 0.6, "code": 0.3, "books": 0.1}
    # validation.tokens (256) are those of each source; `code` has 5 windows of 32 tokens.
    tokens = {"web": 256, "code": 160, "books": 256}
    for name in weights:
        done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), f"output={tmp_path}/{name}",
                              f"data.validation={reference}/{name}/train.npy", "training.steps=3")
        assert done.returncode == 0, done.stderr
        alone = tiny_run.metrics(tmp_path / name)[0]
        assert not any(f"{other}_train" in key for other in weights for key in alone)
        for key in ("loss", "active_experts", "active_experts_std", "token_mean_std"):
            assert together[f"val/{name}_train/{key}"] == alone[f"val/{key}"]
    for key, shares in (("val/loss", tokens), ("val/mixture_loss", weights)):
        mean = sum(share * together[f"val/{name}_train/loss"] for name, share in shares.items()) / sum(shares.values())
        assert together[key] == pytest.approx(mean, rel=1e-12)


def test_other_weights_are_another_run(reference):
    changed = [overrides(reference)[0].replace("weight: 6", "weight: 5"), *overrides(reference)[1:]]
    done = tiny_run.dtopp("train", reference / "run.yaml", *changed)
    assert_refused(done, 2, "data.train")


def test_sources_without_weights_are_one_whatever_the_form(tmp_path):
    plain = tiny_run.trained(tmp_path / "a", "validation.every=0")
    path = plain / "train.npy"
    done = tiny_run.dtopp("train", plain / "run.yaml", "validation.every=0", f"data.train=[{{path: {path}}}]",
                          f"output={tmp_path}/run")
    assert done.returncode == 0
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(plain / "run", 12)


@pytest.mark.parametrize("sources, names", [
    ("[{path: a, weight: 0}]", ["data.train", "weight of a"]), ("[{path: a, weight: -1}]", ["data.train", "weight of a"]),
    ("[{path: a, weight: .inf}]", "data.train[0].weight"),
    ("[{path: a, weight: 1}, {path: ./a, weight: 2}]", ["data.train", "./a"]), ("[{weight: 1}]", ["data.train[0]", "path"]),
    ("[{path: a, share: 1}]", "data.train[0].share")])
def test_sources_that_cannot_be_are_refused(tmp_path, sources, names):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), f"data.train={sources}"), 2, names)


def test_a_source_that_is_too_short_is_named(reference):
    np.zeros(WINDOW, "<u2").tofile(reference / "short.npy")
    done = tiny_run.dtopp("train", reference / "run.yaml",
                          f"data.train=[{{path: {reference}/short.npy, weight: 1}}, {reference}/web/train.npy]",
                          f"output={reference}/other")
    assert_refused(done, 3, "short.npy")


def test_a_held_out_source_that_is_too_short_is_named(reference):
    np.zeros(WINDOW, "<u2").tofile(reference / "short.npy")
    done = tiny_run.dtopp("train", reference / "run.yaml", f"data.validation=[{reference}/short.npy, {reference}/web/train.npy]",
                          f"output={reference}/other")
    assert_refused(done, 3, "short.npy")


def test_state_of_the_run_holds_the_position_alone(reference):
    state = json.loads((reference / "run/checkpoints/step-00000012/state.json").read_text())
    assert state["sample_position"] == 48


def test_pictures_have_mixtures_too(tmp_path):
    config = tiny_diffusion_run.make(tmp_path)
    mixed = [f"data.train=[{{path: {tmp_path}/train, weight: 3}}, {{path: {tmp_path}/validation, weight: 1}}]",
             f"data.validation=[{tmp_path}/validation, {tmp_path}/train]"]
    done = tiny_run.dtopp("train", config, *mixed)
    assert done.returncode == 0, done.stderr
    last = tiny_run.metrics(tmp_path / "run")[-2]
    assert (last["data/train/share"], last["data/validation/share"]) == (0.75, 0.25)
    assert last["data/train/epoch"] == pytest.approx(36 / 21) and last["data/validation/epoch"] == pytest.approx(12 / 13)
    held_out = tiny_run.metrics(tmp_path / "run")[-1]
    assert held_out["val/mixture_loss"] == pytest.approx(
        0.75 * held_out["val/train/loss"] + 0.25 * held_out["val/validation/loss"], rel=1e-12)
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    whole = tmp_path / "again"
    assert tiny_run.dtopp("train", config, *mixed, f"output={whole}").returncode == 0
    assert tiny_run.dtopp("train", config, *mixed).returncode == 0
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(whole, 12)


ORACLE = ["routing.method=top_k", "routing.experts=2", "routing.top_k_by_source={web_train: 1, code_train: 3, books_train: 5}"]


@pytest.fixture(scope="module")
def oracle(reference):
    """A run in which each source has its own K: 1 to 5, 2 in the weighted mean."""
    done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), *ORACLE, f"output={reference}/oracle")
    assert done.returncode == 0, done.stderr
    return reference / "oracle"


def test_a_source_has_the_experts_that_it_was_given(oracle):
    lines = tiny_run.metrics(oracle)
    for line in (line for line in lines if "val/loss" in line):
        for name, experts in (("web", 1), ("code", 3), ("books", 5)):
            assert line[f"val/{name}_train/active_experts"] == experts
            assert line[f"val/{name}_train/active_experts_std"] == 0
    steps = [line for line in lines if "train/loss" in line]
    before = 0
    for line in steps:
        samples = 4 * line["step"]
        pairs = sum(experts * round(samples * line[f"data/{name}_train/share"])
                    for name, experts in (("web", 1), ("code", 3), ("books", 5)))
        assert line["moe/active_experts"] == pytest.approx((pairs - before) / 4, rel=1e-12)
        before = pairs
    assert len({line["moe/active_experts"] for line in steps}) > 1


def test_experts_by_source_are_the_same_on_processes_and_after_a_stop(reference, oracle, tmp_path):
    shutil.copytree(oracle, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped/checkpoints/step-00000012")
    for run, options in (("stopped", []), ("four", ["--processes", 4])):
        done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), *ORACLE, f"output={tmp_path}/{run}", *options)
        assert done.returncode == 0, done.stderr
        assert tiny_run.state(tmp_path / run, 12) == tiny_run.state(oracle, 12)
        assert tiny_run.timeless(tiny_run.metrics(tmp_path / run)) == tiny_run.timeless(tiny_run.metrics(oracle))


def test_equal_experts_of_all_sources_are_top_k(reference, tmp_path):
    """But for rounding: the gates are sums in another order."""
    equal = "routing.top_k_by_source={web_train: 2, code_train: 2, books_train: 2}"
    for run, options in (("plain", ORACLE[:2]), ("equal", [*ORACLE[:2], equal])):
        done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), *options, f"output={tmp_path}/{run}")
        assert done.returncode == 0, done.stderr
    lines = [tiny_run.timeless(tiny_run.metrics(tmp_path / run)) for run in ("equal", "plain")]
    for got, expected in zip(*lines, strict=True):
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("changed, names", [
    (["routing.method=dtop_p"], "routing.method: top_k"),
    (["routing.top_k_by_source={other: 1}"], "other"),  # besides the three
    (["data.train=[{path: a, weight: 1, name: more}]"], "source more"),
    (["routing.top_k_by_source={web_train: 1, code_train: 3, books_train: 9}"], "books_train"),
    (["routing.top_k_by_source=[1]"], "routing.top_k_by_source"), (["data.train=[a, b]"], "data.train"),
    (["data.validation=[a, b]"], "source a"), (["validation.tasks=[copa]"], "validation.tasks")])
def test_experts_by_source_that_cannot_be_are_refused(reference, tmp_path, changed, names):
    done = tiny_run.dtopp("train", reference / "run.yaml", *overrides(reference), *ORACLE, *changed, f"output={tmp_path}/run")
    assert_refused(done, 2, ["routing.top_k_by_source", names])


def test_text_without_a_source_is_refused(reference, oracle):
    done = tiny_run.dtopp("evaluate", "text", oracle, "--text", reference / "web/train.npy")
    assert_refused(done, 2, "routing.top_k_by_source")
