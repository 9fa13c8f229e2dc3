"""Tests `dtopp new`: its files plan and train, it refuses what cannot be, and it scales configurations."""

import json
import math

import pytest
import tiny_run
import yaml
from needs import needs_program
from refusal import assert_refused
from tiny_language_run import SMALL_TOKENIZER

pytestmark = needs_program

SIZES = {"1M": 1e6, "3M": 3e6, "10M": 1e7, "100M": 1e8, "300M": 3e8, "1B": 1e9}
VOCABULARY = 4096


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with the folders `train` and `validation` of prepared text."""
    folder = tmp_path_factory.mktemp("text")
    for name, source in (("train", "novels-validation"), ("validation", "lab-validation")):
        done = tiny_run.dtopp("prepare", "text", tiny_run.ROOT / f"assets/text/{source}.jsonl.zst", "--tokenizer",
                              SMALL_TOKENIZER, "--output", folder / name)
        assert done.returncode == 0, done.stderr
    return folder


def new(folder, *arguments):
    """Writes folder/mine.yaml. Returns its path, its content and what the command printed."""
    path = folder / "mine.yaml"
    done = tiny_run.dtopp("new", path, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return path, yaml.safe_load(path.read_text()), done.stdout


def plan(path):
    done = tiny_run.dtopp("plan", path, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_plans_and_each_line_has_a_reason(size, text, tmp_path):
    path, config, printed = new(tmp_path, "--active", size, "--data", text / "train", "--memory", "400GB", "--tokens", "2B")
    figures = plan(path)
    assert figures["active_parameters"] == pytest.approx(SIZES[size], rel=0.1)
    assert figures["memory_bytes"]["total"] <= 0.95 * 400e9
    tokens = figures["tokens_per_step"] * config["training"]["steps"]
    assert 2e9 <= tokens < 2e9 + figures["tokens_per_step"] and config["training"]["steps"] >= 500
    assert config["model"]["vocab_size"] == VOCABULARY and config["data"]["validation"] == [str(text / "validation")]
    assert config["routing"] == {"method": "dtop_p", "experts": 8.0, "controller": "solve", "normalization": "dynamic",
                                 "expert_normalization": "running"}
    values = [line for line in path.read_text().splitlines() if not line.startswith("#") and not line.endswith(":")]
    assert all(line.partition(" # ")[2] for line in values)
    assert "active parameters" in printed and "expected time" in printed and printed.endswith(f"\ndtopp train {path}\n")


@pytest.mark.parametrize("size", list(SIZES)[:3])
def test_small_sizes_learn(size, text, tmp_path):
    path, config, _ = new(tmp_path, "--active", size, "--data", text / "train", "--sequence", 64)
    done = tiny_run.dtopp("train", path, "training.steps=50", "optimizer.warmup_steps=10", "training.global_batch_size=2",
                          "training.micro_batch_size=2", "training.threads=2", f"training.device={tiny_run.DEVICE}",
                          "validation.every=0", "checkpoint.every=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [line["train/lm_loss"] for line in tiny_run.metrics(tmp_path / config["output"])]
    assert len(losses) == 50 and losses[-1] < math.log(VOCABULARY) - 0.3


def test_tokens_are_at_most_four_passes(text, tmp_path):
    path, config, _ = new(tmp_path, "--active", "3M", "--data", text / "train")
    passes = json.loads((text / "train/manifest.json").read_text())["about"]["tokens"] * 4
    per_step = plan(path)["tokens_per_step"]
    assert passes <= per_step * config["training"]["steps"] < passes + per_step


def test_scaling_keeps_ratios_router_and_recipe(tmp_path):
    lab = tiny_run.ROOT / "configs/lab.yaml"
    path, config, _ = new(tmp_path, "--like", lab, "--active", "40M", "--memory", "100GB")
    before, after = plan(lab), plan(path)
    model, steps = config["model"], config["training"]["steps"]
    assert after["active_parameters"] == pytest.approx(4e7, rel=0.1)
    assert model["ffn_hidden_size"] / model["hidden_size"] == 0.5 and model["hidden_size"] / model["num_heads"] == 32
    assert (model["num_experts"], model["sequence_length"], config["routing"]["experts"]) == (32, 512, 4)
    assert config["optimizer"]["warmup_steps"] == steps // 2  # 256 of 512

    def total(figures, steps, hidden):
        return figures["tokens_per_step"] * steps * (figures["flops_per_token"] - 6 * 8192 * hidden)

    growth = total(after, steps, model["hidden_size"]) / total(before, 512, 128)
    assert config["optimizer"]["lr"] == pytest.approx(1e-2 * growth**-0.125, rel=0.05)
    assert abs(math.log2(after["tokens_per_step"] / before["tokens_per_step"] / growth**0.3271)) <= 0.51
    assert "lab.yaml" in path.read_text()


def test_tokens_and_data_of_a_scaled_run_can_be_others(text, tmp_path):
    path, config, _ = new(tmp_path, "--like", tiny_run.ROOT / "configs/quickstart.yaml", "--active", "3M", "--tokens", "10M",
                          "--data", text / "train", "--validation", text / "validation")
    assert config["data"]["train"] == [str(text / "train")] and config["model"]["vocab_size"] == VOCABULARY
    assert plan(path)["tokens_per_step"] * config["training"]["steps"] == pytest.approx(1e7, rel=0.01)


def test_an_existing_file_stays_without_force(text, tmp_path):
    arguments = ("--active", "3M", "--data", text / "train")
    path, _, _ = new(tmp_path, *arguments)
    path.write_text("mine")
    assert_refused(tiny_run.dtopp("new", path, *arguments), 2, [path, "--force"])
    assert path.read_text() == "mine"
    new(tmp_path, *arguments, "--force")
    assert path.read_text() != "mine"


@pytest.mark.parametrize(("arguments", "names"), [
    (["--active", "100k"], "--active"),  # less than the embedding
    (["--active", "10Q"], "10Q"),
    (["--active", "-1M"], "-1M"),
    (["--active", "3M", "--experts", "9/8"], "9/8"),
    (["--active", "3M", "--experts", "1/8"], "1/8"),
    (["--active", "3M", "--experts", "8"], "--experts"),
    (["--active", "3M", "--sequence", 1000000], "1000000"),
    (["--active", "3M", "--memory", "100MB"], "--memory"),
    (["--active", "3M", "--memory", "100MiB"], "100MiB"),
    (["--active", "3M", "--like", tiny_run.ROOT / "configs/lab.yaml", "--experts", "4/8"], "--like"),
    (["--active", "3M", "--like", tiny_run.ROOT / "configs/cifar10.yaml"], "cifar10.yaml"),
])
def test_bad_combinations_are_refused(arguments, names, text, tmp_path):
    done = tiny_run.dtopp("new", tmp_path / "mine.yaml", "--data", text / "train", *arguments)
    assert_refused(done, 2, names)
    assert not (tmp_path / "mine.yaml").exists()


def test_missing_data_are_refused(text, tmp_path):
    path = tmp_path / "mine.yaml"
    assert_refused(tiny_run.dtopp("new", path, "--active", "3M"), 2, "--data")
    assert_refused(tiny_run.dtopp("new", path, "--active", "3M", "--data", text / "validation"), 2, "--validation")
    assert_refused(tiny_run.dtopp("new", path, "--active", "3M", "--data", text / "none"), 3, "none")
    tiny_run.write_tokens(tmp_path / "train.npy", 8000, seed=1)
    done = tiny_run.dtopp("new", path, "--active", "3M", "--data", tmp_path / "train.npy", "--validation", text / "validation")
    assert_refused(done, 2, "tokenizer.json")
