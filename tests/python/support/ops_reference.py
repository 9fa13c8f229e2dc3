"""Inputs and double-precision PyTorch references for the tests of the ops."""

import os

import pytest
import torch

LIBRARY = os.path.abspath(os.environ.get("DTOPP_OPS", "build/release/lib/libdtopp_ops.so"))
CUDA_LIBRARY = os.path.join(os.path.dirname(LIBRARY), "libdtopp_cuda.so")
if os.environ.get("DTOPP_OPS") != "":  # empty: tests of the package in its plain form alone
    torch.ops.load_library(LIBRARY)
ops = torch.ops.dtopp

DEVICES = ["cpu"]
if torch.cuda.is_available() and os.path.exists(CUDA_LIBRARY):
    torch.ops.load_library(CUDA_LIBRARY)
    DEVICES.append("cuda")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=DEVICES)
def default_device(request):
    """Runs a test on each device. Tensors are created on it unless the test names another device."""
    if request.param == "cpu":
        yield request.param
        return
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


def close(actual, expected, dtype, scale=1.0):
    """Expects values within 1e-5 of the largest one in fp32, and within 2^-6 in bf16.

    A bf16 rounding changes a value by up to 2^-8 of it. Pre-activations are stored rounded, results are
    rounded, and gradients of a scaled loss are rounded twice."""
    bound = (1e-5 if dtype in (torch.float32, torch.float64) else 2.0**-6) * scale
    expected = expected.double()
    worst = (actual.double() - expected).abs().max().item() if actual.numel() else 0.0
    largest = expected.abs().max().item() if expected.numel() else 0.0
    assert worst <= bound * max(largest, 1e-12), f"off by {worst} where the largest is {largest}"


def moe_reference(x, gates, gate_up, down):
    y = torch.zeros_like(x, dtype=gates.dtype)
    for e in range(gates.shape[1]):
        gate, up = (x @ gate_up[e].T).chunk(2, -1)
        y = y + gates[:, e : e + 1] * ((torch.nn.functional.silu(gate) * up) @ down[e].T)
    return y


def loss_reference(x, weight, targets, z_weight, ignore_index=-100):
    keep = targets != ignore_index
    logits = x[keep] @ weight.T
    lse = logits.logsumexp(-1)
    count = max(int(keep.sum()), 1)
    nll = (lse - logits.gather(1, targets[keep, None])[:, 0]).sum() / count
    z = lse.pow(2).sum() / count
    return nll + z_weight * z, nll, z


def seeded(make, *args, seed, **kwargs):
    """Calls make(...) with torch's random numbers from the CPU, so every device gets the same values."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return make(*args, generator=generator, device="cpu", **kwargs).to(torch.get_default_device())


def gates_like(tokens, experts, active, dtype=torch.float32, seed=0):
    """Positive gates of `active` random experts per token. The sets vary in size if the number is fractional."""
    values = seeded(torch.rand, 2, tokens, experts, seed=seed)
    return ((values[0] < active / experts) * (0.1 + values[1])).to(dtype)


def randn(*shape, dtype=torch.float32, seed=1, std=1.0):
    return (seeded(torch.randn, *shape, seed=seed) * std).to(dtype)
