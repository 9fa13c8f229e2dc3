"""The version and the requirements of a wheel with the program, for scikit-build-core (pyproject.toml).

Both state the torch of the Python that builds the wheel: torch's binary interface changes with each minor version, so each
needs a wheel of its own, such as dtopp-0.2.0+torch2.11.
"""

import importlib.metadata
import pathlib
import re


def dynamic_metadata(field, _settings):
    try:
        minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("dtopp: a wheel with the program is built for one torch, and this Python has none: "
                         "install torch, and build with pip's --no-build-isolation") from None
    if field == "dependencies":
        return [f"torch=={minor}.*"]
    version = re.search(r"^project\(dtopp VERSION (\S+)", pathlib.Path("CMakeLists.txt").read_text(), re.MULTILINE)[1]
    return f"{version}+torch{minor}"
