"""Compares ten optimizer steps of `dtopp train` with the reference, which resumes from the same checkpoint, and the reference's sampler with
published values and plain properties."""

import numpy as np
import pytest
import reference_model
import reference_sampler
import tiny_run
import torch

FIRST, LAST = 2, 11
COMMON = {
    "training.steps": 12, "checkpoint.every": 1, "checkpoint.keep": 0, "validation.every": 0,
    "logging.tensorboard": "false", "model.init_std": 0.1, "optimizer.lr": 0.02, "optimizer.weight_decay": 0.1,
    "loss.lm_z": 0.001, "loss.load_balance": 0.01, "loss.dynamic": 0.01, "loss.router_z": 0.001,
}
CASES = {
    "dense": {"model.num_experts": 1, "model.tie_embeddings": "false"},
    "top_k": {"routing.method": "top_k", "routing.experts": 2, "routing.normalization": "fixed"},
    "top_p": {"routing.method": "top_p", "routing.threshold": 0.5, "routing.normalization": "none"},
    "dtop_p": {},
    "dtop_p_rms": {"model.norm": "rms"},
    "dtop_p_layer": {"routing.scope": "layer", "routing.experts": "[2, 5]", "optimizer.grad_clip": 0.3},
    "dtop_p_z_of_normalized_logits": {"loss.router_z_on": "normalized", "loss.router_z": 0.1},
    "dtop_p_documents": {"model.attend_across_documents": "false", "data.end_of_text": 7},
    "top_k_expert_normalization": {"routing.method": "top_k", "routing.experts": 2, "routing.expert_normalization": "running"},
    "dtop_p_expert_normalization": {"routing.expert_normalization": "running", "model.zero_experts": 3},
    "dtop_p_muon": {"optimizer.method": "muon"},
    "dense_muon": {"optimizer.method": "muon", "model.num_experts": 1, "model.tie_embeddings": "false"},
    "dtop_p_whole_batch": {"loss.batch_statistics": "global", "loss.load_balance": 0.1},
}
REPORTED = {"total": "train/loss"} | {name: f"train/{name}_loss" for name in reference_model.LOSSES} | {
    "lr": "train/lr", "grad_norm": "train/grad_norm", "active_experts": "moe/active_experts",
    "token_mean_std": "moe/token_mean_std", "common_logit_share": "moe/common_logit_share"}


@pytest.fixture(scope="module", params=CASES)
def run(request, dtopp_binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    overrides = COMMON | CASES[request.param]
    done = tiny_run.dtopp("train", tiny_run.make(directory), *(f"{key}={value}" for key, value in overrides.items()))
    assert done.returncode == 0, done.stderr
    return directory


def checkpoint(directory, step):
    return directory / f"run/checkpoints/step-{step:08d}"


def test_ten_steps_agree_with_the_reference(run):
    trainer = reference_model.Trainer(checkpoint(run, FIRST - 1))
    config = trainer.config
    batch, seed = config["training"]["global_batch_size"], config["training"]["seed"]
    tokens = np.fromfile(run / "train.npy", "<u2")
    lines = {line["step"]: line for line in tiny_run.metrics(run / "run")}
    for step in range(FIRST, LAST + 1):
        windows = reference_sampler.samples(tokens, config["model"]["sequence_length"], seed, (step - 1) * batch, batch)
        report = trainer.step(torch.from_numpy(windows))
        assert report["margin"] > 1e-7, f"step {step}: a token lies on the threshold; take another seed"
        for name, key in REPORTED.items():
            if name in report:
                assert lines[step][key] == pytest.approx(report[name], rel=1e-4), f"step {step}: {key}"
        for n, p in enumerate(report.get("thresholds", [])):
            if config["routing"]["method"] != "top_k":
                assert lines[step][f"moe/layer_{n:02d}/threshold"] == pytest.approx(p, abs=1e-12), f"step {step}"
        compare_shares(config, lines[step], report.get("used"))
    compare_state(trainer, checkpoint(run, LAST))


def compare_shares(config, line, used):
    """The shares of token–layer pairs with 1, 2, 3-4 and 5-8 experts."""
    shares = {name: value for name, value in line.items() if name.startswith("moe/tokens_with/")}
    if used is None or config["routing"]["method"] == "top_k":
        assert not shares
        return
    ranges = {"1": (1, 1), "2": (2, 2), "3-4": (3, 4), "5-8": (5, 8)}
    assert shares == {f"moe/tokens_with/{name}": pytest.approx(sum(low <= n <= high for n in used) / len(used), abs=1e-12)
                      for name, (low, high) in ranges.items()}


def compare_state(trainer, path):
    _, parameters, moments, state = reference_model.load_checkpoint(path)
    assert sorted(parameters) == sorted(trainer.parameters)
    for want, got in ((trainer.parameters, parameters), (trainer.moments, moments)):
        for name, tensor in want.items():
            difference = (got[name].detach() - tensor.detach()).norm() / tensor.detach().norm()
            assert difference < 1e-3, name
    if trainer.config["model"]["num_experts"] > 1 and trainer.config["routing"]["method"] == "dtop_p":
        assert state["threshold_C"] == pytest.approx(trainer.controller.p, abs=1e-12)
    normalization = trainer.normalization
    if normalization.steps is not None:
        assert state["normalization_steps"] == normalization.steps == LAST
        for name, want in (("router_input_mean_LD", normalization.means), ("logit_square_LC", normalization.squares)):
            torch.testing.assert_close(torch.tensor(state[name], dtype=torch.float64), want, rtol=1e-3, atol=1e-5)


def test_samples_are_taken_in_the_order_of_the_seed(run):
    """Other windows give the reference other losses, so the agreement above is not by chance."""
    trainer = reference_model.Trainer(checkpoint(run, FIRST - 1))
    batch = trainer.config["training"]["global_batch_size"]
    tokens = np.fromfile(run / "train.npy", "<u2")
    windows = reference_sampler.samples(tokens, trainer.config["model"]["sequence_length"],
                                        trainer.config["training"]["seed"] + 1, (FIRST - 1) * batch, batch)
    report = trainer.step(torch.from_numpy(windows))
    line = next(line for line in tiny_run.metrics(run / "run") if line["step"] == FIRST)
    assert abs(line["train/lm_loss"] / report["lm"] - 1) > 1e-4


def test_philox_gives_the_published_values():
    """The known answers of the Random123 distribution (kat_vectors, philox4x32 10)."""
    ones = 0xFFFFFFFF
    pi_counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    pi_key = 0xA4093822 | 0x299F31D0 << 32
    assert reference_sampler.philox4x32((0, 0, 0, 0), 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert reference_sampler.philox4x32((ones,) * 4, ones | ones << 32) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6,
                                                                            0x6D5451FD)
    assert reference_sampler.philox4x32(pi_counter, pi_key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_every_epoch_takes_each_window_once_in_another_order():
    for size in (1, 2, 3, 37, 64, 65):
        orders = [[reference_sampler.permuted(i, epoch, size, seed=5) for i in range(size)] for epoch in (0, 1)]
        for order in orders:
            assert sorted(order) == list(range(size))
        assert size < 37 or orders[0] != orders[1]


def test_windows_overlap_by_the_one_token_that_is_only_a_target():
    tokens = np.arange(101)
    windows = reference_sampler.samples(tokens, 10, seed=1, first=0, count=10)
    assert sorted(windows[:, 0]) == list(range(0, 100, 10))
    assert all((np.diff(window) == 1).all() and len(window) == 11 for window in windows)
