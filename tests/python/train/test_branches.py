"""Runs that begin with another run's checkpoint: a cool-down equals the run that had its schedule from the
start; other runs take the parameters alone."""

import json

import pytest
import tiny_diffusion_run
import tiny_language_run
import tiny_run
from needs import for_cpus, needs_program
from refusal import assert_refused

pytestmark = [needs_program, for_cpus]

CONSTANT = ["optimizer.schedule=constant", "training.micro_batch_size=1"]
DECAY = ["optimizer.schedule=wsd", "optimizer.decay_steps=6", "training.micro_batch_size=1"]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    """A run at a constant rate, and one whose configuration has the decay of the last steps from the start."""
    directory = tmp_path_factory.mktemp("trunk")
    tiny_run.trained(directory, *CONSTANT, "training.steps=20", f"output={directory}/trunk")
    tiny_run.trained(directory, *DECAY, f"output={directory}/decayed")
    return directory


def train(trunk, run, *overrides, source="training.cooldown_from", step=4):
    checkpoint = trunk / f"trunk/checkpoints/step-{step:08d}"
    return tiny_run.dtopp("train", trunk / "run.yaml", *DECAY, f"output={run}", f"{source}={checkpoint}", *overrides)


def expect_the_decayed(trunk, run):
    for step in (8, 12):
        assert tiny_run.state(run, step) == tiny_run.state(trunk / "decayed", step)
    whole = [line for line in tiny_run.metrics(trunk / "decayed") if line["step"] > 4]
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(whole)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_cool_down_is_the_run_that_had_its_schedule_all_along(trunk, tmp_path, options):
    done = train(trunk, tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    expect_the_decayed(trunk, tmp_path / "run")


def test_a_cool_down_resumes_from_its_own_checkpoints(trunk, tmp_path):
    run = tmp_path / "run"
    assert train(trunk, run).returncode == 0
    last = run / "checkpoints/step-00000012"
    last.rename(tmp_path / "away")
    done = train(trunk, run)
    assert done.returncode == 0, done.stderr
    assert f"resuming from {run}/checkpoints/step-00000008" in done.stderr
    expect_the_decayed(trunk, run)


def test_a_run_stands_for_its_newest_checkpoint(trunk, tmp_path):
    done = tiny_run.dtopp("train", trunk / "run.yaml", *DECAY, f"output={tmp_path}/run", "training.steps=24",
                          f"training.cooldown_from={trunk}/trunk")
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in tiny_run.metrics(tmp_path / "run")][0] == 21


def test_a_learning_rate_that_does_not_join_is_said(trunk, tmp_path):
    done = train(trunk, tmp_path / "run", "optimizer.lr=0.0223456789")
    assert done.returncode == 0
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert all(value in warning for value in ("step 4 ", " 0.01,", " 0.0223457;"))


@pytest.mark.parametrize("overrides, names", [
    (["model.hidden_size=64"], "model.hidden_size"),
    (["routing.experts=4", "training.seed=9"], "routing.experts, training.seed"),
    (["training.steps=4", "optimizer.decay_steps=1"], "set training.steps above 4"),
    (["training.cooldown_from=nowhere"], "training.cooldown_from: nowhere"),
    (["training.initialize_from=elsewhere"], "training.initialize_from"),
])
def test_a_checkpoint_that_does_not_serve_is_refused(trunk, tmp_path, overrides, names):
    assert_refused(train(trunk, tmp_path / "run", *overrides), 2, names)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", ["training.cooldown_from", "training.initialize_from"])
def test_a_damaged_checkpoint_is_refused(trunk, tmp_path, source):
    copy = tmp_path / "step-00000004"
    copy.mkdir()
    for file in (trunk / "trunk/checkpoints/step-00000004").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    done = train(trunk, tmp_path / "run", f"{source}={copy}", source=source)
    assert_refused(done, 4, "model.safetensors")
    assert not (tmp_path / "run").exists()


def test_a_run_begins_with_parameters_alone(trunk, tmp_path):
    run = tmp_path / "run"
    done = train(trunk, run, "optimizer.lr=1e-30", "optimizer.min_lr=0", "optimizer.weight_decay=0", "training.seed=8",
                 source="training.initialize_from", step=8)
    assert done.returncode == 0, done.stderr
    # At this rate no parameter changes, so they stay those of the checkpoint.
    parameters = run / "checkpoints/step-00000004/model.safetensors"
    assert parameters.read_bytes() == (trunk / "trunk/checkpoints/step-00000008/model.safetensors").read_bytes()
    lines = tiny_run.metrics(run)
    assert lines[0]["step"] == 0 and lines[1]["step"] == 1
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    assert (state["step"], state["sample_position"], state["seed"]) == (4, 16, 8)
    moments = [(folder / "checkpoints/step-00000004/optimizer.safetensors").read_bytes() for folder in (run, trunk / "trunk")]
    assert moments[0] != moments[1]


def test_data_of_another_tokenizer_are_pointed_out(tmp_path):
    size = ["model.vocab_size=8192", "model.sequence_length=64"]
    for entries in (4, 8):
        (tmp_path / f"{entries}k").mkdir()
        tokenizer = tiny_run.ROOT / f"assets/tokenizer/english-{entries}k.tokenizer.json"
        tiny_language_run.train(tmp_path / f"{entries}k", "dtop_p", 64, *size, tokenizer=tokenizer)
    for entries, is_other in ((4, False), (8, True)):
        done = tiny_run.dtopp("train", tmp_path / "4k/run.yaml", *size, f"data.train=[{tmp_path}/{entries}k/tokens]",
                              "data.validation=[]", "training.steps=3", f"training.initialize_from={tmp_path}/4k/run",
                              f"output={tmp_path}/again-{entries}")
        assert done.returncode == 0, done.stderr
        assert ("warning: data.train was prepared with another tokenizer" in done.stderr) == is_other


def test_parameters_of_another_shape_are_refused(trunk, tmp_path):
    for override, tensor in (("model.ffn_hidden_size=24", "mlp.experts.down_proj"), ("model.num_layers=1", "model.layers.1.")):
        done = train(trunk, tmp_path / "run", override, source="training.initialize_from")
        assert_refused(done, 2, tensor)


def test_a_diffusion_transformer_keeps_its_average_when_it_cools_down(tmp_path):
    config = tiny_diffusion_run.make(tmp_path)
    decay = ["optimizer.schedule=wsd", "optimizer.decay_steps=6", "optimizer.min_lr=1e-4"]
    for run, overrides in (("trunk", ["optimizer.schedule=constant", "optimizer.min_lr=1e-4"]), ("decayed", decay),
                           ("branch", [*decay, f"training.cooldown_from={tmp_path}/trunk/checkpoints/step-00000004"])):
        done = tiny_run.dtopp("train", config, *overrides, f"output={tmp_path}/{run}")
        assert done.returncode == 0, done.stderr
    assert len(tiny_run.state(tmp_path / "branch", 12)) == 5  # the average is one of the five files
    assert tiny_run.state(tmp_path / "branch", 12) == tiny_run.state(tmp_path / "decayed", 12)
    assert tiny_run.state(tmp_path / "branch", 12) != tiny_run.state(tmp_path / "trunk", 12)
