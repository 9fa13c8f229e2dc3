"""Kills processes of small runs at random moments. Each run must end with the bytes of one that was never killed.

    python tests/python/support/random_kills.py --seed 1 --kills 1000

A seed gives one run: its number of ranks, whether training continues while it saves, its kills and their moments. A
failing seed is printed with its kills.

The file is long because drawing a kill, carrying it out and checking the end share the state of one run.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tiny_run
from needs import SHIM
from rank_process import Process
from start import Starter

STEPS, VALIDATE, SAVE, KEEP = 40, 4, 2, 2
RESTARTS = 3
MOST_KILLS = 25  # of one run
OVERRIDES = [
    "model.hidden_size=16", "model.num_layers=1", "model.num_heads=2", "model.ffn_hidden_size=8", "model.num_experts=4",
    "routing.experts=2", "model.sequence_length=16", f"training.steps={STEPS}", "training.micro_batch_size=1",
    f"validation.every={VALIDATE}", "validation.tokens=512", f"checkpoint.every={SAVE}", f"checkpoint.keep={KEEP}",
    "logging.tensorboard=false", "logging.console_every=1"]
PATIENCE = 60  # seconds for a run that ends by itself

TARGETS = {"rank": 7, "all ranks": 2, "launcher": 1}
SIGNALS = {signal.SIGKILL: 92, signal.SIGTERM: 6, signal.SIGSTOP: 2}
PACES = {4: 6, 10: 3, 40: 1}  # the most lines that a run of this pace writes between two kills


class Failure(Exception):
    """A killed run ends otherwise than it should, or leaves something else."""


def require(holds, *what):
    if not holds:
        raise Failure(" ".join(map(str, what)))


def draw(dice, weights):
    return dice.choices(list(weights), list(weights.values()))[0]


def paths(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_stopped(process):
    """As a process that fault_shim has stopped."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def ranks_of(launcher):
    try:
        return launcher.ranks()
    except OSError:  # it has ended
        return []


def send(how, processes):
    """Returns how many processes were there to receive the signal."""
    count = 0
    for process in processes:
        try:
            os.kill(process, how)
            count += 1
        except ProcessLookupError:
            pass
    return count


@dataclasses.dataclass(frozen=True)
class Variant:
    ranks: int
    asynchronous: bool

    @staticmethod
    def of(seed):
        """Three or six jobs with equally many seeds need six references in all."""
        return Variant([1, 2, 3, 2, 3, 1][seed % 6], seed % 6 >= 3)


@dataclasses.dataclass
class Kill:
    target: str
    how: signal.Signals
    rank: int
    lines: int  # that the launcher and rank 0 write before the kill
    delay: float  # seconds after these lines
    call: int = 0  # the call of `rank` to kill at instead
    phase: str = ""

    def __str__(self):
        moment = f"call {self.call} of rank {self.rank}" if self.call else f"{self.delay:.3f} s after {self.lines} lines"
        return f"{self.how.name} to {self.target} ({self.rank}) at {moment}: {self.phase}"


class Unkilled:
    """A run that is never killed: what it leaves, and how long it takes on this machine."""

    def __init__(self, runs, variant):
        log = runs.folder / "log"
        begin = time.monotonic()
        launcher = runs.start(variant, None, FAULT_LOG=log)
        launcher.wait_for("step 1/")
        self.startup = time.monotonic() - begin
        status, lines = launcher.end(PATIENCE)
        require(status == 0, lines)
        self.step = (time.monotonic() - begin - self.startup) / STEPS
        self.calls = len(log.read_text().splitlines()) * SAVE // STEPS  # from one save to the next
        log.unlink()
        self.paths = paths(runs.run)
        self.config = (runs.run / "config.yaml").read_bytes()
        self.checkpoint = contents(runs.last_checkpoint)
        self.metrics = tiny_run.timeless(tiny_run.metrics(runs.run))


