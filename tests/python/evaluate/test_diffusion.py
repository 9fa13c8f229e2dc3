"""Tests evaluate images against the plain PyTorch model and against training's own validation;
also the dump, and the comparison of two dumps."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import reference_diffusion
import tiny_diffusion
import tiny_run
import torch
from needs import for_cpus, needs_program
from refusal import assert_refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

pytestmark = needs_program
torch.set_num_threads(1)

CASES = {"dtop_p": {}, "dense_ddpm": {"model": {"num_experts": 1}, "diffusion": {"objective": "ddpm"}},
         "top_p_latent_text": {"model": tiny_diffusion.LATENT | tiny_diffusion.TEXT,
                               "routing": {"method": "top_p", "threshold": 0.5}}}


@pytest.fixture(scope="module", params=CASES)
def directory(request, tmp_path_factory):
    return tiny_diffusion.train(tmp_path_factory.mktemp(request.param), steps=6, **CASES[request.param])


@pytest.fixture(scope="module")
def random(directory, tmp_path_factory):
    """A copy of the run with other weights."""
    copy = tmp_path_factory.mktemp("random") / directory.name
    shutil.copytree(directory, copy)
    return tiny_diffusion.randomize(copy)


def evaluate(directory, *arguments, status=0):
    done = tiny_run.dtopp("evaluate", "images", directory / "run", "--images", directory / "held-out",
                          "--json", "--threads", 1, *arguments)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done


def reference(directory, count, weights="model"):
    """Returns (batch, prediction, loss per image, experts per image and layer)."""
    model = tiny_diffusion.Reference(directory, weights)
    seen = tiny_diffusion.as_seen(load_file(directory / "held-out/images-00000.safetensors"), model.config["model"])
    draws = [reference_diffusion.draw_validation(model.config, i) for i in range(count)]
    batch = reference_diffusion.make_batch(model.config, seen, draws, 0)
    batch = {name: t.double() if t.is_floating_point() and name != "t" else t for name, t in batch.items()}
    with torch.no_grad():
        _, prediction, losses, layers = reference_diffusion.losses(model.config | {"loss": LOSS}, model.parameters, batch,
                                                                   model.thresholds)
    tokens = reference_diffusion.tokens_of(model.config["model"])
    chosen = torch.stack([layer["gates"].ne(0).sum(1).view(count, tokens).double().mean(1) for layer in layers], 1) \
        if layers else None
    return batch, draws, prediction, losses, chosen


LOSS = {"load_balance": 0.0, "dynamic": 0.0, "router_z": 0.0, "router_z_on": "raw"}


def test_losses_and_experts_are_the_reference_models(random):
    result = evaluate(random, "--batch-size", 7)
    batch, draws, _, losses, chosen = reference(random, 25)
    assert result["images"] == 25
    assert result["loss"] == pytest.approx(losses.mean().item(), rel=2e-5)
    groups = np.array([draw["group"] for draw in draws])
    for bucket in range(10):
        assert result[f"loss_t{bucket}"] == pytest.approx(losses[groups == bucket].mean().item(), rel=2e-5)
    if chosen is None:
        assert "active_experts" not in result
        assert result["ema_loss"] == pytest.approx(reference(random, 25, "ema")[3].mean().item(), rel=2e-5)
        return
    assert result["active_experts"] == pytest.approx(chosen.mean().item(), rel=1e-3)
    assert result["active_experts_by_layer"]["all"] == pytest.approx(chosen.mean(0).tolist(), rel=1e-3)
    for bucket in range(10):
        of_bucket = chosen[groups == bucket]
        assert result[f"active_experts_t{bucket}"] == pytest.approx(of_bucket.mean().item(), rel=1e-3)
        assert result["active_experts_by_layer"][f"t{bucket}"] == pytest.approx(of_bucket.mean(0).tolist(), rel=1e-3)


def test_the_average_uses_the_experts_it_was_trained_for(random):
    result = evaluate(random)
    if "dtop_p" in str(random) and "top_p_" not in str(random):
        assert result["ema_active_experts"] == pytest.approx(3, rel=0.01)
        assert abs(result["active_experts"] - 3) > 0.2
        for target in (2, 5):
            solved = evaluate(random, "--target-experts", target)
            assert solved["ema_active_experts"] == pytest.approx(target, rel=0.01)
            assert solved["active_experts"] == pytest.approx(target, rel=0.01)
    elif "top_p_" in str(random):  # its p is given, not solved
        assert result["ema_loss"] == pytest.approx(reference(random, 25, "ema")[3].mean().item(), rel=2e-5)


def test_numbers_are_those_of_trainings_validation(directory):
    line = [line for line in tiny_run.metrics(directory / "run") if "val/loss" in line][-1]
    result = evaluate(directory)
    for name, value in line.items():
        if name.startswith("val/") and "layer_" not in name:
            assert result[name.removeprefix("val/")] == pytest.approx(value, rel=1e-5), name
    assert "val/ema_loss" in line and "val/loss_t9" in line


def test_fewer_images_are_the_first_ones(random):
    assert evaluate(random, "--limit", 3)["loss"] == pytest.approx(reference(random, 3)[3].mean().item(), rel=2e-5)
    assert evaluate(random, "--limit", 3)["images"] == 3


def test_folders_and_limits_have_files_of_their_own_in_a_folder(random, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    results = [evaluate(random, "--output", folder, *options) for options in ([], ["--limit", 3])]
    names = ["images-held-out-step-00000006.json", "images-first-3-held-out-step-00000006.json"]
    assert {path.name: json.loads(path.read_text()) for path in folder.iterdir()} == dict(zip(names, results))
    assert results[0]["folder"] == str(random / "held-out")
    done = tiny_run.dtopp("evaluate", "images", random / "run", "--images", random / "held-out", "--limit", 3, "--output",
                          folder / names[0])
    assert_refused(done, 2, folder / names[0])


def test_the_dump_holds_what_was_asked_and_answered(random, tmp_path):
    evaluate(random, "--dump", tmp_path / "dump.safetensors", "--batch-size", 4)
    dump = load_file(tmp_path / "dump.safetensors")
    batch, _, prediction, _, _ = reference(random, 25)
    for name in ("x0", "noise", "t"):
        torch.testing.assert_close(dump[name], batch[name].float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(dump["prediction"], prediction.float(), rtol=1e-4,
                               atol=2e-5 * prediction.abs().max().item())
    condition = batch["class"] if "class" in batch else batch["text"].float()
    assert torch.equal(dump["condition"], condition)
    with safe_open(tmp_path / "dump.safetensors", "np") as file:
        assert file.metadata()["objective"] == tiny_diffusion.Reference(random).config["diffusion"]["objective"]


@for_cpus
def test_ranks_give_the_same_bytes(random):
    def bytes_of(*arguments):
        done = tiny_run.dtopp("evaluate", "images", random / "run", "--images", random / "held-out", "--json",
                              "--threads", 1, "--batch-size", 4, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert bytes_of("--processes", 2) == bytes_of()


@pytest.mark.parametrize("arguments, option", [
    (["--images"], "--images"),
    (["--images", "DIR", "--text", "x"], "'--text'"),
    (["--images", "DIR", "--sweep-target", "2"], "'--sweep-target'"),
    (["--images", "DIR", "--paper"], "'--paper'"),
    ([], "--images"),
])
def test_a_wrong_call_is_told_in_one_line(random, arguments, option):
    arguments = [random / "held-out" if a == "DIR" else a for a in arguments]
    assert_refused(tiny_run.dtopp("evaluate", "images", random / "run", *arguments), 2, option)


def test_images_of_other_classes_are_refused(random, tmp_path):
    model = tiny_diffusion.Reference(random).config["model"]
    if not model["num_classes"]:
        pytest.skip("it has none")
    tiny_diffusion.write_images(tmp_path / "other", model, 4, seed=3, classes=["apple", "bee", "car"])
    for images, status in (("other", 2), ("nothing", 3)):
        done = tiny_run.dtopp("evaluate", "images", random / "run", "--images", tmp_path / images)
        assert_refused(done, status, tmp_path / images)


def compare(*arguments):
    script = tiny_run.ROOT / "scripts/compare_dumps.py"
    return subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True)


def write_dump(path, x0, noise, error, t):
    """Writes a dump in which image i has the loss error[i]²."""
    save_file({"x0": x0, "noise": noise, "t": t, "prediction": noise - x0 + error[:, None, None, None]}, path,
              {"objective": "flow"})


@pytest.fixture(scope="module")
def two_dumps(tmp_path_factory):
    """Two dumps of 100 images. The second model is better by 0.1 ± 0.02 per image, while images differ by far
    more."""
    folder, rng = tmp_path_factory.mktemp("dumps"), np.random.default_rng(4)
    x0, noise = (torch.from_numpy(rng.normal(size=(100, 3, 4, 4)).astype(np.float32)) for _ in range(2))
    t = torch.linspace(0, 1, 100)
    loss = torch.from_numpy(rng.uniform(1, 3, 100).astype(np.float32))
    gain = torch.from_numpy(rng.normal(0.1, 0.02, 100).astype(np.float32))
    write_dump(folder / "a.safetensors", x0, noise, loss.sqrt(), t)
    write_dump(folder / "b.safetensors", x0, noise, (loss - gain).sqrt(), t)
    write_dump(folder / "other.safetensors", x0, noise + 1, loss.sqrt(), t)
    return folder, gain.double()


def test_two_dumps_are_compared_image_by_image(two_dumps):
    folder, gain = two_dumps
    done = compare(folder / "a.safetensors", folder / "b.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["images"] == 100
    assert result["difference"] == pytest.approx(-gain.mean().item(), abs=1e-5)
    half = 1.96 * gain.std().item() / 10  # half width of the mean's normal interval
    assert result["low"] == pytest.approx(-gain.mean().item() - half, abs=0.15 * half)
    assert result["high"] == pytest.approx(-gain.mean().item() + half, abs=0.15 * half)
    assert compare(folder / "a.safetensors", folder / "b.safetensors", "--json").stdout == done.stdout
    same = json.loads(compare(folder / "a.safetensors", folder / "a.safetensors", "--json").stdout)
    assert same["difference"] == same["low"] == same["high"] == 0


def test_dumps_of_other_noise_are_refused(two_dumps):
    folder, _ = two_dumps
    assert_refused(compare(folder / "a.safetensors", folder / "other.safetensors"), 2, "noise", begins="compare_dumps: ")
    assert_refused(compare(folder / "a.safetensors", folder / "absent.safetensors"), 2, "absent", begins="compare_dumps: ")
