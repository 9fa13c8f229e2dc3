"""Tests `dtopp devices`, on a machine with or without a CUDA device."""

import json
import os
import shutil
import subprocess

import pytest
from carried_program import CUDA_LIBRARY, built_for_cuda, carried, without_gpu  # noqa: F401 (a fixture)
from refusal import assert_refused


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


def test_a_wish_that_means_nothing_is_a_usage_error(dtopp_binary):
    done = subprocess.run([dtopp_binary, "devices"], text=True, capture_output=True, timeout=120,
                          env=os.environ | {"DTOPP_MOE_KERNELS": "fast"})
    assert_refused(done, 2, "DTOPP_MOE_KERNELS")
    assert not done.stdout


@pytest.mark.skipif(not os.environ.get("DTOPP_DEVICE") == "cuda", reason="DTOPP_DEVICE is not cuda: make test-gpu")
def test_a_device_is_shown_with_its_expert_gemms(dtopp_binary):
    def gemms(**environment):
        devices = json.loads(shown(dtopp_binary, "--json", **environment))["cuda"]["devices"]
        return {gemm["gemm"]: gemm["kernel"] for gemm in devices[0]["expert_gemms"]}

    assert len(gemms()) == 6 and set(gemms().values()) <= {"fused", "grouped_mm"}
    assert [gemm for gemm, kernel in gemms(DTOPP_MOE_KERNELS="projection").items() if kernel == "fused"] == ["projection"]
