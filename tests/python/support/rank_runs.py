"""Short runs on several ranks, for the tests of ranks that fail or are stopped."""

import socket

import tiny_run

STEPS = 60
OVERRIDES = ["training.micro_batch_size=1", f"training.steps={STEPS}", "parallel.timeout=2", "validation.every=0",
             "logging.tensorboard=false"]


def command(reference, run, *options):
    return list(map(str, [tiny_run.BINARY, "train", reference / "run.yaml", *OVERRIDES, f"output={run}", *options]))


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
