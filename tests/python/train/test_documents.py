"""Runs whose tokens attend to their own document alone: training, evaluation, and the source of the
document's end token."""

import json
import math

import numpy as np
import pytest
import reference_model
import tiny_run
import torch
from needs import for_cpus, needs_program
from refusal import assert_refused

pytestmark = needs_program

DOCUMENTS = ["model.attend_across_documents=false", "data.end_of_text=7", "training.micro_batch_size=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("documents"), *DOCUMENTS)


def reference_nll(checkpoint, ids):
    """The mean over all predicted tokens in windows of 32, in double precision."""
    config, parameters, _, state = reference_model.load_checkpoint(checkpoint, torch.float64)
    thresholds = reference_model.Controller(config, state).thresholds()
    total = 0.0
    for begin in range(0, len(ids) - 1, 32):
        window = torch.tensor(ids[begin:begin + 33].astype(np.int64))[None]
        with torch.no_grad():
            logits, _ = reference_model.forward(config, parameters, window[:, :-1], thresholds)
        total -= logits.log_softmax(-1).gather(-1, window[:, 1:, None]).sum().item()
    return total / (len(ids) - 1)


def test_evaluation_hides_other_documents_too(run, tmp_path):
    checkpoint = run / "run/checkpoints/step-00000012"
    ids = np.random.default_rng(5).integers(0, 32, 200).astype("<u2")  # a document ends about every 32 tokens
    ids.tofile(tmp_path / "text.npy")
    done = tiny_run.dtopp("evaluate", "text", checkpoint, "--text", tmp_path / "text.npy", "--json")
    assert done.returncode == 0, done.stderr
    nll = json.loads(done.stdout)["nll"]
    assert nll == pytest.approx(reference_nll(checkpoint, ids), rel=1e-5)
    config, *_ = reference_model.load_checkpoint(checkpoint)
    assert config["data"]["end_of_text"] == 7 and not math.isclose(nll, blind_nll(checkpoint, ids), rel_tol=1e-4)


def blind_nll(checkpoint, ids):
    """The loss of the same model with attention across documents."""
    original = reference_model.load_checkpoint

    def load(*arguments):
        config, *rest = original(*arguments)
        config["model"]["attend_across_documents"] = True
        return config, *rest
    reference_model.load_checkpoint = load
    try:
        return reference_nll(checkpoint, ids)
    finally:
        reference_model.load_checkpoint = original


@for_cpus
def test_processes_give_the_same_bits(run, tmp_path):
    done = tiny_run.dtopp("train", run / "run.yaml", *DOCUMENTS, f"output={tmp_path}/run", "--processes", 2)
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(run / "run", 12)


def test_an_end_that_never_comes_changes_no_bit(tmp_path):
    directory = tmp_path / "one"
    directory.mkdir()
    for name, count in (("train.npy", 4000), ("validation.npy", 500)):
        np.random.default_rng(count).integers(0, 200, count).astype("<u2").tofile(directory / name)
    plain = tiny_run.trained(directory)
    done = tiny_run.dtopp("train", plain / "run.yaml", "model.attend_across_documents=false", "data.end_of_text=250",
                          f"output={tmp_path}/run")
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(plain / "run", 12)


def test_the_end_has_to_be_known(tmp_path):
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), "model.attend_across_documents=false")
    assert_refused(done, 2, "data.end_of_text")
    assert not (tmp_path / "run").exists()


def test_prepared_text_says_it(tmp_path):
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": f"document {i} of some words"}) for i in range(80)))
    tokenizer = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"
    done = tiny_run.dtopp("prepare", "text", tmp_path / "text.jsonl", "--tokenizer", tokenizer, "--output", tmp_path / "tokens")
    assert done.returncode == 0, done.stderr
    overrides = [f"data.train={tmp_path}/tokens", f"data.validation={tmp_path}/tokens", "model.vocab_size=50432",
                 "model.attend_across_documents=false", "training.steps=2", "optimizer.warmup_steps=1", "checkpoint.every=0"]
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), *overrides)
    assert done.returncode == 0, done.stderr
    done = tiny_run.dtopp("generate", tmp_path / "run", "--prompt", "a<|endoftext|>document", "--max-tokens", 3, "--temperature", 0)
    assert done.returncode == 0, done.stderr
    done = tiny_run.dtopp("train", tmp_path / "run.yaml", *overrides, "data.end_of_text=5", f"output={tmp_path}/other")
    assert_refused(done, 2, "data.end_of_text")
