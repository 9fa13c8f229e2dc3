"""Tests dtopp sample: its pictures against the plain PyTorch model under diffusers' schedulers, and its output files; its samplers Euler,
Heun and DDIM step by step, with and without guidance."""

import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
import reference_diffusion
import start
import tiny_diffusion
import tiny_run
import torch
from manifests import write_manifest
from needs import needs_program
from PIL import Image
from refusal import assert_refused
from safetensors.torch import load_file, save_file

diffusers = pytest.importorskip("diffusers")


def flow_times(steps):
    return np.float64(1) - np.arange(steps) / steps


def euler(steps):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(sigmas=flow_times(steps).tolist())
    return scheduler


def heun(steps):
    """Each time but the first occurs twice. diffusers' own grid ends at 1 / 1000, so these times replace it."""
    scheduler = diffusers.FlowMatchHeunDiscreteScheduler()
    scheduler.set_timesteps(steps)
    times = torch.from_numpy(flow_times(steps)).float()
    scheduler.timesteps = 1000 * torch.cat([times[:1], times[1:].repeat_interleave(2)])
    sigmas = torch.cat([times, torch.zeros(1)])
    scheduler.sigmas = torch.cat([sigmas[:1], sigmas[1:-1].repeat_interleave(2), sigmas[-1:]])
    return scheduler


def ddim(steps):
    scheduler = diffusers.DDIMScheduler(beta_start=1e-4, beta_end=0.02, beta_schedule="linear", clip_sample=False,
                              timestep_spacing="leading")
    scheduler.set_timesteps(steps)
    return scheduler


SCHEDULERS = {"euler": euler, "heun": heun, "ddim": ddim}


pytestmark = needs_program
torch.set_num_threads(1)

DENSE = {"num_experts": 1}
CASES = {"flow": {}, "ddpm": {"model": DENSE, "diffusion": {"objective": "ddpm"}},
         "text": {"model": DENSE | tiny_diffusion.TEXT}}


def made(tmp_path_factory, name, **sections):
    return tiny_diffusion.randomize(tiny_diffusion.train(tmp_path_factory.mktemp(name), **sections))


@pytest.fixture(scope="module")
def pixels(tmp_path_factory):
    return made(tmp_path_factory, "pixels")


@pytest.fixture(scope="module", params=CASES)
def latents(request, tmp_path_factory):
    sections = CASES[request.param]
    return request.param, made(tmp_path_factory, request.param, **sections | {
        "model": tiny_diffusion.LATENT | sections.get("model", {})})


def sample(directory, output, *arguments, status=0):
    done = tiny_run.dtopp("sample", directory / "run", "--output", output, "--threads", 1, *arguments)
    assert done.returncode == status, done.stderr
    return done


def arrays(directory, tmp_path, *arguments):
    output = tmp_path / "out.npz"
    sample(directory, output, *arguments)
    with np.load(output) as archive:
        return dict(archive)


def reference(directory, method, steps, guidance, interval, conditions, seed, weights):
    """The model's pictures for the conditions, one per condition."""
    model = tiny_diffusion.Reference(directory, weights)
    none = {"class": torch.full_like(conditions["class"], model.config["model"]["num_classes"])} \
        if "class" in conditions else {"text": torch.zeros_like(conditions["text"])}
    count = len(next(iter(conditions.values())))
    shape = (count, *[model.config["model"][key] for key in ("channels", "image_size", "image_size")])
    x = torch.from_numpy(np.stack([reference_diffusion.normals(seed, "sample", j, int(np.prod(shape[1:])))
                                   for j in range(count)])).double().view(shape)

    def predict(t, condition):
        times = torch.full((count,), t, dtype=torch.float32)
        return reference_diffusion.forward(model.config, model.parameters, x_in, times, condition, model.thresholds)[0]

    scheduler = SCHEDULERS[method](steps)
    for step in scheduler.timesteps:
        t, x_in = round(step.item() / 1000, 6), x
        v = predict(t, conditions)
        if interval[0] <= t <= interval[1]:
            empty = predict(t, none)
            v = empty + guidance * (v - empty)
        x = scheduler.step(v, step, x).prev_sample
    return x


