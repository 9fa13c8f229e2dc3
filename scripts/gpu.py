"""Tests and measures dtopp on one device: `make test-gpu`, `make gpu-report` and `make gpu-queue`.

gpu.py test     runs every test of a CUDA device
gpu.py report   tests and measures until --seconds have passed. Writes FOLDER/report.json and FOLDER/report.html, and
                names the missing pieces. Called again, it runs those. With --results, it also stores report.json in a
                folder, under the names of the device and of the commit.

The work consists of pieces. Each is a process with a time limit; its result is stored in FOLDER/results.jsonl as it ends.

Needs torch, numpy, PyYAML and pytest, but no network. scripts/carry.sh brings the program, the operators and Python packages
along in build/carry. Without them, the operators are built here with g++ and nvcc, and the program is that of build/release.

The file is long because the table of pieces stands beside the code that runs them."""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from gpu_page import render

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARRY = ROOT / "build/carry"
PYTHON = sys.executable
STOPPED = 75  # the exit status of a command that did not end in time
MARGIN = 4  # seconds to end a piece and to write the page


def fail(message):
    sys.exit(f"gpu.py: {message}")


@dataclasses.dataclass(frozen=True)
class Piece:
    """A command, in which SECONDS stands for the time that it has."""
    name: str
    command: tuple
    limit: float  # seconds
    least: float = 5  # it does not begin with fewer seconds left
    needs_program: bool = True
    environment: dict = dataclasses.field(default_factory=dict)

    def words(self, seconds):
        return [str(seconds) if word == "SECONDS" else str(word) for word in self.command]


def tests(name, folder, files, *arguments, needs_program=True, **environment):
    paths = [f"tests/python/{folder}/{file}" for file in files]
    return Piece(f"tests: {name}", (PYTHON, "scripts/run_cases.py", "--json", "--seconds", "SECONDS", *paths, *arguments), 600, 20,
                 needs_program, environment)


PARITY = ["test_model_parity.py", "test_training_parity.py"]
OPERATORS = ["test_ops.py", "test_cuda.py", "test_differential.py"]
FUSED = {"DTOPP_MOE_KERNELS": "fused"}
TESTS = [
    tests("model", "train", PARITY),
    tests("operators", "ops", [*OPERATORS, "test_dispatch.py"], needs_program=False),
    tests("model, fused", "train", PARITY, **FUSED),
    tests("operators, fused", "ops", OPERATORS, "--", "-k", "cuda", needs_program=False, **FUSED),
    tests("training", "train", [f"test_{name}.py" for name in (
        "controller_replay", "diffusion_parity", "diffusion_training", "documents", "probes", "resume", "recompute", "background_saves", "replay")]),
    tests("devices", "plan", ["test_device.py", "test_devices.py"]),
    tests("generation", "generate", [""]),
    tests("evaluation", "evaluate", ["test_text.py", "test_diffusion.py", "test_activations.py"]),
]


def ops_piece(name, limit, device, *cases, needs_program=False):
    rounds = ("--rounds", 1) if device == "cpu" else ()
    return Piece(name, (PYTHON, "benchmarks/gpu_ops.py", "--device", device, *rounds, "--cases", *cases), limit, needs_program=needs_program)


def pieces_of(device):
    """The pieces of the report, the most valuable first. On a CPU they are the same at toy sizes, but for the trace of a step."""
    quick = device == "cpu"
    size = ["--preset", "configs/small.yaml", "--text", "assets/text/novels-validation.jsonl.zst", "--steps", 4,
            "training.global_batch_size=4", "model.sequence_length=64", "model.num_layers=2"] if quick else \
           ["--steps", 22, "--seconds", 60]
    routing = ["--quick", "--rounds", 2, "--steps", 8] if quick else ["--precision", "bf16", "--rounds", 8]

    def training(name, *changes):
        return Piece(name, (PYTHON, "benchmarks/gpu_training.py", "--device", device, *size, *changes), 180, 0 if quick else 40)

    def routers(*methods):  # four of them, Top-k among them, fit into 80 GB
        return Piece(f"routers: {', '.join(methods)}", (PYTHON, "benchmarks/routing_methods.py", "--device", device, *routing, "--methods", *methods),
                     120, 0 if quick else 20)

    return [
        ops_piece("machine", 120, device, "machine"),
        Piece("kernels", ("DTOPP", "devices", "--json"), 120),
        *([tests("devices", "plan", ["test_device.py"])] if quick else TESTS[:2]),
        training("training", *([] if quick else ["--trace"])),
        ops_piece("expert layer", 120, device, "expert_layer"),
        ops_piece("operators", 120, device, "route", "linear_cross_entropy", "norm_rotary", "attention", "orthogonalize", "expert_gemms"),
        routers("dtop_p", "solve", "top_k_bias"),
        training("training within documents", "model.attend_across_documents=false"),
        training("training with Muon", "optimizer.method=muon"),
        routers("dtop_p_bias", "expert_threshold", "hash"),
        Piece("generation", (PYTHON, "benchmarks/generation.py", "--device", device, *(["--quick"] if quick else [])), 90, 0 if quick else 20),
        routers("relu"),
        *([] if quick else TESTS[2:]),
    ]


