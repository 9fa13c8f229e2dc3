"""Starts a command and reads its standard error while it runs; short runs on several ranks, for the tests of ranks that fail or are stopped."""

import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import tiny_run
from needs import TORCHRUN


class Process:
    """A started command whose standard error is read as it arrives. It ends with its test at the latest (conftest.py)."""

    started = []

    def __init__(self, arguments, starter=None, **options):
        """`starter`: forks the command (start.py)."""
        lines, stderr = os.pipe()
        with open(os.devnull, "r+b") as null, open(stderr, "wb") as output:
            if starter:
                self.process = starter.start(arguments, [null.fileno(), null.fileno(), stderr], **options)
            else:
                self.process = subprocess.Popen(arguments, stdout=null, stderr=output, **options)
        self.started.append(self.process)
        self.pid = self.process.pid
        self.lines = []
        self.reader = threading.Thread(target=self.read, args=[lines], daemon=True)
        self.reader.start()

    def read(self, descriptor):
        with open(descriptor) as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))

    def wait_for(self, prefix, timeout=60):
        end = time.monotonic() + timeout
        while not any(line.startswith(prefix) for line in self.lines):
            assert time.monotonic() < end and self.process.poll() is None, self.lines
            time.sleep(0.005)

    def end(self, timeout):
        """Returns the exit status and all lines except those of steps."""
        status = self.process.wait(timeout=timeout)
        self.reader.join(timeout=10)
        return status, [line for line in self.lines if not line.startswith("step ")]

    @classmethod
    def kill_survivors(cls):
        for process in cls.started:
            process.kill()  # does nothing if it has ended
            process.wait()
        cls.started.clear()

    def ranks(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as children:
            return [int(number) for number in children.read().split()]


def catches_sigterm(process):
    """Whether the process with this number handles SIGTERM."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


STEPS = 60
OVERRIDES = ["training.micro_batch_size=1", f"training.steps={STEPS}", "parallel.timeout=2", "validation.every=0",
             "logging.tensorboard=false"]


def command(reference, run, *options):
    return list(map(str, [tiny_run.BINARY, "train", reference / "run.yaml", *OVERRIDES, f"output={run}", *options]))


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def torchrun(*options, port=None):
    """A command of two ranks on one host, with a port of its own: torchrun always takes 29500, also beside another torchrun."""
    return [TORCHRUN, "--nproc-per-node", "2", "--master-port", str(port or free_port()), *options, "--no-python"]