class KilledRuns:
    """Runs at one path, which is part of a checkpoint's bytes, one after another."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.run = self.folder / "run"
        self.last_checkpoint = self.run / f"checkpoints/step-{STEPS:08d}"
        self.config = tiny_run.make(self.folder)
        self.plan, self.fired = self.folder / "plan", self.folder / "fired"
        os.mkfifo(self.fired)
        self.firing = os.open(self.fired, os.O_RDWR | os.O_NONBLOCK)
        self.unkilled = {}
        self.counts = collections.Counter()
        environment = {"LD_PRELOAD": SHIM, "FAULT_ROOT": self.run, "FAULT_MODE": "stop", "FAULT_PLAN": self.plan,
                       "FAULT_FIRED": self.fired, "RANDOM_KILLS": self.folder}
        self.environment = {name: str(value) for name, value in environment.items()}
        self.starter = Starter(str(tiny_run.BINARY), **self.environment)
        self.leftovers = set()

    def start(self, variant, starter, **environment):
        command = [tiny_run.BINARY, "train", self.config, *OVERRIDES, f"output={self.run}",
                   f"checkpoint.asynchronous={str(variant.asynchronous).lower()}",
                   "--processes", variant.ranks, "--restarts", RESTARTS]
        environment = self.environment | {name: str(value) for name, value in environment.items()}
        return Process(list(map(str, command)), starter, env=os.environ | environment)

    def reference(self, variant):
        if variant not in self.unkilled:
            shutil.rmtree(self.run, ignore_errors=True)
            self.unkilled[variant] = Unkilled(self, variant)
        return self.unkilled[variant]

    def group(self):
        """The processes of a run that are alive, its launcher included."""
        mark = f"RANDOM_KILLS={self.folder}".encode()
        alive = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                if mark in pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                    alive.append(int(process))
            except OSError:
                pass  # it has ended, or is of another user
        return [process for process in alive if process != self.starter.process.pid]

    def wait_until_gone(self):
        """A killed launcher takes its ranks with it."""
        end = time.monotonic() + PATIENCE
        while alive := self.group():
            require(time.monotonic() < end, "processes are left:", alive)
            time.sleep(0.005)

    def draw_kill(self, dice, variant, pace, by_call):
        """`by_call`: whether the moment may be a call, which takes a rank that has not made one yet."""
        unkilled = self.reference(variant)
        kill = Kill(draw(dice, TARGETS), draw(dice, SIGNALS), dice.randrange(variant.ranks), dice.randint(0, pace), dice.random())
        if dice.random() < 0.5 and by_call:
            # Rank 0 writes most of a checkpoint. The other ranks read it when they resume.
            calls = unkilled.calls * min(pace, 10) / SAVE if kill.rank == 0 else 12 * any(self.run.glob("checkpoints/step-*"))
            kill.call = 1 + int(kill.delay * calls)
            self.plan.write_text(f"{kill.rank} {kill.call}")
        kill.delay *= unkilled.step if kill.lines else unkilled.startup
        return kill

    def carry_out(self, kill, launcher, begin):
        """`begin`: the number of lines before the kill. Returns whether a process received the signal before the launcher
        ended."""
        stopped = self.await_call(launcher) if kill.call else []
        if not kill.call:
            while len(launcher.lines) < begin + kill.lines and self.let_run(launcher, 0.001):
                pass
            self.let_run(launcher, kill.delay)
        while not ranks_of(launcher) and self.let_run(launcher, 0.002):
            pass  # between two attempts
        ranks = ranks_of(launcher) if launcher.process.poll() is None else []
        if not ranks:
            return False
        kill.phase = self.phase(launcher.lines)
        victims = {"all ranks": ranks, "launcher": [launcher.pid], "rank": stopped or [ranks[kill.rank % len(ranks)]]}[kill.target]
        count = send(kill.how, victims)
        if kill.how == signal.SIGSTOP:
            self.let_run(launcher, 1)
            send(signal.SIGCONT, victims)
        send(signal.SIGCONT, stopped)
        if kill.target == "launcher" and kill.how == signal.SIGKILL:
            launcher.process.wait(PATIENCE)
        return count > 0

    def phase(self, lines):
        """Returns the phase that the lines and files of the run show."""
        temporary = set(self.run.glob("checkpoints/.tmp-*"))
        saves, self.leftovers = temporary - self.leftovers, temporary
        restarts = [i for i, line in enumerate(lines) if "; restart " in line]
        lines = lines[restarts[-1]:] if restarts else lines
        if not any(line.startswith("dtopp: training on ") for line in lines):
            return "start"
        if saves:
            return "save"
        last = next((line for line in reversed(lines) if re.match(r"step |dtopp: validation ", line)), "")
        step = re.match(r"step (\d+)/", last)
        due = int(step[1]) % VALIDATE == 0 if step else not last and not any(self.run.glob("checkpoints/step-*"))
        return "validation" if due else "step"

    def await_call(self, launcher):
        """Returns the rank that fault_shim has stopped; [] if the launcher ends without its call."""
        try:
            while not select.select([self.firing], [], [], 0.01)[0]:
                if launcher.process.poll() is not None:
                    return []
            os.read(self.firing, 100)
        finally:
            self.plan.unlink(missing_ok=True)
        end = time.monotonic() + PATIENCE
        while not (stopped := list(filter(is_stopped, ranks_of(launcher)))):
            require(time.monotonic() < end, "no rank has stopped")
        return stopped

    @staticmethod
    def let_run(launcher, seconds):
        """Returns whether the launcher runs after this time."""
        try:
            launcher.process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            return True

    def kill_run(self, seed):
        """Kills one run until it ends by itself. Returns how often it was killed, without other signals."""
        dice = random.Random(seed)
        variant = Variant.of(seed)
        reference = self.reference(variant)
        pace = draw(dice, PACES)
        # Most runs fork their processes. Others start them anew, at more cost.
        starter = self.starter if dice.random() < 0.9 else None
        shutil.rmtree(self.run, ignore_errors=True)
        environment = {"FAULT_NO_EXCHANGE": 1} if dice.random() < 0.25 else {}  # as on NFS
        kills, status, lines = [], None, []
        try:
            while status != 0:
                sent, begin = [], 0
                kill = self.draw_kill(dice, variant, pace, by_call=True) if len(kills) < MOST_KILLS else None
                launcher = self.start(variant, starter, **environment)
                lines = launcher.lines
                while kill:
                    if self.carry_out(kill, launcher, begin):
                        sent.append(kill)
                        kills.append(kill)
                    begin = len(lines)
                    proceeds = len(kills) < MOST_KILLS and launcher.process.poll() is None
                    kill = self.draw_kill(dice, variant, pace, kill.how != signal.SIGSTOP) if proceeds else None
                status, _ = launcher.end(PATIENCE)
                self.check_end(status, lines, sent)
                self.wait_until_gone()
            self.check_files(reference)
        except Exception as error:
            raise Failure("\n  ".join([f"seed {seed}, {variant}: {error!r}", *map(str, kills), "its last launcher:",
                                       *(line for line in lines if not line.startswith("step"))])) from error
        finally:
            send(signal.SIGKILL, self.group())
            self.plan.unlink(missing_ok=True)
        for kill in kills:
            target = f"rank {kill.rank}" if kill.target == "rank" else kill.target
            self.counts.update([kill.how.name, f"to {target}", f"during {kill.phase}"])
        return sum(kill.how == signal.SIGKILL for kill in kills)

    @staticmethod
    def check_end(status, lines, sent):
        """The launcher's status fits the signals that were sent."""
        restarts = [line for line in lines if re.search(r"; restart \d of \d from step \d", line)]
        require(len(restarts) <= len(sent), "more restarts than kills")
        stops = [kill for kill in sent if kill.how == signal.SIGTERM]
        to_launcher = {kill.how for kill in sent if kill.target == "launcher"}
        allowed = {0}
        if stops:
            allowed.add(75)
        if signal.SIGTERM in to_launcher:
            allowed |= {5, 128 + signal.SIGTERM, -signal.SIGTERM}
        if signal.SIGKILL in to_launcher:
            allowed.add(-signal.SIGKILL)
        if any("; not restarted: " in line for line in lines):
            allowed.add(5)
        require(status in allowed, "status", status)
        require(not any("passed over" in line for line in lines), "a checkpoint is damaged")

    def check_files(self, reference):
        """The run has left what the unkilled one has left."""
        for name, bytes_there in contents(self.last_checkpoint).items():
            require(bytes_there == reference.checkpoint.get(name), "other bytes:", name)
        require(tiny_run.timeless(tiny_run.metrics(self.run)) == reference.metrics, "other metrics")
        require((self.run / "config.yaml").read_bytes() == reference.config, "another config.yaml")
        require(json.loads((self.run / "run.json").read_text())["about"]["saved_step"] == STEPS, "another run.json")
        # A stopped run saves at any step, so the checkpoint before the last one may be another.
        steps = re.compile(r"step-\d{8}")
        found = paths(self.run)
        require({steps.sub("step", path) for path in found} == {steps.sub("step", path) for path in reference.paths} and
                len(found) == len(reference.paths), "other files:", sorted(found ^ reference.paths))


