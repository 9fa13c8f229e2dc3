"""The protocol's rules for the rate and the fixed p (benchmarks/studies/powered_arguments.py), on ledgers with known answers."""

import importlib.util
import math
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "benchmarks/studies/powered_arguments.py"
specification = importlib.util.spec_from_file_location("powered_arguments", SCRIPT)
powered = importlib.util.module_from_spec(specification)
specification.loader.exec_module(powered)


def rate_rows(losses, variant="top-k"):
    return [{"variant": variant, "grid": {"optimizer.lr": rate}, "values": {"val/loss": loss}}
            for rate, values in losses.items() for loss in values]


@pytest.mark.parametrize("losses, rate", [
    ({1e-3: [5.5, 5.6], 2e-3: [5.3, 5.4], 3e-3: [5.5, 5.5]}, 2e-3),
    ({1e-3: [5.359, 5.359], 2e-3: [5.35, 5.35], 3e-3: [5.5, 5.5]}, 1e-3),
    ({1e-3: [5.361, 5.361], 2e-3: [5.35, 5.35]}, 2e-3),
    ({1e-3: [5.5, 5.5], 2e-3: [5.0, None]}, 1e-3),
])
def test_rate_is_the_lowest_within_a_hundredth_of_the_best(losses, rate):
    other = rate_rows({each: [1 if each == min(losses) else 2] * 2 for each in losses}, "dtop-p")
    assert powered.choose_rates(rate_rows(losses) + other) == {"top-k": rate, "dtop-p": min(losses)}


@pytest.mark.parametrize("losses", [{1e-3: [5, 5], 2e-3: [5]}, {1e-3: [5, 5]}, {1e-3: [5], 2e-3: [5]}, {}])
def test_an_unfinished_study_ends_the_choice(losses):
    with pytest.raises(SystemExit, match="finish the study"):
        powered.choose_rates(rate_rows(losses) + rate_rows({1e-3: [5, 5], 2e-3: [5, 5]}, "dtop-p"))


def test_p_is_interpolated_in_the_logarithm_of_the_experts():
    # Experts exp(10 p): 4 at p = ln(4) / 10 = 0.139.
    rows = [{"grid": {"routing.threshold": p}, "curves": {"moe/active_experts": {"value": [math.exp(10 * p) - 1, math.exp(10 * p) + 1]}}}
            for p in (0.05, 0.1, 0.2, 0.3)]
    assert powered.choose_threshold(rows) == round(math.log(4) / 10, 3)
    with pytest.raises(SystemExit, match="outside"):
        powered.choose_threshold(rows[2:])


def test_arguments_name_each_variant_of_the_study():
    lines = powered.arguments_of({"top-k": 1e-3, "dtop-p": 2e-3}, 0.42)
    assert "variants.dense.optimizer.lr=0.001" in lines and "variants.top-p-matched.optimizer.min_lr=2e-05" in lines
    assert lines[-1] == "variants.top-p-matched.routing.threshold=0.42"
    assert powered.arguments_of({"top-k": 1e-3, "dtop-p": 2e-3}) == lines[:-1]
    study = (SCRIPT.parents[2] / "configs/studies/powered/text.yaml").read_text()
    assert all(f"  {variant}:" in study for variant in powered.METHOD_OF)
