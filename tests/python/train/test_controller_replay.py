"""Eq. (6), replayed over metrics.jsonl, gives every threshold of the run. A controller that solves for p
holds the budget."""


import pytest
import reference_model
import tiny_run
import yaml

STEPS = 40
CASES = {
    "gains_of_the_paper": {},
    "layers_of_their_own": {"routing.scope": "layer", "routing.experts": "[2, 5]"},
    "strong_gains_at_the_upper_bound": {"routing.kp": 2, "routing.ki": 1, "routing.experts": 8},
    "strong_gains_at_the_lower_bound": {"routing.kp": 2, "routing.ki": 1, "routing.experts": 1,
                                        "routing.threshold": 0.9},
    "layers_at_both_bounds": {"routing.scope": "layer", "routing.experts": "[8, 1]", "routing.ki": 1},
    "windup": {"routing.kp": 2, "routing.ki": 1, "routing.experts": 8, "routing.anti_windup": "false"},
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
    state = reference_model.load_state(directory / f"checkpoints/step-{STEPS:08d}")
    assert state["steps"] == STEPS
    for name, value in (("threshold_C", controller.p), ("error_sum_C", controller.error_sum)):
        assert state[name] == pytest.approx(value, abs=1e-9), name


# A step has 512 tokens, whose mean is off by 1.5 / 3 / sqrt(512) = 0.02 of T.
HELD = {"training.steps": 60, "training.global_batch_size": 16, "optimizer.lr": 1e-3, "optimizer.min_lr": 1e-3,
        "validation.every": 0, "checkpoint.every": 0, "logging.tensorboard": "false", "routing.threshold": 0.02}


def budget_of(directory, *overrides):
    """Returns experts by step, p by step, and by step the p that would have met the target T = 3. Per layer:
    the first layer's."""
    held = [f"{key}={value}" for key, value in HELD.items()]
    done = tiny_run.dtopp("train", tiny_run.make(directory), *held, *overrides)
    assert done.returncode == 0, done.stderr
    lines = tiny_run.metrics(directory / "run")
    return [[line[f"moe/layer_00/{name}" if "routing.scope=layer" in overrides else f"moe/{name}"] for line in lines]
            for name in ("active_experts", "threshold", "threshold_solved")]


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_a_controller_that_solves_holds_the_budget_from_the_third_step_on(dtopp_binary, tmp_path, scope):
    active, used, solved = budget_of(tmp_path, "routing.controller=solve", f"routing.scope={scope}")
    assert used[0] == 0.02 and active[0] < 1.5, "the first step uses p_0"
    assert all(abs(experts / 3 - 1) < 0.1 for experts in active[2:])
    windows = [sum(active[i:i + 20]) / 60 - 1 for i in range(2, 41)]
    assert max(map(abs, windows)) < 0.005
    lag = sum(abs(p - q) for p, q in zip(used[2:], solved[2:]))
    motion = sum(abs(p - q) for p, q in zip(solved[2:], solved[1:]))
    assert lag < 1.5 * motion


def test_the_paper_s_law_is_no_other_for_what_is_logged_beside_it(run):
    _, directory = run
    lines = [line for line in tiny_run.metrics(directory) if "train/loss" in line]
    for line in lines:
        for layer in ("layer_00", "layer_01"):
            solved, used = line[f"moe/{layer}/threshold_solved"], line[f"moe/{layer}/threshold"]
            target = yaml.safe_load((directory / "config.yaml").read_text())["routing"]["experts"]
            if isinstance(target, list):
                target = target[int(layer[-2:])]
                active = line[f"moe/{layer}/active_experts"]
            else:
                active = line["moe/active_experts"]
            # The p that would have met the target lies on its other side.
            assert (active - target) * (used - solved) >= -1e-9 or abs(active - target) < 0.05
