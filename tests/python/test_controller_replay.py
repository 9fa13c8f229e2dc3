"""Eq. (5), replayed over metrics.jsonl, gives every threshold that was used."""

import json

import pytest
import reference_model
import tiny_run
import yaml

STEPS = 40
CASES = {
    "gains_of_the_paper": {},
    "layers_of_their_own": {"routing.scope": "layer", "routing.target_experts": "[2, 5]"},
    "strong_gains_at_the_upper_bound": {"routing.kp": 2, "routing.ki": 1, "routing.target_experts": 8},
    "strong_gains_at_the_lower_bound": {"routing.kp": 2, "routing.ki": 1, "routing.target_experts": 1,
                                        "routing.threshold": 0.9},
    "layers_at_both_bounds": {"routing.scope": "layer", "routing.target_experts": "[8, 1]", "routing.ki": 1},
    "windup": {"routing.kp": 2, "routing.ki": 1, "routing.target_experts": 8, "routing.anti_windup": "false"},
}
BOUNDS = (1e-6, 1 - 1e-6)


@pytest.fixture(scope="module", params=CASES)
def run(request, dtopp_binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    overrides = {"training.steps": STEPS, "validation.every": 0, "checkpoint.every": 0,
                 "logging.tensorboard": "false"} | CASES[request.param]
    done = tiny_run.dtopp("train", tiny_run.make(directory), *(f"{key}={value}" for key, value in overrides.items()))
    assert done.returncode == 0, done.stderr
    return request.param, directory / "run"


def test_metrics_replayed_through_the_law_reproduce_every_threshold(run):
    case, directory = run
    controller = reference_model.Controller(yaml.safe_load((directory / "config.yaml").read_text()))
    lines = [line for line in tiny_run.metrics(directory) if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    at_bound = 0
    for line in lines:
        layers = [f"moe/layer_{n:02d}/" for n in range(controller.num_layers)]
        used = [line[layer + "threshold"] for layer in layers]
        assert used == pytest.approx(controller.thresholds(), abs=1e-9), f"step {line['step']}"
        if not controller.per_layer:
            assert line["moe/threshold"] == pytest.approx(controller.p[0], abs=1e-9)
        at_bound += any(p in BOUNDS for p in used)
        active = [line[layer + "active_experts"] for layer in layers]
        assert line["moe/active_experts"] == pytest.approx(sum(active) / len(active), rel=1e-12)
        controller.update(active)
    if "bound" in case or case == "windup":
        assert at_bound > 0, "no threshold reached a bound: the case shows nothing"
    state = json.loads((directory / f"checkpoints/step-{STEPS:08d}/state.json").read_text())
    for name, value in (("threshold", controller.p), ("error_sum", controller.error_sum)):
        assert (state[name] if controller.per_layer else [state[name]]) == pytest.approx(value, abs=1e-9), name
