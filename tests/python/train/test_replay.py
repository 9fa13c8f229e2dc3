"""`dtopp replay` repeats one step of a run and names its first value that is not finite."""

import json
import shutil

import pytest
import tiny_diffusion_run
import tiny_run
from manifests import write_manifest
from needs import for_cpus, needs_program
from refusal import assert_refused
from safetensors.numpy import load_file, save_file

pytestmark = [needs_program, for_cpus]


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    method = getattr(request, "param", "adamw")
    return tiny_run.trained(tmp_path_factory.mktemp("replay"), "logging.tensorboard=false", f"optimizer.method={method}") / "run"


def replay(run, step, *options):
    done = tiny_run.dtopp("replay", run, "--step", step, "--json", *options)
    assert done.returncode in (0, 6), done.stderr
    found = json.loads(done.stdout)
    assert found["step"] == step
    assert (done.returncode == 6) == (found["origin"] is not None or not found["finite"])
    return found


def with_values(run, copy, step, **tensors):
    """A copy of the run whose checkpoint of `step` holds other parameters, given as functions of the old ones."""
    shutil.copytree(run, copy)
    folder = copy / f"checkpoints/step-{step:08d}"
    parameters = load_file(folder / "model.safetensors")
    for name, change in tensors.items():
        name = next(full for full in parameters if full.endswith(name.replace("__", ".")))
        parameters[name] = change(parameters[name].copy()).astype("float32")
    save_file(parameters, folder / "model.safetensors")
    write_manifest(folder, "dtopp checkpoint 1")
    return copy


def all_files(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("trained", ["adamw", "muon"], indirect=True)
@pytest.mark.parametrize("step", [1, 4, 7, 12])
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_a_replayed_step_equals_the_step_of_the_run_and_changes_no_file(trained, step, processes):
    before = all_files(trained)
    found = replay(trained, step, *processes)
    line = next(line for line in tiny_run.metrics(trained) if line["step"] == step and "train/loss" in line)
    assert found["finite"] and found["origin"] is None and found["parameters"] == []
    assert found["loss"] == line["train/loss"] and found["grad_norm"] == line["train/grad_norm"]
    assert {"layer 0 attention", "layer 0 mlp", "layer 1 attention", "layer 1 mlp"} <= {v["scope"] for v in found["largest"]}
    assert all_files(trained) == before


# A parameter that is made huge, and the scope in which a value overflows first.
HUGE = [("embed_tokens__weight", "layer 0"), ("layers__0__self_attn__v_proj__weight", "layer 0 attention"),
        ("layers__1__self_attn__v_proj__weight", "layer 1 attention"), ("layers__0__mlp__experts__gate_up_proj", "layer 0 mlp"),
        ("layers__1__mlp__experts__gate_up_proj", "layer 1 mlp"), ("layers__0__mlp__experts__down_proj", "layer 1"),
        ("layers__1__mlp__experts__down_proj", "final norm")]


@pytest.mark.parametrize("name, scope", HUGE)
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_the_place_where_a_value_overflows_is_named(trained, tmp_path, name, scope, processes):
    run = with_values(trained, tmp_path / "run", 4, **{name: lambda w: w * 0 + 3e38})
    origin = replay(run, 5, *processes)["origin"]
    assert origin["pass"] == "forward" and origin["scopes"][-1] == scope, origin
    assert origin["scopes"][0].startswith("micro-batch ") and origin["infinite"] + origin["nan"] > 0
    assert origin["largest_input"] < 3.5e38
    assert origin["operation"] == "dtopp::multiply_transposed" or "v_proj" not in name
    assert len(origin["samples"]) == 2 and all("train.npy: tokens " in sample for sample in origin["samples"])


def test_a_parameter_that_is_not_finite_is_named(trained, tmp_path):
    def spoil(weight):
        weight.flat[5] = float("nan")
        return weight

    run = with_values(trained, tmp_path / "run", 8, layers__1__mlp__gate__weight=spoil)
    found = replay(run, 9)
    assert [name for name in found["parameters"] if name.endswith("layers.1.mlp.gate.weight")] == found["parameters"] != []


def test_a_step_that_training_skipped_is_not_finite_in_its_replay_either(tmp_path):
    directory = tmp_path / "data"
    done = tiny_run.dtopp("train", tiny_run.make(directory), "logging.tensorboard=false", "optimizer.lr=1e15", "optimizer.grad_clip=0",
                          "optimizer.warmup_steps=0", "training.max_skips=100")
    skipped = [line["step"] for line in tiny_run.metrics(directory / "run") if line.get("train/skipped_steps", 0) > 0]
    assert done.returncode == 0 and skipped, done.stderr
    assert f"dtopp replay {directory / 'run'} --step {skipped[0]}" in done.stderr
    found = replay(directory / "run", skipped[0])
    assert not found["finite"] and found["origin"] is not None


def test_images_are_named(tmp_path):
    config = tiny_diffusion_run.make(tmp_path)
    assert tiny_run.dtopp("train", config).returncode == 0
    run = with_values(tmp_path / "run", tmp_path / "copy", 4, blocks__1__mlp__experts__down_proj=lambda w: w * 0 + 3e38)
    origin = replay(run, 5)["origin"]
    assert origin["scopes"][-1] == "output" and all(s.startswith("image ") for s in origin["samples"])


def test_the_text_shows_what_the_object_holds(trained, tmp_path):
    run = with_values(trained, tmp_path / "run", 4, layers__1__mlp__experts__down_proj=lambda w: w * 0 + 3e38)
    done = tiny_run.dtopp("replay", run, "--step", 5)
    assert done.returncode == 6 and "repeating steps 5 to 5" in done.stderr
    for part in ("forward", "final norm", "train.npy: tokens ", "largest values"):
        assert part in done.stdout, done.stdout


def test_a_replay_that_differs_from_the_run_warns(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    lines = tiny_run.metrics(trained)
    (tmp_path / "run/metrics.jsonl").write_text("".join(
        json.dumps(line | ({"train/loss": 9.5} if line["step"] == 7 and "train/loss" in line else {})) + "\n" for line in lines))
    for step, warns in ((7, True), (8, False)):
        done = tiny_run.dtopp("replay", tmp_path / "run", "--step", step)
        assert done.returncode == 0 and ("warning: the run logged a loss of 9.5" in done.stderr) == warns, done.stderr


def test_bad_input_is_refused(trained, tmp_path):
    for arguments, status, names in (((trained, "--step", "0"), 2, "--step"), ((trained, "--step", "13"), 2, "12"),
                                     ((tmp_path, "--step", "1"), 2, tmp_path), ((trained,), 2, "--step")):
        assert_refused(tiny_run.dtopp("replay", *arguments), status, names)


def test_other_data_are_refused(tmp_path):
    directory = tiny_run.trained(tmp_path / "data", "logging.tensorboard=false")
    tiny_run.write_tokens(directory / "train.npy", 8000, seed=5)
    assert_refused(tiny_run.dtopp("replay", directory / "run", "--step", "6"), 2, "train.npy")