def scratch():
    """A folder in memory if the system has one: thousands of syncs cost nothing there."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


class Total:
    """The kills and failures of several jobs."""

    def __init__(self, kills, seconds):
        self.wanted, self.end = kills, time.monotonic() + seconds
        self.kills, self.failures = [], []  # per run
        self.counts = collections.Counter()

    def is_reached(self):
        return sum(self.kills) >= self.wanted or len(self.failures) >= 10 or time.monotonic() > self.end

    def kill_runs(self, seeds):
        """One job: kills the runs of these seeds until the total is reached."""
        with scratch() as folder:
            runs = KilledRuns(folder)
            for seed in itertools.takewhile(lambda _: not self.is_reached(), seeds):
                try:
                    self.kills.append(runs.kill_run(seed))
                except Failure as failure:
                    kept = pathlib.Path(tempfile.gettempdir()) / f"killed-run-{seed}"
                    shutil.rmtree(kept, ignore_errors=True)
                    shutil.copytree(runs.run, kept)
                    self.failures.append(f"{failure}\n  its folder: {kept}")
                    print(self.failures[-1], flush=True)
            self.counts += runs.counts
            runs.starter.end()

    def __str__(self):
        return f"{sum(self.kills)} kills in {len(self.kills)} runs, {len(self.failures)} failures: {dict(sorted(self.counts.items()))}"


def kill_runs(seed, kills, jobs, seconds=float("inf")):
    """Job i of n kills the runs of seeds `seed` + i, `seed` + i + n, …"""
    total = Total(kills, seconds)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(total.kill_runs, itertools.count(seed + i, jobs)) for i in range(jobs)]:
            job.result()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further run has the next one")
    parser.add_argument("--kills", type=int, default=1000, help="starts no further run after this number")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="starts no further run after this time")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    options = parser.parse_args()
    begin = time.monotonic()
    total = kill_runs(options.seed, options.kills, options.jobs, options.seconds)
    print(f"seeds from {options.seed}, {(time.monotonic() - begin) / max(1, sum(total.kills)):.2f} s per kill: {total}")
    return len(total.failures) > 0


if __name__ == "__main__":
    sys.exit(main())
