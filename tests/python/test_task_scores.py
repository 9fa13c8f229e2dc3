"""evaluate on the 13 tasks: what the model says, against the plain PyTorch model that knows no cache and no batch, and
what is made of it. The prompts themselves are the business of test_evaluate_tasks.py."""

import json
import math
import os
import signal
import subprocess
import time

import pytest
import tiny_language_run
import tiny_run
import tokenizers

pytestmark = pytest.mark.skipif(not tiny_run.BINARY.exists(), reason=f"{tiny_run.BINARY} is not built")

DATA = tiny_run.ROOT / os.environ.get("DTOPP_DATA", "../shared") / "eval/data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there")
ALL = ["svamp", "mmlu", "arc_easy", "arc_challenge", "copa", "piqa", "hellaswag", "winogrande", "lambada_openai",
       "boolq", "agi_eval_lsat_rc", "agi_eval_lsat_lr", "agi_eval_sat_en"]


@pytest.fixture(scope="module", params=["dtop_p", "dtop_p_layer", "dense"])
def run(request, tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp(request.param), request.param, 2048)


def evaluate(run, *arguments, **options):
    return tiny_run.dtopp("evaluate", run, "--data", DATA, "--json", *arguments, **options)


def dumped(run, path, *arguments):
    done = evaluate(run, "--dump", path, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()], json.loads(done.stdout)


@needs_data
def test_scores_are_those_of_a_model_without_cache_and_batch(run, tmp_path):
    items, results = dumped(run, tmp_path / "dump.jsonl", "--tasks",
                            "copa,winogrande,lambada_openai,hellaswag", "--limit", "2")
    reference = tiny_language_run.Reference(run)
    right = {}
    for item in items:
        means = []
        for choice, continuation in enumerate(item["continuations"]):
            context = item["contexts"][choice if len(item["contexts"]) > 1 else 0]
            rows = reference.log_probs(context + continuation)[len(context) - 1:-1]
            expected = [row[token].item() for row, token in zip(rows, continuation)]
            assert item["log_probs"][choice] == pytest.approx(expected, abs=1e-4)
            assert item["greedy"][choice] == (rows.argmax(-1).tolist() == continuation)
            means.append(-sum(item["log_probs"][choice]) / len(continuation))
        if item["task"] != "lambada_openai":
            assert item["prediction"] == means.index(min(means))
        else:
            assert item["correct"] == item["greedy"][0]
        right.setdefault(item["task"], []).append(item["correct"])
    for task, flags in right.items():
        accuracy = sum(flags) / len(flags)
        assert results["tasks"][task]["accuracy"] == pytest.approx(accuracy)
        assert results["tasks"][task]["stderr"] == pytest.approx((accuracy * (1 - accuracy) / len(flags)) ** 0.5)
        assert results["tasks"][task]["items"] == len(flags)
    words = [item["log_probs"][0] for item in items if item["task"] == "lambada_openai"]
    lambada = results["tasks"]["lambada_openai"]
    assert lambada["perplexity"] == pytest.approx(math.exp(-sum(map(sum, words)) / len(words)), rel=1e-5)
    assert lambada["nll"] == pytest.approx(-sum(map(sum, words)) / sum(map(len, words)), rel=1e-5)


@needs_data
def test_generation_is_greedy_from_the_prompt_alone(run, tmp_path):
    items, _ = dumped(run, tmp_path / "dump.jsonl", "--tasks", "svamp", "--limit", "2")
    reference = tiny_language_run.Reference(run)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_language_run.TOKENIZER))
    for item in items:
        context, generated = item["contexts"][0], item["generated"]
        likeliest = reference.log_probs(context + generated)[len(context) - 1:].argmax(-1).tolist()
        assert generated == likeliest[:-1] and 0 not in generated
        texts = [tokenizer.decode(generated[:count]) for count in range(len(generated) + 1)]
        stopped = ["\n\n" in text or "Q:" in text for text in texts]
        assert not any(stopped[:-1])
        assert stopped[-1] or likeliest[-1] == 0 or len(generated) == 31


@needs_data
def test_scores_do_not_depend_on_batch_or_threads(run, tmp_path):
    tasks = ["--tasks", "arc_easy,copa,winogrande,mmlu", "--limit", "1"]
    one, _ = dumped(run, tmp_path / "one.jsonl", *tasks, "--batch-size", "1", "--threads", "1")
    many, _ = dumped(run, tmp_path / "many.jsonl", *tasks, "--batch-size", "16", "--threads", "2")
    assert len(one) == len(many) == 3 + 57
    for a, b in zip(one, many):
        for p, q in zip(a["log_probs"], b["log_probs"]):
            assert p == pytest.approx(q, abs=1e-4)


@needs_data
def test_all_tasks_run(run, tmp_path):
    done = evaluate(run, "--tasks", "all", "--limit", "1", "--output", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["tasks"]) == ALL
    assert results == json.loads(done.stdout)
    assert results["average"] == pytest.approx(sum(task["accuracy"] for task in results["tasks"].values()) / 13)
    assert not (tmp_path / "results.json.parts").exists()


@needs_data
def test_an_interrupted_evaluation_goes_on_with_the_next_task(run, tmp_path):
    output = tmp_path / "results.json"
    arguments = ["--tasks", "copa,hellaswag", "--limit", "150", "--output", output, "--dump", tmp_path / "dump.jsonl"]
    command = [tiny_run.BINARY, "evaluate", run, "--data", DATA, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "results.json.parts/copa.json").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (75, 0), errors  # 0 where the second task had already ended
    if process.returncode == 75:
        assert not output.exists()
        again = evaluate(run, *arguments)
        assert again.returncode == 0 and "copa: finished by an earlier run" in again.stderr, again.stderr
    whole, results = dumped(run, tmp_path / "whole.jsonl", "--tasks", "copa,hellaswag", "--limit", "150")
    assert json.loads(output.read_text()) == results
    assert (tmp_path / "dump.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    assert len(whole) == 250


@needs_data
def test_a_kept_result_of_another_call_does_not_count(run, tmp_path):
    output = tmp_path / "results.json"
    parts = tmp_path / "results.json.parts"
    parts.mkdir()
    for content in ('{"key": {}, "tallies": [[100, 100]]}', "not json"):
        (parts / "copa.json").write_text(content)
        done = evaluate(run, "--tasks", "copa", "--limit", "3", "--output", output)
        assert done.returncode == 0, done.stderr
        assert "earlier run" not in done.stderr
        assert json.loads(output.read_text())["tasks"]["copa"]["items"] == 3
        parts.mkdir(exist_ok=True)


@needs_data
def test_the_papers_columns_stand_beside_the_table(run):
    done = tiny_run.dtopp("evaluate", run, "--data", DATA, "--tasks", "copa", "--limit", "3", "--paper")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("COPA"))
    assert row.split("|")[1].split() == ["69.0", "82.0", "82.0", "85.0"]
