"""A new user's path: prepare text, train the quick start's model, be interrupted, resume, evaluate, generate, report."""

import json
import math
import signal

import pytest
import tiny_run
from needs import for_cpus, needs_program
from rank_process import Process

pytestmark = [needs_program, for_cpus]

NOVELS = tiny_run.ROOT / "assets/text/novels-validation.jsonl.zst"
TOKENIZER = tiny_run.ROOT / "assets/tokenizer/english-4k.tokenizer.json"
STEPS = 20


def dtopp(*arguments):
    done = tiny_run.dtopp(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """train(output): the arguments that train on the prepared novels."""
    tokens = tmp_path_factory.mktemp("novels") / "tokens"
    dtopp("prepare", "text", NOVELS, "--tokenizer", TOKENIZER, "--output", tokens)

    def arguments(output):
        return ["train", tiny_run.ROOT / "configs/quickstart.yaml", f"data.train=[{tokens}]", f"data.validation=[{tokens}]",
                f"training.steps={STEPS}", "training.device=cpu", "training.threads=1", "optimizer.warmup_steps=5",
                "validation.every=10", "validation.tokens=2048", "checkpoint.every=5", "logging.every=1", "logging.console_every=1", f"output={output}"]

    return arguments


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    """A run that was killed after its first checkpoint and then resumed."""
    run = tmp_path_factory.mktemp("first_hour") / "run"
    process = Process([tiny_run.BINARY, *map(str, train(run))])
    process.wait_for("step 7/")
    process.process.send_signal(signal.SIGKILL)
    status, _ = process.end(timeout=60)
    assert status == -signal.SIGKILL
    dtopp(*train(run))
    return run


def test_a_killed_run_resumes_to_the_bits_of_one_that_was_not(run, train, tmp_path):
    dtopp(*train(tmp_path / "whole"))
    assert tiny_run.state(run, STEPS) == tiny_run.state(tmp_path / "whole", STEPS)
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(tmp_path / "whole"))


def test_it_has_learned_and_evaluate_measures_it(run, tmp_path):
    (tmp_path / "text.txt").write_text("It was a fine morning, and they walked to the village. " * 20)
    result = json.loads(dtopp("evaluate", "text", run, "--text", tmp_path / "text.txt", "--threads", 1, "--json"))
    assert result["nll"] < math.log(4096) - 1  # a uniform guess over the vocabulary, less a nat


def test_it_generates_the_same_text_each_time(run):
    options = ["generate", run, "--prompt", "It was", "--max-tokens", 20, "--seed", 1, "--threads", 1]
    text = dtopp(*options)
    assert text.strip() and text == dtopp(*options)


def test_it_has_a_report(run, tmp_path):
    dtopp("report", run, "--output", tmp_path / "report.html")
    assert "quickstart" in (tmp_path / "report.html").read_text()
