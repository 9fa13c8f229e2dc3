"""A run stopped anywhere equals an uninterrupted run: parameters, moments, p, its error sum, data order,
metrics."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tiny_diffusion_run
import tiny_run
from needs import needs_program
from refusal import assert_refused

BUILD = Path(os.environ.get("DTOPP_BUILD", tiny_run.ROOT / "build/release"))
SHIM = BUILD / "lib" / "libfault_shim.so"
TOKENIZER = tiny_run.ROOT / "assets/tokenizer/english-4k.tokenizer.json"

pytestmark = needs_program


def final_state(run, step=12):
    return tiny_run.state(run, step)


RUNS = {
    "global": (tiny_run.make, []),
    "layer": (tiny_run.make, ["routing.scope=layer", "routing.controller=solve"]),
    "muon": (tiny_run.make, ["optimizer.method=muon"]),
    "diffusion": (tiny_diffusion_run.make, ["diffusion.samples_every=5", "diffusion.sample_classes=[1]"]),
}


@pytest.fixture(scope="module", params=["global"])
def reference(request, tmp_path_factory):
    """An uninterrupted run: its directory, the function that writes its data and configuration, and its
    overrides."""
    make, overrides = RUNS[request.param]
    directory = tmp_path_factory.mktemp("reference")
    done = tiny_run.dtopp("train", make(directory), *overrides)
    assert done.returncode == 0, done.stderr
    return directory, make, overrides


def start(config, overrides):
    return subprocess.Popen([tiny_run.BINARY, "train", config, *overrides], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def kill_when(process, step, how):
    """Sends the signal shortly after the console shows `step` or a later one. Returns the exit status."""
    for line in process.stderr:
        words = line.split()
        if words[0] == "step" and words[1].split("/")[0].isdigit() and int(words[1].split("/")[0]) >= step:
            break
    time.sleep(random.random() * 0.02)
    process.send_signal(how)
    process.communicate(timeout=60)
    return process.returncode


def pictures(run):
    """The bytes of the sample grids drawn during training."""
    return {path.name: path.read_bytes() for path in (run / "samples").glob("*")}


@pytest.mark.parametrize("reference, how, status", [
    ("global", signal.SIGKILL, -9), ("global", signal.SIGTERM, 75), ("global", signal.SIGINT, 75),
    ("layer", signal.SIGKILL, -9), ("muon", signal.SIGKILL, -9), ("diffusion", signal.SIGKILL, -9)], indirect=["reference"])
def test_a_run_stopped_at_random_moments_equals_the_run_never_stopped(reference, tmp_path, how, status):
    directory, make, overrides = reference
    config = make(tmp_path)
    run = tmp_path / "run"
    stops = 0
    for step in (1, 3, 6, 8, 11) if tiny_run.FULL else (1, 6, 11):
        process = start(config, overrides)
        ended = kill_when(process, step, how)
        assert ended in (status, 0)
        stops += ended == status
    assert stops >= 2, "the run was too quick to be stopped"
    done = tiny_run.dtopp("train", config, *overrides)
    assert done.returncode == 0, done.stderr
    assert final_state(run) == final_state(directory / "run")
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(directory / "run"))
    assert pictures(run) == pictures(directory / "run")


def test_a_second_signal_ends_the_process_at_once_and_leaves_only_complete_checkpoints(reference, tmp_path):
    _, make, overrides = reference
    config = make(tmp_path)
    process = start(config, overrides)
    process.stderr.readline()  # the handlers are installed
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) in (75, 128 + signal.SIGTERM)
    assert tiny_run.dtopp("train", config, *overrides).returncode == 0


def test_a_complete_run_started_again_changes_nothing(reference):
    directory, _, overrides = reference
    before = final_state(directory / "run"), (directory / "run/metrics.jsonl").read_bytes()
    done = tiny_run.dtopp("train", directory / "run.yaml", *overrides)
    assert done.returncode == 0, done.stderr
    assert before == (final_state(directory / "run"), (directory / "run/metrics.jsonl").read_bytes())


@pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built: make test")
def test_a_run_killed_after_its_last_checkpoint_is_finished(tmp_path):
    """It dies before the third rename to run.json. The file is closed after each rename."""
    config, run = tiny_run.make(tmp_path), tmp_path / "run"
    overrides = ["checkpoint.every=6", "checkpoint.keep=1"]
    environment = {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(run / "run.json"), "FAULT_MODE": "kill", "FAULT_AT": "5",
                   "FAULT_FIRED": str(tmp_path / "fired")}
    done = tiny_run.dtopp("train", config, *overrides, env=os.environ | environment)
    assert done.returncode == -signal.SIGKILL and len(list(run.glob(".tmp-run.json.*"))) == 1
    assert (run / "checkpoints/step-00000012").is_dir()
    assert tiny_run.dtopp("train", config, *overrides).returncode == 0
    assert not list(run.glob(".tmp-*")) and '"saved_step": 12' in (run / "run.json").read_text()


def test_another_configuration_in_the_directory_is_refused_by_key(reference):
    directory, _, overrides = reference
    before = (directory / "run/config.yaml").read_bytes()
    done = tiny_run.dtopp("train", directory / "run.yaml", *overrides, "optimizer.lr=0.5", "training.seed=9")
    assert_refused(done, 2, ["optimizer.lr", "training.seed"])
    assert before == (directory / "run/config.yaml").read_bytes()


def test_a_damaged_newest_checkpoint_is_passed_over(reference, tmp_path):
    directory, make, overrides = reference
    config = make(tmp_path)
    assert tiny_run.dtopp("train", config, *overrides).returncode == 0
    run = tmp_path / "run"
    model = run / "checkpoints/step-00000012/model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    done = tiny_run.dtopp("train", config, *overrides)
    assert done.returncode == 0 and "step-00000012" in done.stderr
    assert final_state(run) == final_state(directory / "run")


@pytest.fixture
def unfinished(tmp_path):
    """The configuration of a run whose newest checkpoint is of step 8 of 12. Its metrics go up to step 12."""
    config = tiny_run.make(tmp_path)
    done = tiny_run.dtopp("train", config)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    return config


def assert_resumes(config, reference, *overrides):
    run = config.parent / "run"
    done = tiny_run.dtopp("train", config, *overrides)
    assert done.returncode == 0 and "step-00000008" in done.stderr, done.stderr
    assert final_state(run) == final_state(reference / "run")
    assert tiny_run.timeless(tiny_run.metrics(run)) == tiny_run.timeless(tiny_run.metrics(reference / "run"))


def assert_untouched_and_refused(config, status, names, *overrides, **options):
    metrics = config.parent / "run/metrics.jsonl"
    before = metrics.read_bytes()
    assert_refused(tiny_run.dtopp("train", config, *overrides, **options), status, names, alone=False)
    assert metrics.read_bytes() == before


def test_other_data_at_the_same_path_are_refused(reference, unfinished):
    data = unfinished.parent / "train.npy"
    kept = data.read_bytes()
    tiny_run.write_tokens(data, 8000, seed=99)
    assert_untouched_and_refused(unfinished, 2, ["data.train", data, "step-00000008", "training.cooldown_from"])
    data.write_bytes(kept)
    assert_resumes(unfinished, reference[0])


def test_other_images_at_the_same_path_are_refused(tmp_path):
    config, data = tiny_diffusion_run.make(tmp_path), tmp_path / "train"
    done = tiny_run.dtopp("train", config)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    data.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "validation", data)
    assert_untouched_and_refused(config, 2, ["data.train", data, "step-00000008"])
    done = tiny_run.dtopp("train", config, f"data.train=[{tmp_path / 'moved'}]")
    assert done.returncode == 0, done.stderr


def test_the_same_data_resume_from_another_path(reference, unfinished):
    moved = unfinished.parent / "moved.npy"
    (unfinished.parent / "train.npy").rename(moved)
    assert_resumes(unfinished, reference[0], f"data.train=[{moved}]")


def test_another_tokenizer_is_refused_and_another_layout_of_its_file_is_not(tmp_path):
    config, data = tiny_run.make(tmp_path), tmp_path / "data"
    data.mkdir()
    shutil.copy(tmp_path / "train.npy", data)
    tokenizer = json.loads(TOKENIZER.read_text())
    (data / "tokenizer.json").write_text(json.dumps(tokenizer))
    overrides = [f"data.train=[{data}]", "data.validation=[]"]
    done = tiny_run.dtopp("train", config, *overrides)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    other = tokenizer | {"version": "other"}
    (data / "tokenizer.json").write_text(json.dumps(other))
    assert_untouched_and_refused(config, 2, ["data.train", "tokenizer.json", "step-00000008"], *overrides)
    (data / "tokenizer.json").unlink()
    assert_untouched_and_refused(config, 2, ["data.train", "tokenizer.json", "step-00000008"], *overrides)
    (data / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    done = tiny_run.dtopp("train", config, *overrides)
    assert done.returncode == 0, done.stderr


def test_a_run_without_its_checkpoints_is_refused(reference, unfinished):
    run = unfinished.parent / "run"
    checkpoints = run / "checkpoints"
    checkpoints.rename(run / "away")
    assert_untouched_and_refused(unfinished, 4, [checkpoints, "step 12"])
    checkpoints.mkdir()  # where nothing is mounted
    assert_untouched_and_refused(unfinished, 4, [checkpoints])
    checkpoints.rmdir()
    (run / "away").rename(checkpoints)
    assert_resumes(unfinished, reference[0])


def test_a_run_without_its_config_yaml_is_compared_with_its_checkpoint(reference, unfinished):
    (unfinished.parent / "run/config.yaml").unlink()
    names = ["optimizer.lr", "routing.scope"]
    assert_untouched_and_refused(unfinished, 2, names, "optimizer.lr=0.5", "routing.scope=layer")
    assert_resumes(unfinished, reference[0])


@pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built: make test")
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_failing_read_of_the_newest_checkpoint_does_not_choose_an_older_one(reference, unfinished, error):
    newest = unfinished.parent / "run/checkpoints/step-00000008"
    for at in (1, 3, 5):  # each opened file is closed before the next one
        fired = unfinished.parent / f"fired-{at}"
        environment = os.environ | {"LD_PRELOAD": str(SHIM), "FAULT_ROOT": str(newest), "FAULT_MODE": "once",
                                    "FAULT_ERRNO": str(error), "FAULT_AT": str(at), "FAULT_FIRED": str(fired)}
        assert_untouched_and_refused(unfinished, 4, [newest, os.strerror(error)], env=environment)
        assert fired.read_text() == "open to read"
    assert_resumes(unfinished, reference[0])
