"""Tests evaluate on the 13 tasks: the model's answers against the plain PyTorch model, which has neither
cache nor batches, and the scores. test_tasks.py tests the prompts."""

import json
import math
import signal
import subprocess
import time

import pytest
import tiny_language_run
import tiny_run
import tokenizers
from needs import TASK_DATA, needs_program, needs_task_data
from refusal import assert_refused

pytestmark = needs_program

ALL = ["svamp", "mmlu", "arc_easy", "arc_challenge", "copa", "piqa", "hellaswag", "winogrande", "lambada_openai",
       "boolq", "agi_eval_lsat_rc", "agi_eval_lsat_lr", "agi_eval_sat_en"]


@pytest.fixture(scope="module", params=["dtop_p", *tiny_run.in_full("dtop_p_layer", "dense")])
def run(request, tmp_path_factory):
    return tiny_language_run.train(tmp_path_factory.mktemp(request.param), request.param, 2048)


def evaluate(run, *arguments, **options):
    return tiny_run.dtopp("evaluate", "tasks", run, "--data", TASK_DATA, "--json", *arguments, **options)


def dumped(run, path, *arguments):
    done = evaluate(run, "--dump", path, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()], json.loads(done.stdout)


@needs_task_data
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


@needs_task_data
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


@needs_task_data
def test_scores_do_not_depend_on_batch_or_threads(run, tmp_path):
    tasks = ["--tasks", "arc_easy,copa,winogrande,mmlu", "--limit", "1"]
    one, _ = dumped(run, tmp_path / "one.jsonl", *tasks, "--batch-size", "1", "--threads", "1")
    many, _ = dumped(run, tmp_path / "many.jsonl", *tasks, "--batch-size", "16", "--threads", "2")
    assert len(one) == len(many) == 3 + 57
    for a, b in zip(one, many):
        for p, q in zip(a["log_probs"], b["log_probs"]):
            assert p == pytest.approx(q, abs=1e-4)


@needs_task_data
def test_all_tasks_run(run, tmp_path):
    done = evaluate(run, "--tasks", "all", "--limit", "1", "--output", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["tasks"]) == ALL
    assert results == json.loads(done.stdout)
    assert results["average"] == pytest.approx(sum(task["accuracy"] for task in results["tasks"].values()) / 13)
    assert not (tmp_path / "results.json.parts").exists()


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """A model with sequences of 512 tokens; six tasks have longer prompts."""
    return tiny_language_run.train(tmp_path_factory.mktemp("short"), "dtop_p", 512)


LONG = {"mmlu", "lambada_openai", "boolq", "agi_eval_lsat_rc", "agi_eval_lsat_lr", "agi_eval_sat_en"}


@needs_task_data
def test_all_takes_what_fits_the_model_and_names_the_rest(short_run, tmp_path):
    output = tmp_path / "results.json"
    arguments = ["evaluate", "tasks", short_run, "--data", TASK_DATA, "--limit", "2"]
    done = tiny_run.dtopp(*arguments, "--tasks", "all", "--output", output)
    assert done.returncode == 0, done.stderr
    results = json.loads(output.read_text())
    left_out = results["left_out"]
    assert "boolq" in left_out and set(left_out) <= LONG
    assert all(task["longest"] > task["sequence_length"] == 512 for task in left_out.values())
    assert list(results["tasks"]) == results["average_over"] == [name for name in ALL if name not in left_out]
    assert results["average"] == pytest.approx(
        sum(task["accuracy"] for task in results["tasks"].values()) / len(results["tasks"]))
    assert done.stdout.count("left out: its longest prompt takes") == len(left_out)
    assert f"over {13 - len(left_out)} of 13 tasks" in done.stdout.splitlines()[-1]

    done = tiny_run.dtopp(*arguments, "--tasks", "copa,boolq")
    assert_refused(done, 2, ["boolq", left_out["boolq"]["longest"]])
    assert done.stdout == ""


