"""Tests dtopp.load and its example: the module computes and generates what the program does."""

import json
import os
import re
import runpy
import sys

import pytest
import tiny_language_run
import tiny_run
import torch
from huggingface_folder import remote_code, run_as_user
from needs import needs_program

import dtopp

pytestmark = [needs_program, pytest.mark.usefixtures("remote_code")]

PROMPT = "The fog came down at noon, and"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp("load"), "dtop_p", 128)


@pytest.fixture(autouse=True)
def binary(monkeypatch):
    monkeypatch.setenv("DTOPP_BINARY", str(tiny_run.BINARY))


def test_a_run_becomes_a_module_with_the_same_loss_and_text(run, tmp_path):
    model = dtopp.load(run)
    assert isinstance(model, torch.nn.Module) and not model.training
    length = model.config.max_position_embeddings
    ids = torch.randint(1, model.config.vocab_size, (3 * length + 1,), generator=torch.Generator().manual_seed(1))
    (tmp_path / "ids.npy").write_bytes(ids.to(torch.int16).numpy().tobytes())
    done = tiny_run.dtopp("evaluate", "text", run, "--text", tmp_path / "ids.npy", "--json")
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        logits = model(ids[:-1].view(3, length)).logits
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), ids[1:])
    assert json.loads(done.stdout)["nll"] == pytest.approx(nll.item(), abs=1e-5)

    prompt = model.tokenizer(PROMPT, return_tensors="pt").input_ids
    text = model.tokenizer.decode(model.generate(prompt, max_new_tokens=16, do_sample=False)[0, prompt.shape[1]:])
    done = tiny_run.dtopp("generate", run, "--prompt", PROMPT, "--max-tokens", 16, "--temperature", 0)
    assert done.stdout == text + "\n"


def test_the_page_runs_without_questions_and_warnings(run, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/first").symlink_to(run)
    page = (tiny_run.ROOT / "docs/how-to/pytorch.md").read_text()
    monkeypatch.setenv("PYTHONPATH", str(tiny_run.ROOT / "python"), prepend=os.pathsep)
    done = run_as_user("import dtopp\n" + re.search(r"^## Open a checkpoint\n+```python\n(.*?)^```", page, re.M | re.S)[1], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The old man")


def test_options_are_those_of_from_pretrained(run):
    assert dtopp.load(run, dtype=torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


def test_the_example_shows_the_experts_of_each_token(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["use_checkpoint.py", str(run), PROMPT, "--tokens", "5"])
    runpy.run_path(str(tiny_run.ROOT / "examples/use_checkpoint.py"), run_name="__main__")
    printed = capsys.readouterr().out
    counts = [float(count) for count in re.findall(r"\[(\d+\.\d)\]", printed)]
    mean = float(re.search(r"experts ([\d.]+) per token", printed)[1])
    assert len(counts) > 5 and sum(counts) / len(counts) == pytest.approx(mean, abs=0.05)


def test_a_refused_checkpoint_is_the_programs_message(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}/none"):
        dtopp.load(tmp_path / "none")


def test_a_missing_program_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setenv("DTOPP_BINARY", str(tmp_path / "dtopp"))
    monkeypatch.setattr("dtopp.checkpoints.PROGRAM", tmp_path / "none")
    monkeypatch.setattr("dtopp.checkpoints._CHECKOUT", tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/dtopp is missing"):
        dtopp.load(run)
