"""`dtopp convert lm-eval` and python -m dtopp.lm_eval: lm-eval gives the same result for every item as `dtopp
evaluate`, which uses C++ code and its own model."""

import ast
import functools
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys

import pytest
import tiny_language_run
import tiny_run
import tokenizers
from huggingface_folder import remote_code, to_hf
from needs import TASK_DATA, needs_program, needs_task_data
from refusal import assert_refused

pytestmark = needs_program

TOKENIZER = tiny_language_run.TOKENIZER if tiny_run.FULL else tiny_language_run.SMALL_TOKENIZER
LIMIT = 50 if tiny_run.FULL else 2
MODULE = (tiny_run.ROOT / "python/dtopp/lm_eval.py").read_text()
SEPARATOR = ast.literal_eval(re.search('^SEPARATOR = (".*")$', MODULE, re.MULTILINE)[1])


def convert(folder, *arguments):
    return tiny_run.dtopp("convert", "lm-eval", folder, *arguments)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm_eval") / "tasks"
    done = convert(folder, "--data", TASK_DATA)
    assert done.returncode == 0 and done.stdout == f"{folder}\n", done.stderr
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    # More steps than usual: an untrained model finds all choices almost equally likely.
    return tiny_language_run.train(tmp_path_factory.mktemp("run"), "dtop_p", 2048, "training.steps=8", tokenizer=TOKENIZER)


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    return to_hf(run, tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module")
def evaluated(run, tmp_path_factory):
    """The results and the dump of `dtopp evaluate`."""
    dump = tmp_path_factory.mktemp("evaluated") / "dump.jsonl"
    done = tiny_run.dtopp("evaluate", "tasks", run, "--data", TASK_DATA, "--tasks", "all", "--limit", LIMIT, "--dump", dump, "--json", timeout=1800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), [json.loads(line) for line in dump.read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def dtopp_lm_eval(tmp_path_factory, remote_code):
    """The module, loaded in this process. Its downloads stay out of the user's caches, and it uses no
    network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        patch.syspath_prepend(tiny_run.ROOT / "python")
        import datasets
        import dtopp.lm_eval
        import lm_eval.tasks
        import torch
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several threads wait longer than they compute
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        # lm-eval's fourteen thousand tasks take half a minute to read.
        patch.setattr(lm_eval.tasks, "TaskManager", functools.partial(lm_eval.tasks.TaskManager, include_defaults=False))
        yield dtopp.lm_eval
        torch.set_num_threads(threads)


@pytest.fixture
def lm_eval_main(dtopp_lm_eval, model, tasks, monkeypatch):
    """lm_eval_main(task, *options) runs its command line."""
    def call(task, *options, model_class="dtopp_hf", model_args=""):
        monkeypatch.setattr(sys, "argv", [
            "lm_eval", "--model", model_class, "--include_path", str(tasks), "--tasks", task, "--device", "cpu",
            "--model_args", f"pretrained={model},trust_remote_code=True{model_args}", *map(str, options)])
        dtopp_lm_eval.main()
    return call


def outcome(folder):
    """Returns the results, and the samples of each task in the order of its documents."""
    results, = folder.glob("*/results_*.json")
    samples = {}
    for path in folder.glob("*/samples_*.jsonl"):
        name = path.name.removeprefix("samples_").rsplit("_", 1)[0]
        samples[name] = sorted(map(json.loads, path.read_text().split("\n")[:-1]), key=lambda sample: sample["doc_id"])
    return json.loads(results.read_text())["results"], samples


def name_of(item):
    return "_".join(filter(None, ["dtopp", item["task"], item["category"]]))


def require_same(evaluated, results, samples):
    scores, items = evaluated
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    for item in items:
        sample = samples[name_of(item)][item["index"]]
        answers = [answer for answer, in sample["resps"]]
        if item["task"] == "svamp":
            text = tokenizer.decode(item["generated"])
            assert answers == [text.split("\n\n")[0].split("Q:")[0]]
        else:
            log_probs, greedy = zip(*((float(log_p), flag == "True") for log_p, flag in answers))
            assert log_probs == pytest.approx([sum(choice) for choice in item["log_probs"]], abs=1e-4)
            assert list(greedy) == item["greedy"]
            if item["task"] != "lambada_openai":
                means = [log_p / len(ids) for log_p, ids in zip(log_probs, item["continuations"])]
                assert means.index(max(means)) == item["prediction"]
        assert sample["acc"] == item["correct"], item
    assert sum(len(of_task) for of_task in samples.values()) == len(items)
    for task, result in scores["tasks"].items():
        assert results[f"dtopp_{task}"]["acc,none"] == pytest.approx(result["accuracy"], abs=1e-12)


@needs_task_data
def test_lm_eval_gives_the_scores_of_evaluate(evaluated, lm_eval_main, tmp_path):
    lm_eval_main("dtopp", "--limit", LIMIT, "--batch_size", 4, "--output_path", tmp_path, "--log_samples")
    results, samples = outcome(tmp_path)
    assert len(samples) == 12 + 57
    require_same(evaluated, results, samples)


@needs_task_data
@pytest.mark.nightly  # lm-eval takes half a minute to begin
def test_the_command_itself(evaluated, model, tasks, tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"),
                   "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tiny_run.ROOT / "python")}
    done = subprocess.run(
        [sys.executable, "-m", "dtopp.lm_eval", "--model", "dtopp_hf", "--include_path", tasks, "--tasks",
         "dtopp_copa,dtopp_svamp", "--model_args", f"pretrained={model},trust_remote_code=True", "--limit", str(LIMIT),
         "--output_path", tmp_path / "out", "--log_samples"], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "dtopp_copa" in done.stdout
    scores, items = evaluated
    kept = {"copa", "svamp"}
    of_both = {"tasks": {task: scores["tasks"][task] for task in kept}}, [item for item in items if item["task"] in kept]
    require_same(of_both, *outcome(tmp_path / "out"))


@needs_task_data
def test_requests_are_evaluates_to_the_id(run, dtopp_lm_eval, model, tasks, tmp_path):
    """Covers more items than the model evaluates, including truncated ones."""
    dump = tmp_path / "dump.jsonl"
    names = ["svamp", "copa", "winogrande", "agi_eval_sat_en"]
    done = tiny_run.dtopp("evaluate", "tasks", run, "--data", TASK_DATA, "--tasks", ",".join(names), "--limit", "30", "--dump", dump, "--dry-run")
    assert done.returncode == 0, done.stderr
    asked = dtopp_lm_eval.DtoppHFLM(pretrained=str(model), trust_remote_code=True, device="cpu")
    documents = {name: (tasks / f"data/dtopp_{name}.jsonl").read_text().split("\n") for name in names}
    budget = asked._answer_budget(tasks / "data/dtopp_svamp.jsonl")
    cut = 0
    for item in map(json.loads, dump.read_text().split("\n")[:-1]):
        document = json.loads(documents[item["task"]][item["index"]])
        if item["task"] == "svamp":
            ids, mask = asked.tok_batch_encode([document["context"]], left_truncate_len=2048 - budget)
            assert ids.tolist() == item["contexts"] and mask.all()
            continue
        for choice, continuation in enumerate(item["continuations"]):
            context = document["contexts"][choice] if item["task"] == "winogrande" else document["context"]
            text = document["continuation"] if item["task"] == "winogrande" else document["continuations"][choice]
            ids, continuation_ids = asked._encode_pair(context, text)
            assert continuation_ids == continuation
            assert ids == item["contexts"][choice if len(item["contexts"]) > 1 else 0]
            cut += len(ids) + len(continuation_ids) == 2048
    assert cut > 100


@needs_task_data
def test_documents_are_whole(tasks):
    """Every item of every data set is present, with its parts separated by the character that dtopp.lm_eval expects."""
    counts = {}
    for path in (tasks / "data").iterdir():
        lines = path.read_text().split("\n")
        assert lines.pop() == ""
        for line in lines:
            document = json.loads(line)
            for context in document.get("contexts", [document.get("context")]):
                assert context.count(SEPARATOR) == 1
        counts[path.stem] = len(lines)
        assert (tasks / f"{path.stem}.yaml").exists()
    assert sum(count for name, count in counts.items() if name.startswith("dtopp_mmlu_")) == 14042
    assert {name: counts[name] for name in ("dtopp_svamp", "dtopp_copa", "dtopp_hellaswag")} == {
        "dtopp_svamp": 300, "dtopp_copa": 100, "dtopp_hellaswag": 10042}
    assert len(counts) == 12 + 57


@needs_task_data
def test_a_prompt_that_does_not_fit_ends_with_one_line(lm_eval_main, capfd):
    with pytest.raises(SystemExit) as ended:
        lm_eval_main("dtopp_copa", "--limit", "1", model_args=",max_length=64")
    assert ended.value.code == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("dtopp.lm_eval: a prompt takes ") and "the model's sequences have 64" in last


@needs_task_data
def test_another_model_class_is_told_which_one(lm_eval_main):
    with pytest.raises(TypeError, match="--model dtopp_hf"):
        lm_eval_main("dtopp_copa", "--limit", "1", model_class="hf")


@needs_task_data
def test_answers_are_judged_as_specified(tasks):
    spec = importlib.util.spec_from_file_location("dtopp_tasks", tasks / "dtopp_tasks.py")
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    for text, gold, right in [("\n( 8.0 - 7.0 ) #### 1\n", "1", 1), ("\n( 8.0 + 7.0 ) #### 15", "1", 1), (" #### -3", "3", 1),
                              ("\n67 - 9 #### 58.0", "58", 1), ("\n( 8.0 - 7.0 )", "8", 1), ("\n( 8.0 - 7.0 ) ####1", "1", 0),
                              ("", "1", 0), ("1 #### 2 #### 3", "3", 1), (" #### The 4", "4", 1)]:
        assert judge.begins_with_answer({"answer": gold}, [text]) == {"acc": right}, text


def test_a_log_likelihood_that_was_kept_knows_its_tokens(dtopp_lm_eval):
    log_p = dtopp_lm_eval._log_likelihood(-1.5, 3)
    again = pickle.loads(pickle.dumps(log_p))
    assert (again, again.tokens, type(again)) == (-1.5, 3, dtopp_lm_eval.LogLikelihood)


def test_without_lm_eval_one_line_says_what_to_install():
    code = "import sys, dtopp; assert 'lm_eval' not in sys.modules; sys.modules['lm_eval'] = None; import dtopp.lm_eval"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tiny_run.ROOT / "python")},
                          text=True, capture_output=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: dtopp.lm_eval: ") and last.endswith("; pip install lm-eval accelerate transformers")


def test_what_cannot_be_written_or_read_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("years of work")
    for folder, data, status, name in [("full", TASK_DATA, 2, tmp_path / "full"), ("new", tmp_path, 3, ".jsonl")]:
        assert_refused(convert(tmp_path / folder, "--data", data), status, name)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert convert(tmp_path / "new").returncode == 2
