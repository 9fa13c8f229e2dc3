"""Shared fixtures of the Python tests: the paths of programs and data, and a skip message if one is missing."""

import gc
import pathlib

import pytest
from needs import DATA
from rank_process import Process
from tiny_run import BINARY, FULL

# The tiers (scripts/test.sh): `make check` runs the fast tests, `make test` all but those of `make nightly`.
FAST = ("first_hour", "cli", "package/test_route_cases.py", "plan/test_plan.py", "data/test_get_data.py", "train/test_model_parity.py")
NIGHTLY = ("package/test_wheel_build.py",)
# The files that take longest begin first, so that no process is left with one of them at the end.
LONG = ("ranks/test_failures.py", "ranks/test_restarts.py", "convert/test_huggingface.py", "serve/test_serve.py", "data/test_tokenizer.py",
        "train/test_faults.py", "train/test_background_saves.py", "train/test_routers.py", "package/test_compile.py", "ranks/test_training.py",
        "plan/test_gpu_report.py", "ranks/test_evaluate.py", "train/test_diffusion_training.py", "plan/test_new.py", "package/test_examples.py",
        "train/test_resume.py", "convert/test_lm_eval.py", "convert/test_fixed_width.py", "evaluate/test_tasks.py", "package/test_install.py",
        "train/test_recompute.py")
assert all((pathlib.Path(__file__).parent / file).exists() for file in LONG)


def file_of(item):
    return item.path.relative_to(pathlib.Path(__file__).parent).as_posix()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONG.index(file_of(item)) if file_of(item) in LONG else len(LONG))
    for item in items:
        file = file_of(item)
        if file.startswith(NIGHTLY):
            item.add_marker("nightly")
        elif file.startswith(FAST) and not item.get_closest_marker("slow"):
            item.add_marker("fast")
        if item.get_closest_marker("nightly") and not FULL:
            item.add_marker(pytest.mark.skip(reason="takes long: make nightly"))


# Collections of garbage are rare, and skip what is imported, which stays.
gc.set_threshold(50_000)


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(autouse=True)
def no_process_outlives_its_test():
    yield
    Process.kill_survivors()


def built(name):
    """Returns the path of a program beside dtopp. Skips the test with a one-line reason if it is not built."""
    program = BINARY.with_name(name)
    if not program.exists():
        pytest.skip(f"{program} is not built: " + ("make build" if program == BINARY else "make test"))
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
    if not (DATA / "data").is_dir():
        pytest.skip(f"{DATA} holds no data/: set DTOPP_DATA to a folder that does")
    return DATA
