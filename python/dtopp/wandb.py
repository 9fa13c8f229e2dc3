"""Logs a run of `dtopp train` to Weights & Biases: python -m dtopp.wandb RUN [--project NAME] [--follow].

The values of metrics.jsonl keep their names, and the run's configuration becomes that of W&B. wandb's own environment variables apply:
WANDB_MODE=offline, WANDB_ENTITY, WANDB_DIR and others.
"""

import argparse
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

POLL_SECONDS = 1.0


def read_lines(file: pathlib.Path, position: int) -> tuple[list[dict[str, Any]], int]:
    """The complete lines from a byte on, and the byte after them."""
    with open(file, "rb") as lines:
        lines.seek(position)
        read = lines.read()
    whole = read[: read.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], position + len(whole)


def follow(run: pathlib.Path, steps: int, grows: bool) -> Iterator[dict[str, Any]]:
    """Yields the lines of metrics.jsonl; if `grows`, until the run has saved its last step.

    A resumed run first removes the lines after its checkpoint and writes them again. They are not repeated here.
    """
    file, position = run / "metrics.jsonl", 0
    yielded: set[tuple[int, str]] = set()
    while True:
        ended = grows and (run / "run.json").exists() and _saved_step(run) >= steps
        size = file.stat().st_size if file.exists() else 0
        lines, position = read_lines(file, position if position <= size else 0) if size else ([], 0)
        for line in lines:
            name = (line["step"], next(reversed(line)))  # a step may have several lines, with different metrics
            if name not in yielded:
                yielded.add(name)
                yield line
        if ended or not grows:
            return
        time.sleep(POLL_SECONDS)


def _saved_step(run: pathlib.Path) -> int:
    return int(json.loads((run / "run.json").read_text())["about"]["saved_step"])


def log(run: str | os.PathLike[str], project: str = "dtopp", grows: bool = False) -> None:
    """Logs a run's folder as a new run of W&B.

    Args:
        grows: also log the lines that the run has yet to write, and return after its last step.

    Raises:
        FileNotFoundError: the folder holds no run.
        ImportError: wandb or PyYAML is missing.
    """
    import wandb
    import yaml

    folder = pathlib.Path(run)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with wandb.init(project=project, name=config["name"] or folder.name, config=config) as logged:
        for line in follow(folder, config["training"]["steps"], grows):
            step = line.pop("step")
            logged.log({name: math.nan if value is None else value for name, value in line.items()}, step=step)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dtopp.wandb", description="Logs a run to Weights & Biases.")
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--project", default="dtopp", help="project of W&B (default: dtopp)")
    parser.add_argument("--follow", action="store_true", help="also log what the run has yet to write, until its last step")
    arguments = parser.parse_args()
    try:
        log(arguments.run, arguments.project, arguments.follow)
    except ImportError as error:
        sys.exit(f"dtopp.wandb: {error}; pip install wandb")
    except FileNotFoundError as error:
        sys.exit(f"dtopp.wandb: {error.filename}: is missing; give the folder of a run")


if __name__ == "__main__":
    main()