def in_own_units(x):
    scale, shift = (torch.tensor(values, dtype=torch.float64)[:, None, None]
                    for values in (tiny_diffusion.SCALE, tiny_diffusion.SHIFT))
    return x / scale + shift


@pytest.mark.parametrize("raw", [True, False])
def test_latents_are_the_reference_models(latents, raw, tmp_path):
    name, directory = latents
    options = ["--raw"] if raw else []
    if name == "text":
        text = torch.from_numpy(np.random.default_rng(3).normal(size=(2, 2, 6))).to(torch.float16)
        save_file({"text": text}, tmp_path / "text.safetensors")
        options += ["--text-embeddings", tmp_path / "text.safetensors"]
        padded = torch.nn.functional.pad(text.double(), (0, 0, 0, 1))
        conditions = {"text": padded[[0, 1, 0, 1, 0]]}
    else:
        options += ["--classes", "2,0"]
        conditions = {"class": torch.tensor([2, 0, 2, 0, 2])}
    if name == "flow" and not raw:
        pytest.skip("its thresholds are solved: test_the_average_uses_as_many_experts_as_wanted")
    for method, guidance, interval in (("euler", 1.5, (0, 1)), ("heun", 2, (0.3, 0.8))) if name != "ddpm" else \
            (("ddim", 1.5, (0.1, 0.7)),):
        got = arrays(directory, tmp_path, *options, "--sampler", method, "--steps", 5, "--guidance", guidance, "--seed", 7,
                     "--guidance-interval", f"{interval[0]},{interval[1]}", "--count", 5, "--batch-size", 2)
        want = reference(directory, method, 5, guidance, interval, conditions, 7, "model" if raw else "ema")
        assert got["arr_0"].dtype == np.float32
        scale = in_own_units(want).abs().amax().item()
        np.testing.assert_allclose(got["arr_0"] / scale, in_own_units(want) / scale, atol=2e-5)
        assert ("arr_1" in got) == (name != "text")
        if "arr_1" in got:
            assert got["arr_1"].dtype == np.int64 and got["arr_1"].tolist() == conditions["class"].tolist()


def test_a_picture_does_not_depend_on_those_beside_it(pixels, tmp_path):
    options = ["--raw", "--steps", 4, "--classes", "0,2,1"]
    few = arrays(pixels, tmp_path, *options, "--count", 5, "--batch-size", 2)
    many = arrays(pixels, tmp_path, *options, "--count", 9, "--batch-size", 16)
    assert few["arr_0"].shape == (5, 8, 8, 3) and few["arr_0"].dtype == np.uint8
    assert np.abs(few["arr_0"].astype(int) - many["arr_0"][:5]).max() <= 1
    assert many["arr_1"].tolist() == [0, 2, 1] * 3
    other = arrays(pixels, tmp_path, *options, "--count", 5, "--seed", 1)
    assert np.abs(few["arr_0"].astype(int) - other["arr_0"]).mean() > 10


def test_folders_and_grids_hold_the_same_pictures(pixels, tmp_path):
    options = ["--raw", "--steps", 2, "--count", 5, "--classes", "2,0"]
    pictures = arrays(pixels, tmp_path, *options)["arr_0"]
    sample(pixels, tmp_path / "folder", *options)
    names = sorted(path.name for path in (tmp_path / "folder").iterdir())
    assert names == [f"{j:05d}.png" for j in range(5)]
    for name, picture in zip(names, pictures):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "folder" / name)), picture)
    sample(pixels, tmp_path / "grid.png", *options)
    grid = np.asarray(Image.open(tmp_path / "grid.png"))
    zoom, gap, label = 8, 2, 12
    assert grid.shape == (gap + 2 * (64 + label + gap), gap + 3 * (64 + gap), 3)
    for j, picture in enumerate(pictures):
        top, left = gap + j % 2 * (64 + label + gap), gap + j // 2 * (64 + gap)
        assert np.array_equal(grid[top:top + 64:zoom, left:left + 64:zoom], picture)
        assert (grid[top + 64:top + 64 + label, left:left + 64] == 0).any()  # the class's name
    assert (grid[gap + 64 + label + gap:, gap + 2 * (64 + gap):] == 255).all()  # the second class has one picture fewer


