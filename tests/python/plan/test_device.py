"""Tests the choice of a run's device and the message if the requested device is not available."""

import json
import shutil
import subprocess

import pytest
import tiny_run
import torch
from carried_program import CUDA_LIBRARY, built_for_cuda, carried, without_gpu  # noqa: F401 (a fixture)
from refusal import assert_refused


def train(program, tmp_path, device):
    config = tiny_run.make(tmp_path)
    return subprocess.run([program, "train", config, f"training.device={device}", "training.steps=1",
                           "validation.every=0", "optimizer.warmup_steps=0"], text=True, capture_output=True, timeout=120)


def test_cuda_without_the_library_names_it(carried, tmp_path):
    assert_refused(train(carried, tmp_path, "cuda"), 2, ["training.device: cuda", "libdtopp_cuda.so", "make build CUDA=1"])


def test_cuda_with_a_library_that_is_none_says_so(carried, tmp_path):
    (tmp_path / "there/lib/libdtopp_cuda.so").write_text("nothing of use")
    assert_refused(train(carried, tmp_path, "cuda"), 2, ["training.device: cuda", "libdtopp_cuda.so cannot be loaded"])


def test_auto_without_the_library_trains_on_the_cpu(carried, tmp_path):
    done = train(carried, tmp_path, "auto")
    assert done.returncode == 0, done.stderr
    assert "training on the CPU (1 thread)" in done.stderr


@built_for_cuda
@without_gpu
def test_cuda_without_a_device_says_so(carried, tmp_path):
    shutil.copy(CUDA_LIBRARY, tmp_path / "there/lib")
    assert_refused(train(carried, tmp_path, "cuda"), 2, ["training.device: cuda", "no CUDA device"])
    done = train(carried, tmp_path, "auto")
    assert done.returncode == 0, done.stderr
    assert "training on the CPU (1 thread)" in done.stderr


@built_for_cuda
def test_the_library_for_cuda_lacks_no_symbol():
    """RTLD_NOW resolves every symbol at load time, even without a device."""
    done = subprocess.run(["python3", "-c", f"import ctypes, os; ctypes.CDLL('{CUDA_LIBRARY}', mode=os.RTLD_NOW)"],
                          text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here: make test-gpu")
def test_auto_takes_the_cuda_device(dtopp_binary, tmp_path):
    if not CUDA_LIBRARY.exists():
        pytest.fail(f"{CUDA_LIBRARY} is not built")
    done = train(dtopp_binary, tmp_path, "auto")
    assert done.returncode == 0, done.stderr
    assert f"training on cuda:0 ({torch.cuda.get_device_name(0)})" in done.stderr


def test_evaluation_and_generation_take_a_device(dtopp_binary, tmp_path):
    assert train(dtopp_binary, tmp_path, "cpu").returncode == 0
    done = tiny_run.dtopp("evaluate", "text", tmp_path / "run", "--text", tmp_path / "validation.npy",
                          "--device", "cpu", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert "computing on" not in done.stderr
    done = tiny_run.dtopp("evaluate", "text", tmp_path / "run", "--text", tmp_path / "validation.npy",
                          "--device", "gpu")
    assert_refused(done, 2, "--device")


def test_plan_counts_memory_for_the_device_that_is_named(dtopp_binary, tmp_path):
    def memory(*arguments):
        done = tiny_run.dtopp("plan", config, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["memory_bytes"]

    config = tiny_run.make(tmp_path)
    cpu, cuda = memory("--device", "cpu"), memory("--device", "h200")
    assert cpu["program"] == 160 << 20 and cuda["program"] == 576 << 20
    assert memory("training.device=cpu") == memory("training.device=auto") == cpu
    assert memory("training.device=cuda") == memory("training.device=cuda", "--device", "a100") == cuda
    assert memory("training.device=cuda", "--device", "cpu") == cpu


@pytest.mark.parametrize("key,value", [("model.num_experts", 2049), ("model.hidden_size", 12288)])
def test_plan_refuses_what_the_kernels_of_a_cuda_device_do_not_take(dtopp_binary, tmp_path, key, value):
    config = tiny_run.make(tmp_path)
    for arguments in (["--device", "h200"], ["training.device=cuda"]):
        done = tiny_run.dtopp("plan", config, f"{key}={value}", *arguments)
        assert_refused(done, 2, f"{key}: {value}")
        assert not done.stdout
    assert tiny_run.dtopp("plan", config, f"{key}={value}", "--device", "cpu").returncode == 0
