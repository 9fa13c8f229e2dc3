"""`evaluate text --dump-routing` writes the router's selection; `--replay-routing` computes with a given
selection."""

import json

import numpy as np
import pytest
import reference_model
import tiny_run
import torch
from needs import needs_program
from refusal import assert_refused
from safetensors.torch import load_file, save_file

pytestmark = needs_program

TOKENS, WINDOW = 200, 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tiny_run.trained(tmp_path_factory.mktemp("replay"), "validation.every=0", "model.init_std=0.2")
    np.random.default_rng(5).integers(0, 256, TOKENS).astype("<u2").tofile(directory / "text.npy")
    return directory


def evaluate(directory, *options):
    return tiny_run.dtopp("evaluate", "text", directory / "run", "--text", directory / "text.npy", "--json",
                          "--batch-size", 2, *options)


def nll(directory, *options):
    done = evaluate(directory, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["nll"]


def reference(directory, selection=None):
    """The mean nll in double precision and each layer's selection. `selection`, {name: bool [T, E]}, replaces
    the router's."""
    config, parameters, _, state = reference_model.load_checkpoint(directory / "run/checkpoints/step-00000012", torch.float64)
    thresholds = reference_model.Controller(config, state).thresholds()
    ids = torch.from_numpy(np.fromfile(directory / "text.npy", "<u2").astype(np.int64))
    select, total, chosen = reference_model.select, 0.0, {}
    for begin in range(0, TOKENS - 1, WINDOW):
        window = ids[begin:begin + WINDOW + 1][None]
        layers_left = iter(sorted(selection)) if selection else None

        def given(P_TE, *_):
            return selection[next(layers_left)][begin:begin + len(P_TE)].to(P_TE.dtype), 1.0
        reference_model.select = given if selection else select
        try:
            with torch.no_grad():
                logits, layers = reference_model.forward(config, parameters, window[:, :-1], thresholds)
        finally:
            reference_model.select = select
        total -= logits.log_softmax(-1).gather(-1, window[:, 1:, None]).sum().item()
        for n, layer in enumerate(layers):
            chosen.setdefault(f"layer_{n:02d}", []).append(layer["gates"] > 0)
    return total / (TOKENS - 1), {name: torch.cat(parts) for name, parts in chosen.items()}


def test_a_dump_is_what_the_router_chose(trained, tmp_path):
    plain = nll(trained)
    assert nll(trained, "--dump-routing", tmp_path / "routing.safetensors") == plain
    dump = load_file(tmp_path / "routing.safetensors")
    expected, chosen = reference(trained)
    assert plain == pytest.approx(expected, rel=1e-5)
    assert sorted(dump) == sorted(chosen)
    for name, selection in dump.items():
        assert selection.dtype == torch.bool and torch.equal(selection, chosen[name])
    assert nll(trained, "--replay-routing", tmp_path / "routing.safetensors") == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_any_choice_is_replayed(trained, tmp_path, processes):
    generator = torch.Generator().manual_seed(3)
    selection = {f"layer_{n:02d}": torch.rand(TOKENS - 1, 8, generator=generator) < 0.4 for n in range(2)}
    for tensor in selection.values():
        tensor[:, 0] |= ~tensor.any(1)
        tensor[5] = True
    save_file(selection, tmp_path / "given.safetensors")
    expected, _ = reference(trained, selection)
    got = nll(trained, "--replay-routing", tmp_path / "given.safetensors", *processes)
    assert got == pytest.approx(expected, rel=1e-5) and got != pytest.approx(nll(trained), rel=1e-3)


def test_what_does_not_fit_is_refused(trained, tmp_path):
    file = tmp_path / "routing.safetensors"
    assert evaluate(trained, "--dump-routing", file).returncode == 0
    good = load_file(file)
    shorter = {name: tensor[:-1].contiguous() for name, tensor in good.items()}
    cases = [(shorter, ["layer_00", "[198, 8]"]), ({"layer_00": good["layer_00"]}, "layer_01"),
             ({name: tensor.float() for name, tensor in good.items()}, "F32"),
             (good | {"layer_02": good["layer_00"].clone()}, "3 tensors")]
    for tensors, names in cases:
        save_file(tensors, tmp_path / "bad.safetensors")
        assert_refused(evaluate(trained, "--replay-routing", tmp_path / "bad.safetensors"), 2, names)
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:-5])
    for name in ("cut.safetensors", "none.safetensors"):
        assert_refused(evaluate(trained, "--replay-routing", tmp_path / name), 3, name)


@pytest.mark.parametrize("options", [["--replay-routing", "x", "--target-experts", "2"],
                                     ["--replay-routing", "x", "--sweep-target", "2,3"],
                                     ["--dump-routing", "x", "--sweep-target", "2,3"],
                                     ["--dump-routing", "x", "--processes", "2"]])
def test_options_that_contradict_are_refused(trained, options):
    assert_refused(evaluate(trained, *options), 2, options[0])
    done = tiny_run.dtopp("evaluate", "experts", trained / "run", "--text", trained / "text.npy", *options[:2])
    assert_refused(done, 2, options[0])
