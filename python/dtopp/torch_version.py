"""The torch version that the compiled operators and the program need.

It is a minor version, such as "2.11", because torch's binary interface changes with each. The build writes it beside
the operators (cmake/Torch.cmake).
"""

import pathlib


def version_file(library: pathlib.Path) -> pathlib.Path:
    """The file that holds the version for which `library` was built."""
    return library.with_suffix(".torch")


def built_for(library: pathlib.Path) -> str:
    """The version for which `library` was built."""
    return version_file(library).read_text().strip()


def fits(library: pathlib.Path, version: str) -> bool:
    """Whether `library` fits a torch version, such as "2.11.0+cu130"."""
    return version.split(".")[:2] == built_for(library).split(".")
