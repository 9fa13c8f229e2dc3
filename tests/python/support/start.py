"""Runs programs as subprocess.run() does, without repeating their constructors.

A process per program has run the constructors and is forked for each start (tests/tools/program_starter.cpp)."""

import atexit
import contextlib
import functools
import io
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess

BINARY = pathlib.Path(os.environ.get("DTOPP_BINARY", pathlib.Path(__file__).resolve().parents[3] / "build/release/bin/dtopp"))
LIBRARY = BINARY.parents[1] / "lib/libprogram_starter.so"
OPTIONS = {"capture_output", "check", "cwd", "input", "text", "timeout"}


class Started:
    """A started program, as subprocess.Popen is one. `pipe` receives its number and its wait status."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.pid, = struct.unpack("i", pipe.read(4))
        self.returncode = None

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            status, = struct.unpack("i", self.pipe.read(4))
            self.pipe.close()
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Starter:
    """`environment`: of the constructors."""

    def __init__(self, program, **environment):
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment["LD_PRELOAD"] = f"{LIBRARY} {environment.get('LD_PRELOAD', '')}"
        with other:
            self.process = subprocess.Popen([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[other.fileno()],
                                            env=os.environ | environment | {"PROGRAM_STARTER": str(other.fileno())})
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def start(self, arguments, streams, cwd=None, env=None):
        environment = [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
        words = [os.fspath(cwd or os.getcwd()), str(len(arguments)), *arguments, *environment]
        ended, end = os.pipe()
        message = b"".join(os.fsencode(word) + b"\0" for word in words)
        try:
            socket.send_fds(self.socket, [message], [*streams, end])
        finally:
            os.close(end)
        return Started(open(ended, "rb", buffering=0))

    def run(self, arguments, cwd=None, input=None, timeout=None, text=False, capture_output=False, check=False):
        with contextlib.ExitStack() as opened:
            given, *results = [opened.enter_context(open(os.memfd_create("stream"), "w+b")) for _ in range(3)]
            if input is not None:
                given.write(input.encode() if text else input)
                given.seek(0)
            streams = [0 if input is None else given.fileno(), *(file.fileno() for file in results)]
            started = self.start(arguments, streams if capture_output else [streams[0], 1, 2], cwd)
            late = False
            try:
                started.wait(timeout)
            except subprocess.TimeoutExpired:
                late = True
                started.kill()
                started.wait()
            written = [contents(file, text) for file in results] if capture_output else [None] * 2
        if late:
            raise subprocess.TimeoutExpired(arguments, timeout, *written)
        done = subprocess.CompletedProcess(arguments, started.returncode, *written)
        if check:
            done.check_returncode()
        return done


def contents(file, text):
    file.seek(0)
    return io.TextIOWrapper(file).read() if text else file.read()


starter = functools.cache(Starter)


def run(arguments, anew=False, **options):
    """Returns what subprocess.run() returns. These start anew: other programs; programs with an environment of their own,
    which constructors read; launchers, as users start them; and long command lines, which no message holds.
    `anew`: always, for tests that measure memory, because a forked process counts only some pages of libraries."""
    arguments = list(map(str, arguments))
    built = LIBRARY.exists() and pathlib.Path(arguments[0]).parent == BINARY.parent
    launcher = any(word.startswith("--processes") for word in arguments)
    if anew or not built or launcher or set(options) - OPTIONS or sum(map(len, arguments)) > 50_000:
        return subprocess.run(arguments, **options)
    return starter(arguments[0]).run(arguments, **options)
