"""Tests `dtopp train` on a diffusion transformer against the plain PyTorch trainer, and against itself for
other micro-batches and interruptions."""

import io
import os
import pathlib
import shutil

import PIL.Image
import pytest
import reference_diffusion
import tiny_diffusion_run
import tiny_run
import torch
from needs import for_cpus
from refusal import assert_refused

FIRST, LAST = 3, 12
CASES = {
    "pixels": ("pixels", []),
    "pixels_expert_normalization": ("pixels", ["routing.expert_normalization=running"]),
    "pixels_dense_ddpm": ("pixels", ["model.num_experts=1", "diffusion.objective=ddpm", "diffusion.timesteps=uniform",
                                     "diffusion.flip=false", "loss.load_balance=0", "loss.dynamic=0"]),
    "latents_with_text": ("latents", ["model.text_length=4", "model.text_size=6", "routing.scope=layer",
                                      "routing.experts=[2, 5]"]),
}


def train(directory, kind, *overrides):
    done = tiny_run.dtopp("train", tiny_diffusion_run.make(directory, kind), *overrides)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_on_prepared_data_agree_with_the_reference(name, dtopp_binary, tmp_path):
    kind, overrides = CASES[name]
    train(tmp_path, kind, "checkpoint.every=1", *overrides)
    checkpoints = tmp_path / "run/checkpoints"
    trainer = tiny_diffusion_run.Trainer(checkpoints / f"step-{FIRST - 1:08d}")
    config, pictures = trainer.config, tiny_diffusion_run.Pictures(kind, 21, seed=1)
    lines = {line["step"]: line for line in tiny_run.metrics(tmp_path / "run") if "train/loss" in line}
    size = config["training"]["global_batch_size"]
    for step in range(FIRST, LAST + 1):
        positions = range((step - 1) * size, step * size)
        draws = [reference_diffusion.draw_training(config, i, pictures.count) for i in positions]
        report = trainer.step(pictures.batch(config, draws, positions[0]))
        assert report["margin"] > 1e-7, f"step {step}: a token lies on the threshold; take another seed"
        line = lines[step]
        assert line["train/loss"] == pytest.approx(report["total"], rel=1e-4), step
        assert line["train/diffusion_loss"] == pytest.approx(report["diffusion"], rel=1e-4), step
        assert line["train/grad_norm"] == pytest.approx(report["grad_norm"], rel=1e-3), step
        if "active_experts" in report:
            assert line["moe/active_experts"] == pytest.approx(report["active_experts"], rel=1e-9), step
    last = tiny_diffusion_run.Trainer(checkpoints / f"step-{LAST:08d}")
    for key, tensor in trainer.parameters.items():
        got = last.parameters[key].detach()
        assert (got - tensor.detach()).norm() / tensor.detach().norm().clamp_min(1e-9) < 1e-3, key


def test_validation_depends_on_seed_and_picture_alone(dtopp_binary, tmp_path):
    """Another micro-batch, and more pictures after these, leave the losses by timestep unchanged."""
    train(tmp_path, "pixels", "training.steps=6")
    whole = [line for line in tiny_run.metrics(tmp_path / "run") if "val/loss" in line][-1]
    assert [f"val/loss_t{n}" in whole for n in range(10)] == [True] * 10
    trainer = tiny_diffusion_run.Trainer(tmp_path / "run/checkpoints/step-00000006")
    pictures = tiny_diffusion_run.Pictures("pixels", 13, seed=2)
    draws = [reference_diffusion.draw_validation(trainer.config, i) for i in range(13)]
    with torch.no_grad():
        _, _, sample_loss, _ = reference_diffusion.losses(trainer.config, trainer.parameters,
                                                          pictures.batch(trainer.config, draws, 0),
                                                          trainer.controller.thresholds())
    assert whole["val/loss"] == pytest.approx(sample_loss.mean().item(), rel=1e-4)
    for bucket in range(10):
        of_bucket = [loss.item() for loss, d in zip(sample_loss, draws) if d["group"] == bucket]
        assert whole[f"val/loss_t{bucket}"] == pytest.approx(sum(of_bucket) / len(of_bucket), rel=1e-4), bucket
    train(tmp_path, "pixels", "training.steps=6", f"output={tmp_path}/other", "validation.tokens=160",
          "training.micro_batch_size=4", "loss.batch_statistics=global")
    ten = [line for line in tiny_run.metrics(tmp_path / "other") if "val/loss" in line][0]
    first = [line for line in tiny_run.metrics(tmp_path / "run") if "val/loss" in line][0]  # before the first step
    of_ten = {d["group"]: i for i, d in enumerate(draws[:10])}
    alone = [bucket for bucket in range(10) if sum(d["group"] == bucket for d in draws) == 1]
    assert len(of_ten) == 10 and len(alone) == 7
    for bucket in alone:
        assert ten[f"val/loss_t{bucket}"] == pytest.approx(first[f"val/loss_t{bucket}"], rel=1e-5)


