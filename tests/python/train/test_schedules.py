"""Tests each step's learning rate against independent formulas. An impossible schedule is refused in one
line."""

import math

import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

PEAK, LEAST, WARMUP, STEPS, DECAY = 1e-2, 1e-4, 3, 12, 4


def expected(schedule, step):
    if step < WARMUP:
        return PEAK * step / WARMUP
    rest = (step - WARMUP) / (STEPS - WARMUP)
    if schedule == "cosine":
        return LEAST + (PEAK - LEAST) * (1 + math.cos(math.pi * rest)) / 2
    if schedule == "linear":
        return PEAK + (LEAST - PEAK) * rest
    if schedule == "wsd" and step > STEPS - DECAY:
        return PEAK + (LEAST - PEAK) * (step - STEPS + DECAY) / DECAY
    return PEAK


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant", "linear"])
def test_each_schedule_follows_its_formula(tmp_path, schedule):
    tiny_run.trained(tmp_path, f"optimizer.schedule={schedule}", f"optimizer.decay_steps={DECAY}", "validation.every=0")
    rates = [line["train/lr"] for line in tiny_run.metrics(tmp_path / "run")]
    assert rates == pytest.approx([expected(schedule, step) for step in range(1, STEPS + 1)], rel=1e-12)


@pytest.mark.parametrize("overrides, names", [
    (["optimizer.schedule=wsd"], "optimizer.decay_steps"),
    (["optimizer.schedule=wsd", "optimizer.decay_steps=10"], ["optimizer.decay_steps: 10", "training.steps 12"]),
    (["optimizer.decay_steps=-1"], "optimizer.decay_steps"),
    (["optimizer.schedule=triangle"], ["optimizer.schedule", "cosine, wsd, constant, linear"]),
])
def test_a_schedule_that_cannot_be_is_refused(tmp_path, overrides, names):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), *overrides), 2, names)
    assert not (tmp_path / "run").exists()


def test_a_resolved_configuration_without_the_newer_keys_still_resumes(tmp_path):
    run = tiny_run.trained(tmp_path, "training.steps=12") / "run"
    config = run / "config.yaml"
    newer = ("schedule:", "decay_steps:", "initialize_from:", "upcycle_noise:", "cooldown_from:", "end_of_text:", "attend_across_documents:")
    lines = config.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.strip().startswith(newer)]
    assert len(older) == len(lines) - len(newer) - 1  # a learning rate and a budget have a schedule
    config.write_text("".join(older))
    before = (run / "metrics.jsonl").read_bytes()
    done = tiny_run.dtopp("train", tmp_path / "run.yaml")
    assert done.returncode == 0 and (run / "metrics.jsonl").read_bytes() == before, done.stderr
