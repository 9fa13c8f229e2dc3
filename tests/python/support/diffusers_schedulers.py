"""diffusers' schedulers with the times of dtopp's samplers."""

import numpy as np
import pytest
import torch

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
