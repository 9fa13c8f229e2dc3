"""Shared fixtures of the Python tests: the paths of programs and data, and a skip message if one is missing."""

import os
import pathlib

import pytest
from tiny_run import BINARY, ROOT


def built(name):
    """Returns the path of a program beside dtopp. Skips the test with a one-line reason if it is not built."""
    program = BINARY.with_name(name)
    if not program.exists():
        pytest.skip(f"{program} is not built")
    return program


@pytest.fixture(scope="session")
def dtopp_binary():
    return built(BINARY.name)


@pytest.fixture(scope="session")
def program():
    """program("dtopp_parity"): the path of a test tool."""
    return built


@pytest.fixture(scope="session")
def dtopp_data():
    """The folder with data/ and eval/, from DTOPP_DATA."""
    folder = pathlib.Path(os.environ.get("DTOPP_DATA", ROOT / "../shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"DTOPP_DATA={folder} holds no data/")
    return folder
