"""Finds and loads the compiled operators, libdtopp_ops.so, and libdtopp_cuda.so beside it."""

import logging
import os
import pathlib

import torch

from dtopp.torch_version import built_for, fits, version_file

_logger = logging.getLogger("dtopp")
_PACKAGE = pathlib.Path(__file__).resolve().parent
_PLACES = (_PACKAGE / "lib/libdtopp_ops.so", _PACKAGE.parents[1] / "build/release/lib/libdtopp_ops.so")


def find() -> pathlib.Path | None:
    """Returns the library to load, or None for the plain PyTorch form.

    DTOPP_OPS names a library; if it is empty, the plain form is used. Otherwise the package's own library is
    used, or else that of the checkout's release build, if torch has the version it was built for.

    Raises:
        ImportError: DTOPP_OPS names a missing file.
    """
    named = os.environ.get("DTOPP_OPS")
    if named is not None:
        if named and not pathlib.Path(named).is_file():
            raise ImportError(f"DTOPP_OPS={named} is not a file; set it to libdtopp_ops.so, or to nothing for "
                              "the plain form")
        return pathlib.Path(named).resolve() if named else None
    found = next((place for place in _PLACES if place.is_file() and version_file(place).is_file()), None)
    if found is None:
        _log("compiled operators not found")
    elif not fits(found, torch.__version__):
        _log(f"compiled operators are for torch {built_for(found)}, this is {torch.__version__}")
        return None
    return found


def load() -> bool:
    """Loads the library. Returns False if the plain form is to be used.

    Raises:
        ImportError: the library exists and cannot be loaded.
    """
    path = find()
    if path is None:
        return False
    _load(path)
    cuda = path.with_name("libdtopp_cuda.so")
    if cuda.is_file() and torch.cuda.is_available():
        _load(cuda)
    return True


def _load(path: pathlib.Path) -> None:
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded by torch {torch.__version__}: {error}") from error


def _log(reason: str) -> None:
    _logger.warning("dtopp: %s; using PyTorch implementations", reason)