@needs_task_data
def test_results_of_another_checkpoint_are_not_overwritten(run, tmp_path):
    arguments = ["--tasks", "copa", "--limit", "2", "--output"]
    folder = tmp_path / "results"
    folder.mkdir()
    assert evaluate(run, *arguments, folder).returncode == 0
    (file,) = folder.iterdir()
    results = json.loads(file.read_text())
    assert file.name == f"tasks-step-{results['step']:08}.json" and results["step"] > 0
    assert ("p" in results) == ("dense" not in str(run)) and "target_experts" not in results
    assert evaluate(run, *arguments, file).returncode == 0
    file.write_text(json.dumps(results | {"step": 1}))
    assert_refused(evaluate(run, *arguments, file), 2, [file, "step 1", f"step {results['step']}"])
    assert json.loads(file.read_text())["step"] == 1
    if "dense" in str(run):
        return
    (tmp_path / "text.txt").write_text(tiny_language_run.TEXT * 20)
    assert evaluate(run, *arguments, folder, "--target-experts", "2", "--target-text", tmp_path / "text.txt").returncode == 0
    other = folder / f"tasks-step-{results['step']:08}-experts-2.json"
    assert json.loads(other.read_text())["target_experts"] == 2


@needs_task_data
def test_what_dtopp_did_not_write_stays(run, tmp_path):
    """A folder with the name of the one that stores finished tasks."""
    parts = tmp_path / "results.json.parts"
    parts.mkdir()
    (parts / "thesis.tex").write_text("years of work")
    done = evaluate(run, "--tasks", "copa,piqa", "--limit", "2", "--output", tmp_path / "results.json", "--dump",
                    tmp_path / "dump.jsonl")
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in parts.iterdir()} == {"thesis.tex": "years of work"}
    assert [json.loads(line)["task"] for line in open(tmp_path / "dump.jsonl")] == ["copa"] * 2 + ["piqa"] * 2


@needs_task_data
def test_a_sweep_leaves_nothing_behind(run, tmp_path):
    if "dense" in str(run):
        pytest.skip("a dense model has no budget")
    (tmp_path / "text.txt").write_text(tiny_language_run.TEXT * 20)
    done = evaluate(run, "--tasks", "copa", "--limit", "2", "--sweep-target", "2,4", "--target-text",
                    tmp_path / "text.txt", "--output", tmp_path / "sweep.json")
    assert done.returncode == 0, done.stderr
    sweep = json.loads((tmp_path / "sweep.json").read_text())["sweep"]
    assert [entry["target_experts"] for entry in sweep] == [2, 4] and "copa" in sweep[0]["tasks"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.json", "text.txt"]


@needs_task_data
def test_an_interrupted_evaluation_goes_on_with_the_next_task(run, tmp_path):
    output = tmp_path / "results.json"
    arguments = ["--tasks", "copa,hellaswag", "--limit", "150", "--output", output, "--dump", tmp_path / "dump.jsonl"]
    command = [tiny_run.BINARY, "evaluate", "tasks", run, "--data", TASK_DATA, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "results.json.parts/copa.json").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (75, 0), errors  # 0 if the second task had already ended
    if process.returncode == 75:
        assert not output.exists()
        again = evaluate(run, *arguments)
        assert again.returncode == 0 and "copa: finished by an earlier run" in again.stderr, again.stderr
    whole, results = dumped(run, tmp_path / "whole.jsonl", "--tasks", "copa,hellaswag", "--limit", "150")
    assert json.loads(output.read_text()) == results
    assert (tmp_path / "dump.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()
    assert len(whole) == 250


@needs_task_data
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


@needs_task_data
def test_the_papers_columns_stand_beside_the_table(run):
    done = tiny_run.dtopp("evaluate", "tasks", run, "--data", TASK_DATA, "--tasks", "copa", "--limit", "3", "--paper")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("accuracy: this model, ") and "tokens" in lines[0]
    assert "MoE-1.3B-6.9B-64E8A" in lines[1] and "100 billion tokens" in lines[1]
    row = next(line for line in lines if line.startswith("COPA"))
    assert row.split("|")[1].split() == ["69.0", "82.0", "82.0", "85.0"]
