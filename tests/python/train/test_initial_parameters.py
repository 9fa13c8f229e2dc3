"""Runs that begin with the parameters of another method: from Top-k to DTop-p, and from a dense model to experts."""

import re

import numpy as np
import pytest
import tiny_run
from needs import for_cpus, needs_program
from refusal import assert_refused
from safetensors.numpy import load_file

pytestmark = [needs_program, for_cpus]

TOP_K = ["routing.method=top_k", "routing.normalization=fixed"]
DENSE = ["model.num_experts=1"]
DYNAMIC = ["routing.method=dtop_p", "routing.normalization=dynamic"]
# A step of the tokens that p is solved on: 512 samples of 32 tokens.
ALL_SOLVED = ["training.global_batch_size=512", "training.micro_batch_size=64"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Trained runs: Top-k with 3 of 8 experts and with all of them, and dense models with one and two times the FFN."""
    directory = tmp_path_factory.mktemp("sources")
    config = tiny_run.make(directory)
    for name, overrides in {"top_k": TOP_K, "all": [*TOP_K, "routing.experts=8"], "dense": DENSE,
                            "wide": [*DENSE, "model.ffn_hidden_size=32"]}.items():
        done = tiny_run.dtopp("train", config, *overrides, "optimizer.lr=3e-2", f"output={directory}/{name}")
        assert done.returncode == 0, done.stderr
    return directory


def start(sources, source, run, *overrides):
    return tiny_run.dtopp("train", sources / "run.yaml", f"training.initialize_from={sources}/{source}", f"output={run}", *overrides)


def last_loss(run):
    return [line["val/loss"] for line in tiny_run.metrics(run) if "val/loss" in line][-1]


def first_loss(run):
    first = tiny_run.metrics(run)[0]
    assert first["step"] == 0
    return first["val/loss"]


def solved_line(done):
    """The first thresholds and the measured mean in the log."""
    (found,) = re.findall(r"\(top_k, 3 experts\); dtop_p\w* starts at p = ([\d.]+)(?: to ([\d.]+))?, where the first "
                          r"16384 training tokens use ([\d.]+) experts", done.stderr)
    return [float(value) for value in found if value]


@pytest.mark.parametrize("target, options", [(3, []), (1.5, []), (6, ["--processes", "2"])])
def test_p_gives_the_first_step_its_budget(sources, tmp_path, target, options):
    done = start(sources, "top_k", tmp_path / "run", *DYNAMIC, *ALL_SOLVED, "training.steps=3", f"routing.experts={target}", *options)
    assert done.returncode == 0, done.stderr
    p, mean = solved_line(done)
    steps = [line for line in tiny_run.metrics(tmp_path / "run") if "moe/threshold" in line]
    assert steps[0]["moe/threshold"] == pytest.approx(p, abs=1e-6)
    assert steps[0]["moe/active_experts"] == pytest.approx(target, rel=2e-4)
    assert mean == pytest.approx(steps[0]["moe/active_experts"], abs=1e-4)
    # Eq. 6 from there.
    error = (target - steps[0]["moe/active_experts"]) / 8
    assert steps[1]["moe/threshold"] == pytest.approx(steps[0]["moe/threshold"] + 0.2 * error, abs=1e-9)


def test_p_of_a_layer_gives_each_layer_its_budget(sources, tmp_path):
    done = start(sources, "top_k", tmp_path / "run", *DYNAMIC, *ALL_SOLVED, "training.steps=3", "routing.scope=layer",
                 "routing.experts=[2, 5]", "routing.controller=solve")
    assert done.returncode == 0, done.stderr
    assert len(solved_line(done)) == 3
    (first, *_) = [line for line in tiny_run.metrics(tmp_path / "run") if "moe/threshold" in line]
    for layer, target in ((0, 2), (1, 5)):
        assert first[f"moe/layer_{layer:02}/active_experts"] == pytest.approx(target, rel=2e-4)


def test_the_same_experts_keep_their_gates(sources, tmp_path):
    """DTop-p with the budget of all experts has the loss of Top-k with all experts, and the other way."""
    done = start(sources, "all", tmp_path / "run", *DYNAMIC, "routing.experts=8")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert first_loss(tmp_path / "run") == pytest.approx(last_loss(sources / "all"), abs=1e-5)
    done = start(sources, "all", tmp_path / "back", *TOP_K, "routing.experts=8", "routing.normalization=dynamic",
                 f"training.initialize_from={tmp_path}/run")
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert first_loss(tmp_path / "back") == pytest.approx(last_loss(tmp_path / "run"), abs=1e-5)
    done = start(sources, "all", tmp_path / "none", *DYNAMIC, "routing.experts=8", "routing.normalization=none")
    assert "warning" in done.stderr and "routing.normalization" in done.stderr
    assert abs(first_loss(tmp_path / "none") - last_loss(sources / "all")) > 1e-4


def test_a_switched_run_resumes_with_the_same_bits(sources, tmp_path):
    run = tmp_path / "run"
    assert start(sources, "top_k", run, *DYNAMIC).returncode == 0
    whole = tiny_run.state(run, 12)
    (run / "checkpoints/step-00000012").rename(tmp_path / "away")
    done = start(sources, "top_k", run, *DYNAMIC)
    assert f"resuming from {run}/checkpoints/step-00000008" in done.stderr
    assert tiny_run.state(run, 12) == whole


@pytest.mark.parametrize("source, overrides", [
    ("dense", ["routing.experts=2", *TOP_K]),
    ("dense", ["routing.experts=2.5", *DYNAMIC]),
    ("dense", ["routing.method=hash", "routing.normalization=none", "loss.load_balance=0", "loss.dynamic=0"]),
    ("wide", ["routing.experts=2", *TOP_K]),
    ("wide", ["routing.experts=6", *TOP_K, "--processes", "2", "parallel.expert_parallel=2"]),
])
def test_experts_from_a_dense_model_have_its_loss(sources, tmp_path, source, overrides):
    done = start(sources, source, tmp_path / "run", *overrides)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr and "(dense)" in done.stderr
    assert first_loss(tmp_path / "run") == pytest.approx(last_loss(sources / source), abs=1e-5)
    assert last_loss(tmp_path / "run") < first_loss(tmp_path / "run")  # it learns from there


def test_means_of_expert_normalization_come_along(sources, tmp_path):
    running = "routing.expert_normalization=running"
    assert start(sources, "all", tmp_path / "first", *TOP_K, "routing.experts=8", running).returncode == 0
    again = [*TOP_K, "routing.experts=8", f"training.initialize_from={tmp_path}/first", "training.steps=4"]
    done = start(sources, "all", tmp_path / "second", *again, running)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert first_loss(tmp_path / "second") == pytest.approx(last_loss(tmp_path / "first"), abs=1e-5)
    state = load_file(tmp_path / "second/checkpoints/step-00000004/router.safetensors")
    assert state["normalization_steps"] == 12 + 4
    done = start(sources, "all", tmp_path / "none", *again)
    assert "warning" in done.stderr and "routing.expert_normalization" in done.stderr
    assert abs(first_loss(tmp_path / "none") - last_loss(tmp_path / "first")) > 1e-4


def test_gates_that_do_not_sum_to_1_are_pointed_out(sources, tmp_path):
    done = start(sources, "dense", tmp_path / "run", *TOP_K, "routing.renormalize=false")
    assert "warning" in done.stderr and "routing.renormalize" in done.stderr
    assert abs(first_loss(tmp_path / "run") - last_loss(sources / "dense")) > 1e-3


def test_noise_has_its_relative_size(sources, tmp_path):
    frozen = ["optimizer.lr=1e-30", "optimizer.min_lr=0", "optimizer.weight_decay=0", *TOP_K]
    for noise in (0, 0.1):
        assert start(sources, "dense", tmp_path / str(noise), *frozen, f"training.upcycle_noise={noise}").returncode == 0
    plain, noisy = (load_file(tmp_path / noise / "checkpoints/step-00000004/model.safetensors") for noise in ("0", "0.1"))
    dense = load_file(sources / "dense/checkpoints/step-00000012/model.safetensors")
    for name in plain:
        if "experts." not in name:
            assert np.array_equal(plain[name], noisy[name])
            continue
        copied = dense[name.replace("experts.", "") + ".weight"]
        assert all(np.array_equal(expert, copied) for expert in plain[name])
        ratio = (noisy[name] - plain[name]).std(axis=(1, 2)) / np.sqrt(np.mean(copied ** 2))
        assert ratio == pytest.approx(np.full(8, 0.0987), abs=0.01)  # a normal that is cut at 3 standard deviations


@pytest.mark.parametrize("source, overrides, tensor", [
    ("dense", [*TOP_K, "model.ffn_hidden_size=24"], "mlp.down_proj.weight is [32, 16] there and [32, 24] here"),
    ("wide", [*TOP_K, "model.num_experts=7"], "mlp.down_proj.weight is [32, 32] there and [32, 16] here"),
    ("dense", [*TOP_K, "model.shared_experts=1"], "mlp.shared_experts."),
    ("top_k", DENSE, "mlp.down_proj.weight is none there"),
])
def test_parameters_that_do_not_fit_are_refused(sources, tmp_path, source, overrides, tensor):
    assert_refused(start(sources, source, tmp_path / "run", *overrides), 2, ["training.initialize_from", tensor])
    assert not (tmp_path / "run").exists()


def test_a_scale_is_not_dropped(sources, tmp_path):
    assert start(sources, "top_k", tmp_path / "dtop_p", *DYNAMIC).returncode == 0
    done = start(sources, "top_k", tmp_path / "run", *TOP_K, f"training.initialize_from={tmp_path}/dtop_p")
    assert_refused(done, 2, ["mlp.gate.scale", "routing.normalization"])
