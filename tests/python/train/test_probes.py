"""Tasks measured during training do not change the training, and they agree with evaluate."""

import json

import pytest
import tiny_language_run
import tiny_run
from needs import TASK_DATA, needs_program, needs_task_data
from refusal import assert_refused

pytestmark = [needs_program, needs_task_data]
PROBES = ["validation.every=2", "validation.tasks=[hellaswag,arc_easy]", f"validation.task_data={TASK_DATA}",
          "validation.task_limit=20"]


@pytest.fixture(scope="module", params=["dtop_p", *tiny_run.in_full("dense")])
def runs(request, tmp_path_factory):
    with_probes = tmp_path_factory.mktemp("with_" + request.param)
    without = tmp_path_factory.mktemp("without_" + request.param)
    return (tiny_language_run.train(with_probes, request.param, 384, *PROBES),
            tiny_language_run.train(without, request.param, 384))


def test_a_run_with_probes_equals_one_without_bit_for_bit(runs):
    def steps(run):
        return [line for line in tiny_run.timeless(tiny_run.metrics(run)) if "train/loss" in line]

    assert steps(runs[0]) == steps(runs[1])
    last = [run / "checkpoints/step-00000004" for run in runs]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (last[0] / name).read_bytes() == (last[1] / name).read_bytes()
    states = [json.loads((path / "state.json").read_text()) for path in last]
    for state in states:
        state.pop("last_validation_step")
    assert states[0] == states[1]


def test_accuracies_are_written_at_each_validation_and_are_those_of_evaluate(runs):
    lines = [line for line in tiny_run.metrics(runs[0]) if "eval/hellaswag/accuracy" in line]
    assert [line["step"] for line in lines] == [0, 2, 4]
    done = tiny_run.dtopp("evaluate", "tasks", runs[0], "--tasks", "hellaswag,arc_easy", "--data", TASK_DATA, "--limit", "20", "--json")
    assert done.returncode == 0, done.stderr
    for task, result in json.loads(done.stdout)["tasks"].items():
        assert lines[-1][f"eval/{task}/accuracy"] == result["accuracy"]


def test_ranks_share_the_items_and_find_the_same(tmp_path):
    metrics = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        run = tiny_language_run.train(folder, "dtop_p", 384, *PROBES, "training.micro_batch_size=1", "--processes", processes)
        metrics.append(tiny_run.timeless(tiny_run.metrics(run)))
    assert metrics[0] == metrics[1]
    assert sum("eval/arc_easy/accuracy" in line for line in metrics[0]) == 3


def test_an_accuracy_that_cannot_be_known_is_null_and_training_goes_on(tmp_path):
    run = tiny_language_run.train(tmp_path, "dtop_p", 384, *PROBES, "optimizer.lr=1.0e38", "optimizer.min_lr=1.0e38",
                                  "optimizer.warmup_steps=0", "validation.tasks=[arc_easy]")
    accuracies = [line["eval/arc_easy/accuracy"] for line in tiny_run.metrics(run) if "eval/arc_easy/accuracy" in line]
    assert accuracies[0] is not None and accuracies[1:] == [None, None]


@pytest.mark.parametrize("override, status, names", [
    ("validation.tasks=[hellaswagg]", 2, ["hellaswagg", "hellaswag?"]),
    ("validation.task_data=/nowhere", 3, ["/nowhere/arc_easy.jsonl", "validation.tasks=[]"]),
    ("data.train=[/nowhere]", 3, "/nowhere"),
    ("model.sequence_length=16", 2, "model.sequence_length"),
])
def test_wrong_probes_end_a_run_before_its_first_step(runs, tmp_path, override, status, names):
    tokens = runs[0].parent / "tokens"
    config = tiny_run.make(tmp_path)
    done = tiny_run.dtopp("train", config, "model.vocab_size=50304", "model.sequence_length=384",
                          f"data.train=[{tokens}]", "data.validation=[]", *PROBES, override)
    assert_refused(done, status, names)
    assert not (tmp_path / "run").exists()