def experts(done):
    return float(re.search(r"([\d.]+) of 8 experts per token", done.stderr).group(1))


def test_the_average_uses_as_many_experts_as_wanted(pixels, tmp_path):
    options = ["--count", 12, "--steps", 10, "--guidance", 3]
    assert experts(sample(pixels, tmp_path / "a.png", *options)) == pytest.approx(3, rel=0.03)  # the run's target
    for kind in ([], ["--raw"]):
        done = sample(pixels, tmp_path / "a.png", *options, *kind, "--target-experts", 5)
        assert experts(done) == pytest.approx(5, rel=0.03)
    assert abs(experts(sample(pixels, tmp_path / "a.png", *options, "--raw")) - 3) > 0.2  # the checkpoint's p


def test_thresholds_do_not_depend_on_how_many_pictures_are_made(pixels, tmp_path):
    one = arrays(pixels, tmp_path, "--steps", 3, "--count", 2)["arr_0"]
    more = arrays(pixels, tmp_path, "--steps", 3, "--count", 7)["arr_0"]
    assert np.abs(one.astype(int) - more[:2]).max() <= 1


@pytest.mark.parametrize("arguments, names", [
    (["--count", 0], "--count"),
    (["--count", 1, "--classes", "3"], ["--classes", "0 to 2"]),
    (["--count", 1, "--classes", "-1"], ["--classes", "0 to 2"]),
    (["--count", 1, "--sampler", "ddim"], ["--sampler", "ddpm"]),
    (["--count", 1, "--text-embeddings", "x"], "--text-embeddings"),
    (["--count", 1, "--target-experts", 9], ["--target-experts", "8"]),
    (["--count", 1, "--guidance", 1, "--guidance-interval", "0,1"], "--guidance-interval"),
    (["--count", 1, "--guidance", "nan"], ["--guidance", "nan"]),
    (["--count", 1, "--guidance-interval", "nan,0.5"], ["--guidance-interval", "nan"]),
    (["--count", 1, "--sampler", "rk4"], ["--sampler", "rk4", "ddim|euler|heun"]),
    (["--count", 100000], "100000"),
    (["--count", 1, "--guidance-interval", "0.5,0.2"], "--guidance-interval"),
])
def test_a_wrong_call_is_told_in_one_line(pixels, arguments, names, tmp_path):
    assert_refused(sample(pixels, tmp_path / "a.png", *arguments, status=2), 2, names)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_overwritten_by_a_folder(pixels, tmp_path):
    (tmp_path / "folder").mkdir()
    assert_refused(sample(pixels, tmp_path / "folder", "--count", 1, status=2), 2, tmp_path / "folder")
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize("name", ["a.png", "a.npz"])
def test_a_file_in_a_missing_folder_is_refused_before_it_is_computed(pixels, name, tmp_path):
    assert_refused(sample(pixels, tmp_path / "none" / name, "--count", 1, status=2), 2, ["--output", tmp_path / "none"])


def test_latents_are_no_pictures(latents, tmp_path):
    name, directory = latents
    if name == "text":
        assert_refused(sample(directory, tmp_path / "a.npz", "--count", 1, status=2), 2, "--text-embeddings")
        return
    for output in ("a.png", "folder"):
        assert_refused(sample(directory, tmp_path / output, "--count", 1, status=2), 2, "latents")