def find_torch():
    if importlib.util.find_spec("torch") is None:
        fail(f"{PYTHON} has no torch; set PYTHON to a Python that has it")
    return pathlib.Path(importlib.util.find_spec("torch").origin).parents[1]


def lacking():
    return [name for name in ("numpy", "yaml", "pytest") if importlib.util.find_spec(name) is None]


def set_environment(device):
    """Sets the variables by which benchmarks and tests find the program and the operators. Returns the piece that builds the
    operators, if they must be built."""
    site = find_torch()
    # The carried packages are for one version of Python, so a Python that has its own packages uses those.
    if lacking():
        sys.path.insert(0, str(CARRY / "python"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
    if lacking():
        fail(f"{PYTHON} has no {', '.join(lacking())}; install them, or copy build/carry from a machine with network (scripts/carry.sh)")
    os.environ["PATH"] += ":/usr/local/cuda/bin"
    program, carried = CARRY / "bin/dtopp", CARRY / "ops/libdtopp_ops.so"
    os.environ.setdefault("DTOPP_BINARY", str(program if program.exists() else ROOT / "build/release/bin/dtopp"))
    build = None
    if "DTOPP_OPS" not in os.environ:
        if carried.exists():
            library = carried
        elif device == "cpu":
            library = ROOT / "build/release/lib/libdtopp_ops.so"
        else:
            library = ROOT / "build/gpu/lib/libdtopp_ops.so"
            build = Piece("build", ("scripts/build_ops.sh", site, "build/gpu"), 600, needs_program=False)
            missing = [tool for tool in ("g++", "nvcc") if shutil.which(tool) is None]
            if missing:
                fail(f"{' and '.join(missing)} are not installed, and build/carry/ops does not exist (scripts/carry.sh)")
        os.environ["DTOPP_OPS"] = str(library)
    if device == "cuda" or os.environ["DTOPP_BINARY"] == str(program):
        # The program's own rpaths are those of the build machine. The operators for this machine come first.
        folders = [pathlib.Path(os.environ["DTOPP_OPS"]).parent, site / "torch/lib", site / "nvidia/cu13/lib", CARRY / "lib"]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("LD_LIBRARY_PATH")]))
    os.environ["DTOPP_DEVICE"] = device
    return build


