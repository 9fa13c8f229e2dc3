"""The versions of dtopp and of its torch, and a command with its output."""

import importlib.metadata
import re
import subprocess

from tiny_run import ROOT

TORCH = importlib.metadata.version("torch").split("+")[0]
VERSION = re.search(r"^project\(dtopp VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
MINOR = ".".join(TORCH.split(".")[:2])
PROGRAM_VERSION = f"{VERSION}+torch{MINOR}"  # of the wheel with the program


def command(*arguments, **options):
    return subprocess.run(list(map(str, arguments)), **{"capture_output": True, "text": True, "timeout": 600} | options)
