"""Tests the profile of training steps."""

import json

import pytest
import tiny_run
from refusal import assert_refused

pytestmark = pytest.mark.skipif(tiny_run.DEVICE != "cpu", reason="profiles are of CPUs")

STEPS = 4
PARTS = ["embedding", "norms, rotation, residuals", "attention, forward", "attention, backward", "router", "experts, feed-forward",
         "loss", "gradient sums", "gradient norm", "update", "other", "step"]


def rows(text):
    """The table's numbers by part: GFLOP, MB, limit and time in ms, lost share in percent."""
    lines = [line.rsplit(maxsplit=5) for line in text.splitlines()[2:]]
    return {line[0].strip(): [float(number) for number in line[1:]] for line in lines}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def profiled(dtopp_binary, request, tmp_path_factory):
    """Returns a folder, what the profile printed, and the precision. The run has larger layers than other tests', because the clock of
    a metric is read outside the profile."""
    folder = tmp_path_factory.mktemp(request.param)
    sizes = [f"training.precision={request.param}", "model.hidden_size=128", "model.sequence_length=128", "model.vocab_size=2048"]
    config = tiny_run.make(folder)
    for extra in ([f"output={folder}/profiled", "--profile", str(STEPS)], [f"output={folder}/plain"]):
        done = tiny_run.dtopp("train", config, "logging.every=1", "validation.every=0", *sizes, *extra)
        assert done.returncode == 0, done.stderr
        if "--profile" in extra:
            printed = done.stdout
            assert f"; {STEPS} steps of 4 x 128 tokens: " in done.stderr
    return folder, printed, config, sizes


def test_the_table_is_printed_and_stored(profiled):
    folder, printed, *_ = profiled
    table = (folder / "profiled/profile.txt").read_text()
    assert printed.endswith("\n" + table)
    assert list(rows(table)) == PARTS


def test_the_parts_sum_to_the_time_of_a_step(profiled):
    folder, *_ = profiled
    table = rows((folder / "profiled/profile.txt").read_text())
    assert sum(table[part][3] for part in PARTS[:-1]) == pytest.approx(table["step"][3], abs=0.1 * len(PARTS))
    steps = [line for line in tiny_run.metrics(folder / "profiled") if "train/loss" in line][1:]
    assert len(steps) == STEPS - 1
    seconds = [4 * 128 / line["throughput/tokens_per_second"] for line in steps]
    assert table["step"][3] == pytest.approx(1e3 * sum(seconds) / len(seconds), rel=0.05)
    assert sum(table[part][4] for part in PARTS[:-1]) == pytest.approx(table["step"][4], abs=0.1 * len(PARTS))
    assert all(table[part][3] > 0 for part in PARTS)


def test_the_arithmetic_is_that_of_the_layers(profiled):
    folder, *_ = profiled
    table = rows((folder / "profiled/profile.txt").read_text())
    steps = [line for line in tiny_run.metrics(folder / "profiled") if "moe/active_experts" in line][1:]
    experts = sum(line["moe/active_experts"] for line in steps) / len(steps)
    layers, tokens, hidden, ffn, vocabulary, length = 2, 4 * 128, 128, 16, 2048, 128
    assert table["experts, feed-forward"][0] == pytest.approx(1e-9 * 18 * layers * tokens * experts * hidden * ffn, rel=1e-4)
    assert table["loss"][0] == pytest.approx(1e-9 * 6 * tokens * hidden * vocabulary, rel=1e-4)
    forward = 1e-9 * layers * tokens * (8 * hidden * hidden + 2 * length * hidden)
    assert table["attention, forward"][0] == pytest.approx(forward, rel=1e-4)
    assert table["attention, backward"][0] == pytest.approx(2 * forward, rel=1e-4)


def test_the_trace_is_nested(profiled):
    folder, *_ = profiled
    events = json.loads((folder / "profiled/trace.json").read_text())["traceEvents"]
    assert events[0]["name"] == f"step {STEPS}"
    open_until = []
    for event in events:  # in the order of their beginnings
        begin, end = round(1000 * event["ts"]), round(1000 * (event["ts"] + event["dur"]))
        while open_until and open_until[-1] <= begin and len(open_until) > 1:
            open_until.pop()
        assert begin <= end and (not open_until or end <= open_until[-1]), event
        open_until.append(end)
    names = [event["name"] for event in events]
    assert sum(name.startswith("micro-batch") for name in names) == 2
    assert {"dtopp::moe_ffn_forward", "dtopp::route", "gradient norm", "update", "layer 1 attention"} <= set(names)
    assert {event["cat"] for event in events} <= set(PARTS)


def test_the_profile_changes_no_bit_and_the_run_resumes(profiled):
    folder, _, config, sizes = profiled
    plain, profiled_steps = (tiny_run.timeless(tiny_run.metrics(folder / name)) for name in ("plain", "profiled"))
    assert profiled_steps == plain[:len(profiled_steps)] != []
    assert tiny_run.state(folder / "profiled", STEPS) == tiny_run.state(folder / "plain", STEPS)
    resumed = tiny_run.dtopp("train", config, "logging.every=1", "validation.every=0", *sizes, f"output={folder}/profiled")
    assert resumed.returncode == 0, resumed.stderr
    assert tiny_run.state(folder / "profiled", 12) == tiny_run.state(folder / "plain", 12)
    again = tiny_run.dtopp("train", config, "logging.every=1", "validation.every=0", *sizes, f"output={folder}/profiled", "--profile", "2")
    assert_refused(again, 2, ["--profile 2", folder / "profiled", "0 of its 12 steps", "choose another output"], alone=False)


def test_muon_has_a_row_whose_work_the_plan_states(dtopp_binary, tmp_path):
    config = tiny_run.make(tmp_path)
    done = tiny_run.dtopp("train", config, "--profile", "3", "optimizer.method=muon")
    assert done.returncode == 0, done.stderr
    row = rows((tmp_path / "run/profile.txt").read_text())["Muon"]
    plan = json.loads(tiny_run.dtopp("plan", config, "optimizer.method=muon", "--json").stdout)
    hidden, ffn, layers, experts = 32, 16, 2, 8
    flops = 5 * layers * (4 * 4 * hidden**3 + 3 * experts * (3 * ffn**2 * hidden + ffn**3))
    assert plan["optimizer_flops_per_step"] == flops
    assert row[0] == pytest.approx(1e-9 * flops, rel=1e-4) and row[3] > 0


@pytest.mark.parametrize("steps", ["1", "0", "-3", "1001", "many", "2.5"])
def test_a_wrong_number_of_steps_is_refused(dtopp_binary, tmp_path, steps):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), f"--profile={steps}"), 2, "--profile")


def test_more_steps_than_are_left_are_refused(dtopp_binary, tmp_path):
    assert_refused(tiny_run.dtopp("train", tiny_run.make(tmp_path), "--profile", "13"), 2, ["--profile", "12"])
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_ranks_profile_the_first(dtopp_binary, tmp_path):
    done = tiny_run.dtopp("train", tiny_run.make(tmp_path), "--profile", "3", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert list(rows((tmp_path / "run/profile.txt").read_text())) == PARTS