def end(process):
    """Ends a process and its children. SIGTERM first: run_cases.py ends its tests then."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(MARGIN / 2)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run(piece, seconds, log=None):
    """Runs a piece for at most `seconds`. Returns its exit status, or STOPPED."""
    command = [os.environ["DTOPP_BINARY"] if word == "DTOPP" else word for word in piece.words(seconds)]
    with tempfile.TemporaryDirectory(prefix="dtopp-", ignore_cleanup_errors=True) as temporary:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log and subprocess.STDOUT, start_new_session=True,
                                   env=os.environ | piece.environment | {"TMPDIR": temporary})
        try:
            # run_cases.py ends by itself and reports the cases that ended.
            return process.wait(None if seconds == float("inf") else seconds + MARGIN / 2)
        except subprocess.TimeoutExpired:
            return STOPPED
        finally:
            end(process)


def test():
    build = set_environment("cuda")
    failed = []
    for piece in ([build] if build else []) + TESTS:
        if piece.needs_program and not pathlib.Path(os.environ["DTOPP_BINARY"]).exists():
            failed.append(f"{piece.name} (the program is missing)")
            continue
        print(f"== {piece.name}", flush=True)
        if run(piece, float("inf")) != 0:
            failed.append(piece.name)
            if piece is build:
                break
    if failed:
        fail(f"failed: {'; '.join(failed)}")


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], cwd=ROOT, capture_output=True, text=True)
    carried = CARRY / "commit"
    return done.stdout.strip() if done.returncode == 0 else carried.read_text().strip() if carried.exists() else "unknown"


def parsed(text):
    """The JSON objects among the lines, and the other lines."""
    objects, others = [], []
    for line in text.splitlines():
        try:
            objects.append(json.loads(line)) if line.startswith("{") else others.append(line)
        except ValueError:
            others.append(line)
    return objects, others


class Report:
    def __init__(self, device, folder, seconds, only=None):
        self.device, self.folder, self.end, self.start = device, folder, time.monotonic() + seconds - MARGIN, time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        self.store = folder / "results.jsonl"
        self.commit = commit()
        build = set_environment(device)
        known = pieces_of(device)
        unknown = set(only or []) - {piece.name for piece in known}
        if unknown:
            fail(f"--only: no piece is called {', '.join(sorted(unknown))}; there are {'; '.join(piece.name for piece in known)}")
        self.pieces = ([build] if build else []) + [piece for piece in known if not only or piece.name in only]
        self.results = {}
        for record in map(json.loads, self.store.read_text().splitlines() if self.store.exists() else []):
            if (record["commit"], record["device"]) == (self.commit, device):
                self.results[record["piece"], tuple(record["command"])] = record

    def result(self, piece):
        return self.results.get((piece.name, tuple(piece.words("SECONDS"))))

    def measure(self, piece):
        begin = time.monotonic()
        record = {"piece": piece.name, "status": "stopped", "seconds": None, "command": piece.words("SECONDS"), "environment": piece.environment,
                  "commit": self.commit, "device": self.device}
        log = self.folder / (piece.name.replace(":", "").replace(",", "").replace(" ", "_") + ".log")
        try:
            with open(log, "w") as out:
                status = run(piece, int(min(piece.limit, self.end - begin)), out)
            record["status"] = {0: "done", STOPPED: "stopped"}.get(status, "failed")
        finally:
            record["seconds"] = round(time.monotonic() - begin, 1)
            record["lines"], others = parsed(log.read_text(errors="replace"))
            record["text"] = "\n".join(others)[-2000:]
            with open(self.store, "a") as store:
                store.write(json.dumps(record) + "\n")
            self.results[piece.name, tuple(record["command"])] = record
        print(f"[{time.monotonic() - self.start:4.0f} s] {piece.name}: {record['status']}, {record['seconds']:.1f} s", flush=True)
        return record

    def run(self):
        # A piece that was stopped or has failed waits until the others have had their time.
        todo = [piece for piece in self.pieces if not self.result(piece) or self.result(piece)["status"] != "done"]
        for piece in sorted(todo, key=lambda piece: self.result(piece) is not None and piece.name not in ("build", "machine")):
            if self.end - time.monotonic() < piece.least or self.why_not(piece):
                continue
            record = self.measure(piece)
            self.write()
            if record["status"] != "done" and piece.name in ("build", "machine"):
                fail(f"{piece.name} {record['status']}: {record['text'][-600:]}")

    def why_not(self, piece):
        if piece.needs_program and not pathlib.Path(os.environ["DTOPP_BINARY"]).exists():
            return "the program is missing: make build, or scripts/carry.sh"
        return None

    def write(self, results=None):
        """Writes the page and the JSON file, also into the folder `results`, and returns the names of pieces that are missing and of those that failed."""
        records = []
        for piece in self.pieces:
            records.append(self.result(piece) or {"piece": piece.name, "status": "missing", "command": piece.words("SECONDS"), "lines": [],
                                                  "text": self.why_not(piece) or "the time was over"})
        missing = [record["piece"] for record in records if record["status"] in ("missing", "stopped")]
        failed = [record["piece"] for record in records if record["status"] == "failed"]
        machine = next((line for record in records for line in record["lines"] if line.get("case") == "machine"), {})
        report = {"machine": machine, "device": self.device, "commit": self.commit, "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                  "command": sys.argv, "seconds": round(sum(record.get("seconds") or 0 for record in records), 1),
                  "missing": missing, "failed": failed, "pieces": records}
        for name, text in (("report.json", json.dumps(report, indent=1)), ("report.html", render(report))):
            (self.folder / f"{name}.new").write_text(text)
            (self.folder / f"{name}.new").replace(self.folder / name)
        if results:
            device = re.sub(r"\W+", "-", machine.get("name") or self.device).lower()
            shutil.copy(self.folder / "report.json", results / f"{device}-{self.commit[:8]}.json")
        return missing, failed


def stop(*_):
    sys.exit(STOPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["test", "report"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a trial of the report at toy sizes")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", nargs="+", metavar="PIECE", help="names of pieces; default: all")
    parser.add_argument("--results", type=pathlib.Path, metavar="FOLDER", help="also store report.json there, as DEVICE-COMMIT.json")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/gpu-report")
    args = parser.parse_args()
    if args.mode == "test":
        return test()
    signal.signal(signal.SIGTERM, stop)
    report = Report(args.device, args.folder.resolve(), args.seconds, args.only)
    try:
        report.run()
    finally:
        missing, failed = report.write(args.results)
        print(args.folder / "report.html")
        if missing:
            print(f"missing: {'; '.join(missing)} (run the command again)")
    if failed:
        fail(f"failed: {'; '.join(failed)}; see {args.folder}")
    sys.exit(STOPPED if missing else 0)


if __name__ == "__main__":
    main()
