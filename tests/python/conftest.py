"""What the Python tests share: where the programs and the data lie, and how a missing one is said."""

import os
import pathlib

import pytest
from tiny_run import BINARY, ROOT


def built(name):
    """The path of a program beside dtopp; skips the test, in one line, where it is not built."""
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
    """The folder with data/ and eval/; DTOPP_DATA names it."""
    folder = pathlib.Path(os.environ.get("DTOPP_DATA", ROOT / "../shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"DTOPP_DATA={folder} holds no data/")
    return folder