def grids(run):
    return {path.name: path.read_bytes() for path in (run / "samples").iterdir()}


GRIDS = ["diffusion.samples_every=8", "diffusion.sample_classes=[1, 3]"]  # plus one after the last step


@for_cpus
@pytest.mark.parametrize("cut", [["--processes", "4"], ["--processes", "2", "parallel.expert_parallel=2"],
                                 *tiny_run.in_full(["--processes", "2"], ["--processes", "4", "parallel.expert_parallel=2"])])
def test_ranks_train_to_the_same_bits(cut, dtopp_binary, tmp_path):
    every = [*GRIDS, "training.micro_batch_size=1"]
    train(tmp_path, "pixels", *every)
    train(tmp_path, "pixels", *every, f"output={tmp_path}/ranks", *cut)
    assert grids(tmp_path / "ranks") == grids(tmp_path / "run")
    assert tiny_run.state(tmp_path / "ranks", 12) == tiny_run.state(tmp_path / "run", 12)
    assert (tiny_run.timeless(tiny_run.metrics(tmp_path / "ranks")) == tiny_run.timeless(tiny_run.metrics(tmp_path / "run")))


@pytest.mark.parametrize("lost", [[8, 12], [12]])  # stopped before a grid, or after the step of a grid
def test_a_resumed_run_goes_on_to_the_same_bits(dtopp_binary, tmp_path, lost):
    train(tmp_path, "pixels", *GRIDS)
    assert len(tiny_run.state(tmp_path / "run", 12)) == 5, "an average is kept"
    expected = grids(tmp_path / "run")
    assert expected.keys() == {"step-00000008.png", "step-00000012.png"}
    for grid in expected.values():
        assert len(PIL.Image.open(io.BytesIO(grid)).convert("RGB").getcolors(1 << 20)) > 100
    shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped/samples")
    for step in lost:
        shutil.rmtree(tmp_path / f"stopped/checkpoints/step-{step:08d}")
    train(tmp_path, "pixels", *GRIDS, f"output={tmp_path}/stopped")
    assert grids(tmp_path / "stopped") == expected
    assert tiny_run.state(tmp_path / "stopped", 12) == tiny_run.state(tmp_path / "run", 12)


@pytest.mark.parametrize("override, names", [
    ("model.image_size=16", ["3 x 8 x 8", "3 x 16 x 16"]),
    ("model.channels=1", ["3 x 8 x 8", "1 x 8 x 8"]),
    ("model.num_classes=4", ["5 classes", "model.num_classes 4"]),
    ("model.text_length=2", "model.text_size"),
])
def test_a_model_that_does_not_fit_the_data_is_refused(override, names, dtopp_binary, tmp_path):
    assert_refused(tiny_run.dtopp("train", tiny_diffusion_run.make(tmp_path), override), 2, names)
    assert not pathlib.Path(tmp_path / "run").exists()


def test_verify_reads_known_data_again(dtopp_binary, tmp_path):
    train(tmp_path, "pixels", "training.steps=4")
    shard = next((tmp_path / "train").glob("*.safetensors"))
    status, content = shard.stat(), bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = tiny_run.dtopp("train", tmp_path / "run.yaml", "training.steps=4", f"output={tmp_path}/other", "--verify")
    assert_refused(done, 3, shard.name)
