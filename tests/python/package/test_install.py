"""Tests the effects of importing dtopp, the choice of the library, and the package's type annotations."""

import os
import re
import subprocess
import sys

import pytest
from tiny_run import ROOT

LIBRARY = ROOT / "build/release/lib/libdtopp_ops.so"


def python(code, *options, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **variables}
    return subprocess.run([sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True)


def test_import_leaves_torch_alone():
    done = python("import dtopp, sys; print(dtopp.__version__, 'torch' in sys.modules, 'MoE' in dir(dtopp))")
    assert done.stdout.split()[1:] == ["False", "True"], done.stderr
    version = re.search(r"project\(dtopp VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert done.stdout.split()[0] == version


def test_library_fits_the_torch_that_setup_installs():
    from dtopp.torch_version import BUILT_FOR
    version = re.search(r"^torch_version=(\d+\.\d+)\.", (ROOT / "scripts/setup.sh").read_text(), re.M).group(1)
    assert BUILT_FOR == version


def test_an_empty_dtopp_ops_asks_for_the_plain_form():
    done = python("import warnings; warnings.simplefilter('error'); from dtopp import form; "
                  "print(form.current.__name__)", DTOPP_OPS="")
    assert done.stdout.split() == ["dtopp.plain"], done.stderr


def test_dtopp_ops_names_the_library(monkeypatch):
    from dtopp import library
    monkeypatch.setenv("DTOPP_OPS", str(LIBRARY))
    assert library.find() == LIBRARY and library.load()
    monkeypatch.setenv("DTOPP_OPS", "/nowhere/x.so")
    with pytest.raises(ImportError, match="DTOPP_OPS=/nowhere/x.so is not a file"):
        library.load()
    monkeypatch.setenv("DTOPP_OPS", __file__)
    with pytest.raises(ImportError, match="cannot be loaded by torch 2.11"):
        library.load()


def test_another_torch_takes_the_plain_form_and_says_so(monkeypatch):
    from dtopp import library
    monkeypatch.delenv("DTOPP_OPS", raising=False)
    monkeypatch.setattr(library.torch, "__version__", "2.12.1")
    with pytest.warns(UserWarning, match="is for torch 2.11, this is 2.12.1; the plain PyTorch form is used"):
        assert library.find() is None
    monkeypatch.setattr(library, "_PLACES", ())
    with pytest.warns(UserWarning, match="no compiled operators"):
        assert library.find() is None


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
