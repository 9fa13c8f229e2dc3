"""Tests Euler, Heun and DDIM against diffusers' schedulers, step by step, with and without guidance."""


import numpy as np
import pytest
import start
import torch
from diffusers_schedulers import SCHEDULERS
from safetensors.torch import load_file, save_file

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
