"""docs/how-to/add-a-router.md shows parts of the router's files as they are, and that router trains, resumes and runs on EP ranks."""

import re

import pytest
import tiny_run
from needs import needs_program
from tiny_run import ROOT

PAGE = (ROOT / "docs/how-to/add-a-router.md").read_text()
OVERRIDES = ["routing.method=top_k_bias", "routing.normalization=none", "routing.experts=2", "loss.load_balance=0", "routing.bias_rate=0.01"]


def sections():
    """Yields (path, code blocks) of every section that names a file."""
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        path = re.match(r"\d+\. [^\n`]*`([^`\n]+)`", section)
        if path:
            yield path[1], re.findall(r"^```cpp\n(.*?)^```", section, re.M | re.S)


def test_every_block_is_part_of_its_file():
    found = dict(sections())
    assert len(found) == 4
    for path, blocks in found.items():
        text = (ROOT / path).read_text()
        assert blocks
        for block in blocks:
            assert block in text, f"{path} lacks:\n{block}"


def train(directory, *overrides, ranks=0):
    launcher = [f"--processes={ranks}"] if ranks else []
    done = tiny_run.dtopp("train", tiny_run.make(directory), *OVERRIDES, *overrides, *launcher)
    assert done.returncode == 0, done.stderr
    return directory / "run"


@needs_program
def test_it_trains_and_moves_its_bias(tmp_path):
    lines = [line for line in tiny_run.metrics(train(tmp_path, "training.steps=24")) if "train/loss" in line]
    assert lines[-1]["train/lm_loss"] < 0.9 * lines[0]["train/lm_loss"]
    assert all(line["moe/active_experts"] == 2 for line in lines)
    assert lines[0]["moe/bias_spread"] > 0
    assert lines[-1]["moe/layer_01/bias_spread"] > lines[0]["moe/layer_01/bias_spread"]


@needs_program
def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole = train(tmp_path / "whole")
    first = train(tmp_path / "parts", "training.steps=12")
    for step in (8, 12):
        for path in (first / f"checkpoints/step-{step:08d}").iterdir():
            path.unlink()
        (first / f"checkpoints/step-{step:08d}").rmdir()
    train(tmp_path / "parts", "training.steps=12")
    assert tiny_run.state(first, 12) == tiny_run.state(whole, 12)


@needs_program
@pytest.mark.parametrize("expert_parallel", [1, 2])
def test_two_ranks_have_the_bits_of_one(tmp_path, expert_parallel):
    one = train(tmp_path / "one")
    two = train(tmp_path / "two", f"parallel.expert_parallel={expert_parallel}", ranks=2)
    assert tiny_run.state(two, 12) == tiny_run.state(one, 12)
