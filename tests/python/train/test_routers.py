"""Runs with any router resume, run on several ranks, are planned, evaluated, used and converted, or are refused in one line."""

import json
import shutil

import pytest
import tiny_language_run
import tiny_run
from needs import for_cpus, needs_program
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]

FOUR_RANKS = "training.micro_batch_size=1"  # a step's four sequences are work for four ranks
TARGETS = ("shared_experts", "zero_experts", "expert_normalization", "dtop_p_bias", "schedule", "hash_layers", "muon")  # with --target-experts


def train(directory, router, *overrides):
    done = tiny_run.dtopp("train", tiny_run.make(directory), *tiny_run.ROUTERS[router], *overrides)
    assert done.returncode == 0, done.stderr
    return directory / "run"


@pytest.fixture(scope="module", params=tiny_run.ROUTERS)
def whole(request, tmp_path_factory):
    """A router's name and its run of 12 steps."""
    return request.param, train(tmp_path_factory.mktemp(request.param), request.param, FOUR_RANKS)


def test_a_resumed_run_has_the_same_bits(whole, tmp_path):
    router, run = whole
    resumed = tmp_path / "run"
    shutil.copytree(run, resumed)
    for step in (8, 12):
        shutil.rmtree(resumed / f"checkpoints/step-{step:08d}")
    done = tiny_run.dtopp("train", run.parent / "run.yaml", *tiny_run.ROUTERS[router], FOUR_RANKS, f"output={resumed}")
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(resumed, 12) == tiny_run.state(run, 12)


@pytest.mark.parametrize("processes, expert_parallel", [(2, 2), *tiny_run.in_full((2, 1), (4, 1), (4, 2), (4, 4))])
def test_several_ranks_have_the_bits_of_one(whole, tmp_path, processes, expert_parallel):
    router, run = whole
    done = tiny_run.dtopp("train", run.parent / "run.yaml", *tiny_run.ROUTERS[router], FOUR_RANKS, f"output={tmp_path / 'run'}",
                          "--processes", processes, f"parallel.expert_parallel={expert_parallel}")
    assert done.returncode == 0, done.stderr
    assert tiny_run.state(tmp_path / "run", 12) == tiny_run.state(run, 12)
    assert tiny_run.timeless(tiny_run.metrics(tmp_path / "run")) == tiny_run.timeless(tiny_run.metrics(run))


def test_a_step_schedule_is_followed(whole):
    router, run = whole
    if router == "schedule_hash":
        lines = [line for line in tiny_run.metrics(run) if "moe/active_experts" in line]
        assert [line["moe/active_experts"] for line in lines] == [4] * 6 + [2] * 6


def test_the_controller_holds_the_budget_above_layers_that_route_by_id(whole):
    router, run = whole
    if router == "hash_layers":
        lines = [line for line in tiny_run.metrics(run) if "moe/layer_01/active_experts" in line]
        assert {line["moe/layer_00/active_experts"] for line in lines} == {3.0}
        learned = [line["moe/layer_01/active_experts"] for line in lines[2:]]
        assert sum(learned) / len(learned) == pytest.approx(3, abs=0.1)
        assert "moe/layer_00/scale" not in lines[-1] and "moe/layer_01/scale" in lines[-1]


def test_the_plan_counts_the_parameters_of_the_checkpoint(whole):
    router, run = whole
    plan = json.loads(tiny_run.dtopp("plan", run / "config.yaml", "--json").stdout)
    header = (run / "checkpoints/step-00000012/model.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    tensors = json.loads(header[8:8 + length])
    tensors.pop("__metadata__", None)
    elements = sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors.values()) // 4
    assert plan["parameters"] == elements


def test_the_report_is_written(whole, tmp_path):
    _, run = whole
    done = tiny_run.dtopp("report", run, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr


def test_a_folder_for_hugging_face_converts_back_to_the_same_bytes(whole, tmp_path):
    _, run = whole
    for command, source, folder in (("to-hf", run, "hf"), ("from-hf", tmp_path / "hf", "back"), ("to-hf", tmp_path / "back", "again")):
        done = tiny_run.dtopp("convert", command, source, tmp_path / folder)
        assert done.returncode == 0, done.stderr
    before, after = run / "checkpoints/step-00000012", tmp_path / "back"
    assert (before / "model.safetensors").read_bytes() == (after / "model.safetensors").read_bytes()
    for name in ("config.json", "model.safetensors"):  # with the state that selects experts
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.fixture(scope="module", params=tiny_run.ROUTERS if tiny_run.FULL else ("hash", "hash_layers", "expert_normalization", "dtop_p_bias", "relu"))
def language_run(request, tmp_path_factory):
    router = request.param
    return router, tiny_language_run.train(tmp_path_factory.mktemp(router), "dtop_p", 128, *tiny_run.ROUTERS[router])


def test_text_is_generated_the_same_in_any_batch(language_run, tmp_path):
    _, run = language_run
    prompts = ["Nobody", "A longer line that says nothing of the kind"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    options = ["--max-tokens", "12", "--temperature", "0"]
    together = tiny_run.dtopp("generate", run, "--prompts", tmp_path / "prompts.txt", *options)
    assert together.returncode == 0, together.stderr
    alone = [tiny_run.dtopp("generate", run, "--prompt", prompt, *options).stdout for prompt in prompts]
    assert together.stdout == "".join(alone)


def test_a_target_at_evaluation_is_met_or_refused(language_run, tmp_path):
    router, run = language_run
    (tmp_path / "text.txt").write_text("The fog came down at noon, and with it the silence. Nobody spoke. " * 60)
    done = tiny_run.dtopp("evaluate", "text", run, "--text", tmp_path / "text.txt", "--target-experts", "2.5")
    if router in TARGETS:
        assert done.returncode == 0, done.stderr
    else:
        assert_refused(done, 2, "--target-experts")
