"""The libraries beside the program, and a copy of the program without libdtopp_cuda.so."""

import os
import pathlib
import shutil

import pytest
import torch
from tiny_run import BINARY

LIBRARIES = pathlib.Path(os.environ.get("DTOPP_OPS", BINARY.parents[1] / "lib/libdtopp_ops.so")).parent
CUDA_LIBRARY = LIBRARIES / "libdtopp_cuda.so"
built_for_cuda = pytest.mark.skipif(not CUDA_LIBRARY.exists(), reason=f"{CUDA_LIBRARY} is not built: make build CUDA=1")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@pytest.fixture
def carried(tmp_path, dtopp_binary):
    """The program in a folder of its own, without libdtopp_cuda.so."""
    for folder in ("bin", "lib"):
        (tmp_path / "there" / folder).mkdir(parents=True)
    shutil.copy(LIBRARIES / "libdtopp_ops.so", tmp_path / "there/lib")
    return shutil.copy(dtopp_binary, tmp_path / "there/bin")
