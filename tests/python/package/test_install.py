"""Tests the effects of importing dtopp, the choice of the library, and the package's type annotations."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from tiny_run import ROOT

LIBRARY = ROOT / "build/release/lib/libdtopp_ops.so"


def python(code, *options, environment=os.environ, **variables):
    environment = {**environment, "PYTHONPATH": str(ROOT / "python"), **variables}
    return subprocess.run([sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True)


def test_import_leaves_torch_alone():
    done = python("import dtopp, sys; print(dtopp.__version__, 'torch' in sys.modules, 'MoE' in dir(dtopp))")
    assert done.stdout.split()[1:] == ["False", "True"], done.stderr
    version = re.search(r"project\(dtopp VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert done.stdout.split()[0] == version


def test_library_fits_the_torch_it_was_built_with():
    from dtopp.torch_version import built_for, fits
    import torch
    minor = ".".join(torch.__version__.split(".")[:2])
    assert built_for(LIBRARY) == minor
    assert fits(LIBRARY, torch.__version__) and not fits(LIBRARY, f"{minor}1.0") and not fits(LIBRARY, "1.11.0")


def test_an_empty_dtopp_ops_selects_pytorch_and_logs_nothing():
    done = python("from dtopp import form; print(form.current.__name__)", DTOPP_OPS="")
    assert (done.stdout, done.stderr) == ("dtopp.plain\n", "")


def test_dtopp_ops_names_the_library(monkeypatch):
    from dtopp import library
    monkeypatch.setenv("DTOPP_OPS", str(LIBRARY))
    assert library.find() == LIBRARY and library.load()
    monkeypatch.setenv("DTOPP_OPS", "/nowhere/x.so")
    with pytest.raises(ImportError, match="DTOPP_OPS=/nowhere/x.so is not a file"):
        library.load()
    monkeypatch.setenv("DTOPP_OPS", __file__)
    with pytest.raises(ImportError, match="cannot be loaded by torch 2"):
        library.load()


def test_another_torch_selects_pytorch_and_logs_it(monkeypatch, caplog):
    from dtopp import library
    monkeypatch.delenv("DTOPP_OPS", raising=False)
    torch_version = library.torch.__version__
    monkeypatch.setattr(library.torch, "__version__", "2.12.1")
    assert library.find() is None
    minor = ".".join(torch_version.split(".")[:2])
    assert caplog.messages == [
        f"dtopp: compiled operators are for torch {minor}, this is 2.12.1; using PyTorch implementations"]


def test_missing_operators_are_logged_once_at_import(tmp_path):
    shutil.copytree(ROOT / "python/dtopp", tmp_path / "dtopp", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if name != "DTOPP_OPS"}
    done = python("import dtopp, torch; moe = dtopp.MoE(16, 8, 4, target_experts=2); moe(torch.ones(3, 16)); "
                  "moe(torch.ones(3, 16)); from dtopp import form; print(form.current.__name__)",
                  environment=environment, PYTHONPATH=str(tmp_path))
    assert done.stdout == "dtopp.plain\n"
    assert done.stderr == "dtopp: compiled operators not found; using PyTorch implementations\n"


def test_types_are_strict(tmp_path):
    (tmp_path / "use.py").write_text("import torch, dtopp\nmoe = dtopp.MoE(16, 8, 4, target_experts=2)\n"
                                     "reveal_type(dtopp.ThresholdController(moe).metrics())\n"
                                     "dtopp.MoE(16, 8, '4')\n")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "python/mypy.ini", "--cache-dir", tmp_path / "mypy",
               ROOT / "python/dtopp"]
    done = subprocess.run([*command, tmp_path / "use.py"], env={**os.environ, "MYPYPATH": str(ROOT / "python")},
                          capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and "use.py:4" in errors[0], done.stdout + done.stderr
    assert 'Revealed type is "dict[str, float]"' in done.stdout
