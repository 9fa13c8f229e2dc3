"""docs/how-to/add-a-router.md shows parts of the router's files as they are, and that router trains. test_routers.py resumes it and
runs it on several ranks."""

import re

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


@needs_program
def test_it_trains_and_moves_its_bias(tmp_path):
    tiny_run.trained(tmp_path, *OVERRIDES, "training.steps=24")
    lines = [line for line in tiny_run.metrics(tmp_path / "run") if "train/loss" in line]
    assert lines[-1]["train/lm_loss"] < 0.9 * lines[0]["train/lm_loss"]
    assert all(line["moe/active_experts"] == 2 for line in lines)
    assert lines[0]["moe/bias_spread"] > 0
    assert lines[-1]["moe/layer_01/bias_spread"] > lines[0]["moe/layer_01/bias_spread"]
