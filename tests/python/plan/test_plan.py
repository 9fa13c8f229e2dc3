"""Tests `dtopp plan` for many ranks: its output, its errors, and its memory against a run's."""

import json

import pytest
import tiny_diffusion
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

COLLECTIVES = ["reduce_scatter", "gather", "dispatch", "combine", "step"]
LARGEST = tiny_run.ROOT / "configs/moe-2.4b-13.6b-64e8a.yaml"


def plan(*arguments):
    done = tiny_run.dtopp("plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_names_bytes_by_collective_and_seconds():
    figures = plan(LARGEST, "--ranks", 64, "--nodes", 8, "--expert-parallel", 4, "--device", "h100")
    assert list(figures["wire_bytes"]) == COLLECTIVES
    for sent in figures["wire_bytes"].values():
        assert set(sent) == {"inside", "between"} and all(type(count) is int and count >= 0 for count in sent.values())
    assert figures["wire_bytes_per_step"] == sum(sum(sent.values()) for sent in figures["wire_bytes"].values())
    assert figures["wire_bytes"]["dispatch"]["inside"] > 0 == figures["wire_bytes"]["dispatch"]["between"]
    assert figures["expert_parallel"] == 4 and figures["nodes"] == 8 and 1 < figures["rows_per_token"] < 4
    assert figures["step_seconds"] == pytest.approx(sum(figures["step_seconds_by_part"].values()))
    assert 0 < figures["mfu"] <= 0.45
    assert [other["expert_parallel"] for other in figures["alternatives"]] == [1, 2, 4, 8]
    assert figures["alternatives"][2]["wire_bytes"] == figures["wire_bytes"]
    assert figures["alternatives"][2]["memory_bytes"] == figures["memory_bytes"]["total"]


def test_auto_takes_what_is_recommended():
    figures = plan(LARGEST, "--ranks", 64, "--nodes", 8, "--expert-parallel", "auto", "--device", "a100")
    assert figures["expert_parallel"] == figures["recommended"]["expert_parallel"] > 1
    fitting = [other["expert_parallel"] for other in figures["alternatives"]
               if other["memory_bytes"] <= figures["device_memory_bytes"]]
    assert figures["expert_parallel"] == min(fitting)


@pytest.mark.slow
def test_the_largest_micro_batch_fits_with_room_to_spare_and_the_next_does_not():
    model = tiny_run.ROOT / "configs/moe-1.3b-6.9b-64e8a.yaml"
    for device in ("h100", "h200"):
        options = (model, "--ranks", 8, "--device", device, "parallel.reproducible=false")
        size, batch = plan(*options)["largest_micro_batch"], plan(model)["tokens_per_step"] // 2048
        following = next(n for n in range(size + 1, batch + 1) if batch % n == 0)
        with_size = [plan(*options, f"training.micro_batch_size={n}") for n in (size, following)]
        spare = [1 - figures["memory_bytes"]["total"] / figures["device_memory_bytes"] for figures in with_size]
        assert spare[0] >= 0.05 > spare[1]


def test_the_configuration_says_it_too():
    arguments = (LARGEST, "--ranks", 8, "parallel.expert_parallel=2")
    assert plan(*arguments)["expert_parallel"] == 2
    assert plan(*arguments, "--expert-parallel", 4)["expert_parallel"] == 4


def test_one_rank_sends_nothing():
    figures = plan(LARGEST)
    assert figures["wire_bytes"] == {name: {"inside": 0, "between": 0} for name in COLLECTIVES}
    assert figures["step_seconds"] is None


@pytest.mark.parametrize("arguments,names", [
    (["--ranks", "64", "--nodes", "5"], ["--nodes: 5", "64 ranks"]),
    (["--nodes", "2"], ["--nodes: 2", "1 ranks"]),
    (["--ranks", "64", "--nodes", "8", "--expert-parallel", "16"], ["expert_parallel: 16", "8 ranks"]),
    (["--expert-parallel", "2"], ["expert_parallel: 2", "1 ranks"]),
    (["--ranks", "24", "--expert-parallel", "3"], ["expert_parallel: 3", "model.num_experts 64"]),
    (["--ranks", "8", "--expert-parallel", "2", "model.num_experts=1"], ["expert_parallel", "dense"]),
    (["--expert-parallel", "0"], "expert_parallel"),
    (["--expert-parallel", "all"], ["expert_parallel", "auto"]),
    (["--nodes", "0"], "--nodes"),
])
def test_impossible_layouts_exit_2(arguments, names):
    done = tiny_run.dtopp("plan", LARGEST, *arguments)
    assert_refused(done, 2, names)
    assert not done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [
    ["training.precision=fp32", "training.micro_batch_size=8"],
    ["training.precision=bf16", "training.micro_batch_size=16"],
])
def test_memory_is_what_training_images_takes(overrides, tmp_path):
    """CIFAR-10's preset with its moving average. The measured peak includes the program's pages."""
    model = {"channels": 3, "image_size": 32, "num_classes": 3}
    tiny_diffusion.write_images(tmp_path / "images", model, 64, seed=1)
    arguments = [tiny_run.ROOT / "configs/cifar10.yaml", "training.device=cpu", "training.threads=2", "training.steps=2",
                 "training.global_batch_size=16", "optimizer.warmup_steps=0", f"data.train=[{tmp_path}/images]",
                 "data.validation=[]", "validation.every=0", "diffusion.samples_every=0", f"output={tmp_path}/run", *overrides]
    done = tiny_run.dtopp("train", *arguments, anew=True)
    assert done.returncode == 0, done.stderr
    last = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["memory/peak_bytes"] == pytest.approx(plan(*arguments)["memory_bytes"]["total"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputation_takes_the_memory_that_is_planned(precision, tmp_path):
    config = tiny_run.make(tmp_path)
    peaks = {}
    for recompute in ("none", "moe", "layer"):
        run = tmp_path / recompute
        arguments = [config, f"training.recompute={recompute}", f"training.precision={precision}", "training.steps=2",
                     "training.threads=2", "training.global_batch_size=16", "training.micro_batch_size=16",
                     "optimizer.warmup_steps=0", "model.hidden_size=128", "model.num_layers=8", "model.ffn_hidden_size=64",
                     "model.num_experts=16", "routing.experts=4", "routing.expert_normalization=running", "model.sequence_length=256",
                     "validation.every=0", "checkpoint.every=0", f"output={run}"]
        done = tiny_run.dtopp("train", *arguments, anew=True)
        assert done.returncode == 0, done.stderr
        peaks[recompute] = tiny_run.metrics(run)[-1]["memory/peak_bytes"]
        assert peaks[recompute] == pytest.approx(plan(*arguments)["memory_bytes"]["total"], rel=0.1), recompute
    assert peaks["layer"] < peaks["moe"] < peaks["none"]


@pytest.mark.slow
def test_a_snapshot_takes_what_is_planned(tmp_path):
    arguments = [tiny_run.make(tmp_path), "model.hidden_size=256", "model.ffn_hidden_size=512", "model.num_experts=16",
                 "training.steps=4", "checkpoint.every=1", "validation.every=0"]
    peaks = {}
    for asynchronous in ("true", "false"):
        done = tiny_run.dtopp("train", *arguments, f"checkpoint.asynchronous={asynchronous}", f"output={tmp_path}/{asynchronous}",
                              anew=True)
        assert done.returncode == 0, done.stderr
        peaks[asynchronous] = tiny_run.metrics(tmp_path / asynchronous)[-1]["memory/peak_bytes"]
    assert peaks["true"] - peaks["false"] == pytest.approx(plan(*arguments)["checkpoint_snapshot_bytes"], rel=0.1)