def test_each_type_of_model_has_its_verbs(pixels, tmp_path):
    assert_refused(tiny_run.dtopp("generate", pixels / "run", "--prompt", "a"), 2, "use sample")
    (tmp_path / "text.txt").write_text("a")
    for task in (["text", "--text", tmp_path / "text.txt"], ["experts", "--text", tmp_path / "text.txt"],
                 ["tasks", "--data", tmp_path]):
        assert_refused(tiny_run.dtopp("evaluate", task[0], pixels / "run", *task[1:]), 2, "use sample")
    language = tiny_run.trained(tmp_path / "language", "training.steps=2", "optimizer.warmup_steps=1", "validation.every=0")
    for verb in (["sample", language / "run", "--count", 1, "--output", tmp_path / "a.png"],
                 ["evaluate", "images", language / "run", "--images", pixels / "held-out"]):
        assert_refused(tiny_run.dtopp(*verb), 2, "use generate")


def test_a_checkpoint_without_its_average_or_layout_is_damaged(pixels, tmp_path):
    for name in ("ema.safetensors", "images.json"):
        shutil.copytree(pixels, tmp_path / name)
        (tiny_diffusion.checkpoint_of(tmp_path / name) / name).unlink()
        write_manifest(tiny_diffusion.checkpoint_of(tmp_path / name), "dtopp checkpoint 1")
        assert_refused(sample(tmp_path / name, tmp_path / "a.png", "--count", 1, status=4), 4, name)


def test_a_model_that_diverges_is_said_to(pixels, tmp_path):
    done = sample(pixels, tmp_path / "a.png", "--raw", "--count", 2, "--guidance", "1e38", "--steps", 3, status=6)
    assert_refused(done, 6, alone=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["a.png", "a.npz", "folder"])
def test_a_stopped_run_leaves_nothing(pixels, output, tmp_path):
    command = [tiny_run.BINARY, "sample", pixels / "run", "--raw", "--count", "2000", "--output", tmp_path / output]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        while not list(tmp_path.iterdir()):
            time.sleep(0.02)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 75, running.stderr.read()
    assert not list(tmp_path.iterdir())


NOISE = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3, 4, 4)).astype(np.float32))
CLASSES = torch.tensor([0, 1, 2, 3, 7])


def model(x, t, classes):
    """The model of tests/tools/sampler_steps.cpp."""
    return (3 * x + 5 * t).sin() + classes[:, None, None, None] * x / 10


def guided(x, t, guidance, interval):
    given = model(x, t, CLASSES)
    if not interval[0] <= t <= interval[1]:
        return given
    none = model(x, t, torch.zeros_like(CLASSES))
    return none + guidance * (given - none)


def diffusers_steps(method, steps, guidance, interval):
    """Returns x after each step."""
    scheduler, x, results = SCHEDULERS[method](steps), NOISE, []
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(guided(x, round(t.item() / 1000, 6), guidance, interval), t, x).prev_sample
        if method != "heun" or i % 2 == 1 or i + 1 == len(scheduler.timesteps):
            results.append(x)
    return torch.stack(results)


@pytest.mark.parametrize("guidance, interval", [(1, (0, 1)), (4, (0, 1)), (2.5, (0.25, 0.8)), (0, (0, 1))])
@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("method", SCHEDULERS)
def test_every_step_is_the_schedulers(method, steps, guidance, interval, program, tmp_path):
    save_file({"noise": NOISE, "class": CLASSES}, tmp_path / "in.safetensors")
    done = start.run([program("sampler_steps"), method, *map(str, (steps, guidance, *interval)),
                      tmp_path / "in.safetensors", tmp_path / "out.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, theirs = load_file(tmp_path / "out.safetensors")["steps"], diffusers_steps(method, steps, guidance, interval)
    assert ours.shape == theirs.shape == (steps, *NOISE.shape)
    scale = theirs.abs().amax((1, 2, 3, 4), keepdim=True).clamp_min(1)
    torch.testing.assert_close(ours / scale, theirs / scale, atol=1e-5, rtol=0)
