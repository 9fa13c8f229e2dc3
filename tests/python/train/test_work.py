"""FLOPs, experts and seconds so far, in the metrics."""

import itertools
import json
import shutil

import pytest
import tiny_run
from needs import needs_program

pytestmark = needs_program

TOKENS = 4 * 32  # per step


def flops_of_plan(config, experts):
    plan = tiny_run.dtopp("plan", config, "--json", "routing.method=top_k", f"routing.experts={experts}")
    return json.loads(plan.stdout)["flops_per_token"]


def steps_of(run):
    return [line for line in tiny_run.metrics(run) if "train/loss" in line]


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_flops_are_those_of_the_experts_that_tokens_activated(tmp_path, scope):
    config = tiny_run.trained(tmp_path, f"routing.scope={scope}") / "run.yaml"
    one = flops_of_plan(config, 1)
    more = flops_of_plan(config, 2) - one
    lines = steps_of(tmp_path / "run")
    flops = experts = 0
    for step, line in enumerate(lines, 1):
        flops += TOKENS * (one + (line["moe/active_experts"] - 1) * more)
        experts += line["moe/active_experts"]
        assert line["train/active_flops"] == pytest.approx(flops, rel=1e-12)
        assert line["train/active_experts_mean"] == pytest.approx(experts / step, rel=1e-12)
    assert len({line["moe/active_experts"] for line in lines}) > 1
    # Steps without a line count as well.
    done = tiny_run.dtopp("train", config, f"routing.scope={scope}", "logging.every=5", f"output={tmp_path}/seldom")
    assert done.returncode == 0, done.stderr
    by_step = {line["step"]: line for line in lines}
    for line in steps_of(tmp_path / "seldom"):
        for name in ("train/active_flops", "train/active_experts_mean"):
            assert line[name] == by_step[line["step"]][name]


def test_a_dense_model_has_the_flops_of_its_plan(tmp_path):
    dense = ["model.num_experts=1", "loss.load_balance=0", "loss.dynamic=0"]
    tiny_run.trained(tmp_path, *dense)
    plan = json.loads(tiny_run.dtopp("plan", tmp_path / "run.yaml", "--json", *dense).stdout)
    for line in steps_of(tmp_path / "run"):
        assert line["train/active_flops"] == line["tokens"] * plan["flops_per_token"]
        assert "train/active_experts_mean" not in line


def test_seconds_are_those_of_all_steps_and_go_on_after_a_stop(tmp_path):
    tiny_run.trained(tmp_path)
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    before = {line["step"]: line["throughput/seconds"] for line in steps_of(tmp_path / "run")}
    assert tiny_run.dtopp("train", tmp_path / "run.yaml").returncode == 0
    lines = steps_of(tmp_path / "run")
    assert [line["throughput/seconds"] for line in lines[:8]] == [before[step] for step in range(1, 9)]
    sums = itertools.accumulate(TOKENS / line["throughput/tokens_per_second"] for line in lines)
    assert [line["throughput/seconds"] for line in lines] == pytest.approx(list(sums), rel=1e-9)
