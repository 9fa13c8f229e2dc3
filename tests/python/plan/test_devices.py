"""Tests `dtopp devices` on a machine without a CUDA device, and the check on one with a device."""

import json
import os
import shutil
import subprocess

import pytest
from carried_program import CUDA_LIBRARY, built_for_cuda, carried, without_gpu  # noqa: F401 (a fixture)
from refusal import assert_refused
from tiny_run import dtopp


def shown(program, *arguments, **environment):
    done = subprocess.run([program, "devices", *arguments], text=True, capture_output=True, timeout=120,
                          env=os.environ | environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_a_machine_without_the_library_shows_its_cpu_and_what_is_missing(carried):  # noqa: F811
    text = shown(carried, OMP_NUM_THREADS="1")
    cpu, cuda = text.splitlines()
    assert cpu.startswith("cpu     1 thread, ") and "GiB of memory free; multiplies fp32 by " in cpu
    assert cuda.startswith("cuda    cannot be used: libdtopp_cuda.so is missing from ") and cuda.endswith("`make build CUDA=1`")
    answer = json.loads(shown(carried, "--json", OMP_NUM_THREADS="1"))
    assert answer["cpu"]["threads"] == 1 and answer["cpu"]["free_bytes"] > 1 << 28
    assert answer["cuda"] == {"missing": cuda.removeprefix("cuda    cannot be used: "), "devices": []}


def flags():
    with open("/proc/cpuinfo") as file:
        return next((line.split() for line in file if line.startswith("flags")), [])


def test_the_cpu_is_shown_with_the_instructions_the_kernel_lists(dtopp_binary):
    known, cpu = flags(), json.loads(shown(dtopp_binary, "--json"))["cpu"]
    fp32 = "AVX-512" if "avx512f" in known else "AVX2" if "avx2" in known else "vectors of 16 bytes"
    bf16 = "AMX" if "amx_bf16" in known else "AVX512_BF16" if "avx512_bf16" in known else "conversion to fp32"
    assert (cpu["fp32"], cpu["bf16"]) == (fp32, bf16)
    assert json.loads(shown(dtopp_binary, "--json", ATEN_CPU_CAPABILITY="default"))["cpu"]["fp32"] == "vectors of 16 bytes"


@built_for_cuda
@without_gpu
def test_a_machine_without_a_device_says_so(carried, tmp_path):  # noqa: F811
    shutil.copy(CUDA_LIBRARY, tmp_path / "there/lib")
    assert "cannot be used: no CUDA device was found" in shown(carried)


@without_gpu
def test_nothing_to_check_is_a_usage_error(carried):  # noqa: F811
    done = subprocess.run([carried, "devices", "--check"], text=True, capture_output=True, timeout=120)
    assert_refused(done, 2, ["--check", "libdtopp_cuda.so"])
    assert not done.stdout


def test_a_wish_that_means_nothing_is_a_usage_error(dtopp_binary):
    done = subprocess.run([dtopp_binary, "devices"], text=True, capture_output=True, timeout=120,
                          env=os.environ | {"DTOPP_MOE_KERNELS": "fast"})
    assert_refused(done, 2, "DTOPP_MOE_KERNELS")
    assert not done.stdout


def test_the_check_of_one_gemm_is_not_among_the_verbs(dtopp_binary):
    assert "  devices " in dtopp("--help").stdout and "check-gemm" not in dtopp("--help").stdout
    assert dtopp("check-gemm", "activate", "--fused", "grouped_mm").returncode == 2


@without_gpu
def test_a_check_that_cannot_be_made_says_why(carried):  # noqa: F811
    done = subprocess.run([carried, "check-gemm", "activation", "--fused", "grouped_mm"], text=True, capture_output=True,
                          timeout=120)
    assert done.returncode == 0 and list(json.loads(done.stdout)) == ["unchecked"], done.stderr


@pytest.mark.skipif(not os.environ.get("DTOPP_DEVICE") == "cuda", reason="DTOPP_DEVICE is not cuda: make test-gpu")
def test_a_device_is_shown_with_its_expert_gemms(dtopp_binary, tmp_path):
    """The check on a device: every fused kernel ends and is correct, and the table is stored."""
    first = json.loads(shown(dtopp_binary, "--json", XDG_CACHE_HOME=str(tmp_path)))["cuda"]["devices"]
    assert first and first[0]["expert_gemms"] is None
    done = subprocess.run([dtopp_binary, "devices", "--check", "--json"], text=True, capture_output=True, timeout=400,
                          env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    gemms = json.loads(done.stdout)["cuda"]["devices"][0]["expert_gemms"]
    assert len(gemms) == 6 and all(gemm["fused_error"] <= 1 / 64 for gemm in gemms), gemms
    kept = json.loads(shown(dtopp_binary, "--json", XDG_CACHE_HOME=str(tmp_path)))["cuda"]["devices"][0]["expert_gemms"]
    assert kept == gemms
