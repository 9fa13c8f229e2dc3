"""The versions of dtopp and of its torch, and a command with its output."""

import re
import subprocess

from tiny_run import ROOT

TORCH = re.search(r"^torch_version=(\S+)", (ROOT / "scripts/setup.sh").read_text(), re.M)[1]
VERSION = re.search(r"^project\(dtopp VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
MINOR = ".".join(TORCH.split(".")[:2])


def command(*arguments, **options):
    return subprocess.run(list(map(str, arguments)), **{"capture_output": True, "text": True, "timeout": 600} | options)
