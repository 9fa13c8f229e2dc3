"""The command dtopp that pip installs: this package's program, run with the torch of this Python.

This module does not import torch: that would take seconds, and the program needs only torch's libraries.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys
from typing import NoReturn

from dtopp.torch_version import built_for, fits

_PACKAGE = pathlib.Path(__file__).resolve().parent
PROGRAM = _PACKAGE / "bin/dtopp"
OPERATORS = _PACKAGE / "lib/libdtopp_ops.so"


def find_torch() -> pathlib.Path:
    """The folder of the torch that this Python would import. Exits with status 2 if there is none or it does
    not fit."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        _refuse(f"needs torch {built_for(OPERATORS)}, and {sys.executable} has none")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        version = "one of unknown version"
    if not fits(OPERATORS, version):
        _refuse(f"is built for torch {built_for(OPERATORS)}, and {sys.executable} has {version}")
    return pathlib.Path(spec.origin).parent


def library_path() -> str:
    """LD_LIBRARY_PATH for the program, with the torch of this Python."""
    torch = find_torch()
    others = os.environ.get("LD_LIBRARY_PATH")
    return f"{torch}/lib" + (f":{others}" if others else "")


def main() -> NoReturn:
    if not PROGRAM.is_file():
        print("dtopp: this package has the PyTorch layer alone: install the wheel for Linux and x86-64", file=sys.stderr)
        sys.exit(2)
    # The program looks beside its own package. A torch elsewhere (the system's, for a virtual environment
    # with access to the system's packages) has to be named.
    if find_torch().resolve() != (PROGRAM.parents[2] / "torch").resolve():
        os.environ["LD_LIBRARY_PATH"] = library_path()
    os.execv(PROGRAM, ["dtopp", *sys.argv[1:]])


def _refuse(reason: str) -> NoReturn:
    print(f"dtopp: {reason}: run {sys.executable} -m pip install 'torch=={built_for(OPERATORS)}.*'", file=sys.stderr)
    sys.exit(2)
