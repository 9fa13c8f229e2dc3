"""docs/reference/metrics.md lists every name that a run writes to metrics.jsonl."""

import re

import pytest
import tiny_diffusion_run
import tiny_run

PAGE = (tiny_run.ROOT / "docs/reference/metrics.md").read_text()


def listed():
    """The page's names, with the layer, the source and the number of experts as the page writes them."""
    names = set(re.findall(r"`([a-z]+/[\w/]+)`", PAGE))
    of_a_layer = re.search(r"^\| `moe/layer_NN/…` \|(.*)$", PAGE, re.M)[1]
    return names | {f"moe/layer_NN/{name}" for name in re.findall(r"`(\w+)`", of_a_layer)}


def written(run):
    names = {name for line in tiny_run.metrics(run) for name in line} - {"step", "tokens", "time"}
    for pattern, text in ((r"layer_\d\d", "layer_NN"), (r"^data/[^/]+", "data/SOURCE"), (r"tokens_with/.*", "tokens_with/1"),
                          (r"_t\d$", "_t0"), (r"^val/(?!layer_NN)[^/]+/", "val/SOURCE/")):
        names = {re.sub(pattern, text, name) for name in names}
    return names


@pytest.mark.parametrize("method", ["dtop_p", "top_p", "top_k", *tiny_run.ROUTERS])
def test_names_of_a_language_model_are_listed(dtopp_binary, tmp_path, method):
    source = f"[{{path: {tmp_path}/train.npy, weight: 1}}]"
    held_out = f"[{tmp_path}/train.npy, {tmp_path}/validation.npy]"
    tiny_run.trained(tmp_path, *tiny_run.ROUTERS.get(method, [f"routing.method={method}"]), f"data.train={source}",
                     f"data.validation={held_out}")
    names = written(tmp_path / "run")
    assert names - listed() == set()
    assert tiny_run.DEVICE != "cpu" or "throughput/mfu" not in names  # no data sheet


def test_names_of_a_diffusion_transformer_are_listed(dtopp_binary, tmp_path):
    done = tiny_run.dtopp("train", tiny_diffusion_run.make(tmp_path))
    assert done.returncode == 0, done.stderr
    assert written(tmp_path / "run") - listed() == set()


def test_names_of_several_ranks_are_listed(dtopp_binary, tmp_path):
    tiny_run.trained(tmp_path, "--processes=2")
    assert written(tmp_path / "run") - listed() == set()
