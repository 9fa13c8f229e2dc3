"""Tests that the programs of examples/ run, learn and keep their expert budget."""

import os
import re
import runpy
import subprocess
import sys

import pytest
import torch
from tiny_run import ROOT, in_full

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))
TARGET = 4


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs a program in this process, which has already loaded torch, and returns its output."""
    def call(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program, *map(str, arguments)])
        capfd.readouterr()
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        return capfd.readouterr().out

    return call


def torchrun(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, EXAMPLES / arguments[0], *arguments[1:]], env=environment, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def byte_entropy():
    """The entropy of the sample text's bytes in nats: the loss of a model that has learned byte frequencies
    only."""
    import train_gpt
    share = torch.bincount(train_gpt.load(train_gpt.SAMPLE), minlength=256).double()
    return torch.special.entr(share / share.sum()).sum().item()


def losses(printed):
    return [float(loss) for loss in re.findall(r"(?<![\w/])loss\W+([\d.]+)", printed)]


def experts(printed):
    return [float(count) for count in re.findall(r"(?:experts |active_experts': ')([\d.]+)", printed)]


def test_gpt_learns_within_its_budget(run, byte_entropy):
    printed = run("train_gpt.py", 60)
    assert losses(printed)[-1] < byte_entropy - 0.2
    assert experts(printed)[-1] == pytest.approx(TARGET, rel=0.1)


@pytest.mark.parametrize("option", ["--fsdp", *in_full("--steps=40")])
def test_two_processes_learn_within_their_budget(option, byte_entropy):
    printed = torchrun("two_processes.py", "--steps=40", option)
    assert losses(printed)[-1] < byte_entropy - 0.1
    assert experts(printed)[-1] == pytest.approx(TARGET, rel=0.1)


def test_hugging_face_trainer_learns_and_goes_on(run, tmp_path, byte_entropy):
    printed = run("huggingface_trainer.py", tmp_path, "--steps", 40)
    assert losses(printed)[-1] < byte_entropy - 0.1
    assert experts(printed)[-1] == pytest.approx(TARGET, rel=0.1)
    resumed = run("huggingface_trainer.py", tmp_path, "--steps", 50)
    assert len(losses(resumed)) == 1 and losses(resumed)[0] < losses(printed)[0] - 0.5
    assert experts(resumed) == pytest.approx([TARGET], rel=0.1)


def test_classifier_tells_digits(run, tmp_path):
    pictures = tmp_path / "digits.tar"
    subprocess.run([sys.executable, ROOT / "scripts/glyphs.py", "draw", pictures, "--count", "500"], check=True)
    printed = run("classify_images.py", pictures, "--steps", 100)
    assert float(re.search(r"accuracy ([\d.]+) on 100 pictures", printed).group(1)) > 0.6
    assert experts(printed)[-1] == pytest.approx(2, rel=0.1)
