"""A run's records: docs/reference/metrics.md lists every name that a run writes to metrics.jsonl; the console gets a few lines in a file,
and one line that changes on a terminal."""

import fcntl
import math
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
import tiny_diffusion_run
import tiny_run
from needs import for_cpus, needs_program
from safetensors import safe_open

PAGE = (tiny_run.ROOT / "docs/reference/metrics.md").read_text()


def listed():
    """The page's names, with the layer, the source and the number of experts as the page writes them."""
    names = set(re.findall(r"`([a-z]+/[\w/]+)`", PAGE))
    of_a_layer = re.search(r"^\| `moe/layer_NN/…` \|(.*)$", PAGE, re.M)[1]
    return names | {f"moe/layer_NN/{name}" for name in re.findall(r"`(\w+)`", of_a_layer)}


def written(run):
    names = {name for line in tiny_run.metrics(run) for name in line} - {"step", "tokens", "time"}
    for pattern, text in ((r"layer_\d\d", "layer_NN"), (r"^data/[^/]+", "data/SOURCE"), (r"tokens_with/.*", "tokens_with/1"),
                          (r"_t\d$", "_t0"), (r"^val/(?!layer_NN)[^/]+/", "val/SOURCE/")):
        names = {re.sub(pattern, text, name) for name in names}
    return names


@pytest.mark.parametrize("method", ["dtop_p", "top_p", "top_k", *tiny_run.ROUTERS])
def test_names_of_a_language_model_are_listed(dtopp_binary, tmp_path, method):
    source = f"[{{path: {tmp_path}/train.npy, weight: 1}}]"
    held_out = f"[{tmp_path}/train.npy, {tmp_path}/validation.npy]"
    tiny_run.trained(tmp_path, *tiny_run.ROUTERS.get(method, [f"routing.method={method}"]), f"data.train={source}",
                     f"data.validation={held_out}")
    names = written(tmp_path / "run")
    assert names - listed() == set()
    assert tiny_run.DEVICE != "cpu" or "throughput/mfu" not in names  # no data sheet


def test_names_of_a_diffusion_transformer_are_listed(dtopp_binary, tmp_path):
    done = tiny_run.dtopp("train", tiny_diffusion_run.make(tmp_path))
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "run") - listed() == set()


def test_names_of_several_ranks_are_listed(dtopp_binary, tmp_path):
    tiny_run.trained(tmp_path, "--processes=2")
    assert written(tmp_path / "run") - listed() == set()


STEPS = ["training.steps=25", "checkpoint.every=0", "validation.every=12", "logging.tensorboard=false"]


def steps_in(lines):
    return [int(match[1]) for match in (re.match(r"step (\d+)/25 \| loss ", line) for line in lines) if match]


@needs_program
@for_cpus
def test_a_file_gets_the_first_the_last_and_every_nth_step(tmp_path):
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *STEPS, "logging.console_every=10", "logging.every=5")
    assert done.returncode == 0, done.stderr
    assert steps_in(done.stderr.splitlines()) == [1, 10, 20, 25]
    assert [line["step"] for line in tiny_run.metrics(tmp_path / "run") if "train/loss" in line] == [5, 10, 15, 20, 25]


@needs_program
@for_cpus
def test_the_start_names_the_size_of_the_run(tmp_path):
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *STEPS)
    assert done.returncode == 0, done.stderr
    sizes = {}
    with safe_open(tmp_path / "run/checkpoints/step-00000025/model.safetensors", "np") as tensors:
        for name in tensors.keys():
            sizes[name] = math.prod(tensors.get_slice(name).get_shape())
    every = sum(sizes.values())
    idle = sum(size for name, size in sizes.items() if ".experts." in name) * 5 / 8  # 3 of 8 experts are active
    first, second = done.stderr.splitlines()[:2]
    assert first == (f"dtopp: {every / 1000:.1f}k parameters, {(every - idle) / 1000:.1f}k active per token; "
                     "25 steps of 4 x 32 tokens: 3.20k tokens")
    assert second.startswith("dtopp: training on the CPU (1 thread) in fp32, measured at ")
    assert second.endswith(f"; output: {tmp_path / 'run'}")


@needs_program
@for_cpus
@pytest.mark.parametrize("excess, warnings", [(1, 0), (3, 1)])
def test_far_more_threads_than_cores_are_warned_of(tmp_path, excess, warnings):
    threads = excess * os.cpu_count()
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *STEPS, "training.steps=4", f"training.threads={threads}")
    assert done.returncode == 0, done.stderr
    assert sum(f"training.threads: {threads} threads" in line for line in done.stderr.splitlines()) == warnings


@needs_program
@for_cpus
def test_a_terminal_shows_one_line_that_changes(tmp_path):
    screen, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    process = subprocess.Popen([tiny_run.BINARY, "train", tiny_run.make(tmp_path), *STEPS], stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    text = b""
    try:
        while block := os.read(screen, 65536):
            text += block
    except OSError:  # the other end is closed
        pass
    assert process.wait(timeout=60) == 0
    drawn = text.decode().split("\r\n")
    shown = [line.rstrip("\r").split("\r")[-1] for line in drawn]
    assert steps_in(shown) == [25]
    states = [state for line in drawn for state in line.split("\r")]
    assert steps_in(states) == list(range(1, 26))
    assert all(len(state) < 70 for state in states if state.startswith("step") and not state.startswith("step 25/"))
    assert [line.split(":")[1] for line in shown if "validation" in line] == [
        f" validation at step {step}" for step in (0, 12, 24, 25)]
