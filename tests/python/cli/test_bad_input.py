"""Bad input gives one clear line and the right exit status, and leaves existing files untouched."""

import errno
import fcntl
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

import numpy as np
import pytest
import tiny_run
from needs import needs_program
from refusal import assert_refused

pytestmark = needs_program

TOKENIZER = tiny_run.ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def snapshot(directory):
    return {path: path.read_bytes() for path in pathlib.Path(directory).rglob("*") if path.is_file()}


def fails(status, names, *arguments, **options):
    """Runs dtopp. Checks its exit status and its error line. Returns the finished process."""
    done = tiny_run.dtopp(*arguments, **options)
    assert_refused(done, status, names, alone=False)
    return done


@pytest.mark.parametrize("override,names", [
    ("optimizer.lrr=1", ["optimizer.lrr", "optimizer.lr"]),
    ("trainig.steps=1", ["trainig", "training"]),
    ("training.steps=ten", ["training.steps", "ten"]),
    ("training.steps=1.5", "training.steps"),
    ("routing.experts=9", ["routing.experts", "8"]),
    ("routing.method=top_q", ["top_k", "top_p", "dtop_p"]),
    ("routing.threshold=1.5", "routing.threshold"),
    ("training.micro_batch_size=3", "micro_batch_size"),
    ("model.num_heads=5", "num_heads"),
    ("validation.tasks=[hellaswag]", "validation.tasks"),
    ("training.device=cuda", "training.device"),
    ("model.vocab_size=100", "vocab_size"),
    ("data.train=[]", "data.train"),
    ("training.threads=4294967297", ["training.threads", "4096"]),
    ("loss.router_z_on=normalised", ["raw", "normalized"]),
])
def test_configuration_mistakes_exit_2_and_write_nothing(tmp_path, override, names):
    config = tiny_run.make(tmp_path)
    start = time.time()
    fails(2, names, "train", config, override)
    assert time.time() - start < 10
    assert not (tmp_path / "run").exists()


def test_wrong_usage_exits_2(tmp_path):
    fails(2, "nothing.yaml", "train", tmp_path / "nothing.yaml")
    fails(2, "--help", "evaluate")
    fails(2, "checkpoint", "evaluate", "text", tmp_path, "--text", tmp_path)


@pytest.mark.parametrize("arguments,names", [
    (["trian"], ["'trian'", "train?", "dtopp --help"]),
    (["frobnicate"], ["'frobnicate'", "prepare, tokenize, new, train, replay, evaluate, generate, serve, sample, plan"]),
    (["prepare", "txet", "a.txt"], ["'txet'", "text?"]),
    (["--verison"], ["'--verison'", "--version?"]),
    (["evaluate", "tasks", "run", "--taks=copa"], ["'--taks'", "--tasks?"]),
    (["plan", "configs/quickstart.yaml", "--rank", "2"], ["'--rank'", "--ranks?"]),
    ([], ["a command is required", "dtopp --help"]),
    (["evaluate", "runs/quickstart"], ["evaluate needs a command before 'runs/quickstart'", "tasks, text, experts, images"]),
])
def test_mistyped_words_are_named_with_the_nearest_one(arguments, names):
    fails(2, names, *arguments)


@pytest.mark.parametrize("arguments, names", [
    (["generate", "run", "--max-tokens", "0"], ["--max-tokens", "greater than 0", "is 0"]),
    (["generate", "run", "--top-p", "1.5"], ["--top-p", "from 0 to 1", "1.5"]),
    (["generate", "run", "--temperature", "nan"], ["--temperature", "nan"]),
    (["sample", "run", "--count", "-3"], ["--count", "greater than 0", "-3"]),
    (["serve", "run", "--kv-tokens", "-1"], ["--kv-tokens", "at least 0", "-1"]),
    (["train", "run.yaml", "--processes", "5000"], ["--processes", "from 1 to 4096", "5000"]),
    (["plan", "run.yaml", "--ranks", "0"], ["--ranks", "greater than 0"]),
    (["study", "study.yaml", "--hours", "-1"], ["--hours", "at least 0"]),
])
def test_a_refused_option_names_its_bound_in_a_short_line(arguments, names):
    done = fails(2, names, *arguments)
    assert len(done.stderr) < 100, done.stderr


@pytest.mark.parametrize("arguments, names", [
    (["serve", "run", "--port", "80.5"], ["--port", "whole number from 0 to 65535", "80.5"]),
    (["serve", "run", "--port", "abc"], ["--port", "whole number", "abc"]),
    (["generate", "run", "--seed", "-1"], ["--seed", "whole number from 0 to 18446744073709551615", "-1"]),
    (["generate", "run", "--seed", "99999999999999999999999"], ["--seed", "whole number from 0 to"]),
    (["generate", "run", "--seed", "1.5"], ["--seed", "whole number", "1.5"]),
    (["generate", "run", "--max-tokens", "99999999999999999999"], ["--max-tokens", "whole number from 1 to"]),
])
def test_an_integer_option_refuses_what_it_cannot_hold(arguments, names):
    fails(2, names, *arguments)


def test_a_hint_tells_what_to_write_instead(tmp_path):
    config = tiny_run.make(tmp_path)
    fails(2, ["write training.steps=10 without"], "train", config, "--training.steps=10")
    fails(2, ["write training.steps=VALUE without"], "train", config, "--training.steps", "10")
    fails(2, ["write method=top_k without"], "plan", config, "--method=top_k")
    study = tmp_path / "study.yaml"
    study.write_text(f"base: {config}\nseeds: [1, 2]\nvariants: {{a: {{}}}}\n")
    fails(2, [f"{study}:3", "dtopp study"], "train", study)
    tiny_run.trained(tmp_path)
    fails(2, ["different: training.steps", f"training.cooldown_from={tmp_path / 'run'}"], "train", config, "training.steps=20")
    done = tiny_run.dtopp("train", config, "training.steps=20", f"training.cooldown_from={tmp_path / 'run'}",
                          f"output={tmp_path / 'longer'}")
    assert done.returncode == 0 and "step 20/20" in done.stderr, done.stderr


@pytest.fixture
def locked():
    """A folder that only its owner may enter, inside a folder that everyone may write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        locked = pathlib.Path(folder) / "locked"
        locked.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        yield locked
        locked.chmod(0o700)


def give_up_rights():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


@pytest.mark.parametrize("arguments", [
    ["train", "LOCKED/run.yaml"],
    ["train", "CONFIG", "output=LOCKED/run"],
    ["plan", "LOCKED/run.yaml"],
    ["prepare", "text", "LOCKED/a.txt", "--tokenizer", TOKENIZER, "--output", "LOCKED/../out"],
    ["prepare", "text", "TEXT", "--tokenizer", TOKENIZER, "--output", "LOCKED/out"],
    ["prepare", "text", "TEXT", "--tokenizer", "LOCKED/tokenizer.json", "--output", "LOCKED/../out"],
    ["tokenize", "--tokenizer", "LOCKED/tokenizer.json"],
], ids=lambda arguments: "-".join(str(word) for word in arguments if "LOCKED" in str(word) or word == arguments[0]))
def test_a_forbidden_folder_exits_3_with_the_systems_reason(locked, arguments):
    """Runs dtopp without root's rights, because permissions do not stop tests that run as root."""
    folder = locked.parent
    places = {"LOCKED": locked, "CONFIG": tiny_run.make(folder), "TEXT": folder / "a.txt"}
    (folder / "a.txt").write_text("text")
    for name, place in places.items():
        arguments = [str(word).replace(name, str(place)) for word in arguments]
    fails(3, [os.strerror(errno.EACCES), "locked"], *arguments, preexec_fn=give_up_rights, input="")


def test_a_name_that_is_not_utf8_is_refused_at_the_beginning(tmp_path):
    source = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    pathlib.Path(os.fsdecode(source)).write_text("text")
    done = subprocess.run([tiny_run.BINARY, "prepare", "text", source, "--tokenizer", TOKENIZER, "--output",
                           tmp_path / "out"], text=True, capture_output=True)
    assert_refused(done, 2, f"{tmp_path}/caf\N{REPLACEMENT CHARACTER}.txt: ")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    done = tiny_run.dtopp("train", tiny_run.make(directory), "training.steps=4")
    assert done.returncode == 0, done.stderr
    return directory


def test_missing_or_damaged_tokens_exit_3(tmp_path):
    config = tiny_run.make(tmp_path, output=tmp_path / "runs/new/")
    fails(3, "nowhere", "train", config, "data.train=[nowhere]")
    (tmp_path / "train.npy").write_bytes((tmp_path / "train.npy").read_bytes()[:-1])
    fails(3, "train.npy", "train", config)
    (tmp_path / "train.npy").write_bytes(b"\x01\x00" * 8)
    fails(3, "sequence", "train", config)
    assert not (tmp_path / "runs").exists()


def test_a_failed_start_removes_what_it_made_and_nothing_else(tmp_path):
    run = tmp_path / "runs/old"
    config = tiny_run.make(tmp_path, output=run)
    run.mkdir(parents=True)
    (run / "notes.txt").write_text("mine")
    fails(3, "nowhere", "train", config, "data.train=[nowhere]")
    assert sorted(path.name for path in run.iterdir()) == ["notes.txt"]
    assert tiny_run.dtopp("train", config).returncode == 0
    before = snapshot(run)
    fails(2, "data.train", "train", config, f"data.train=[{tmp_path / 'validation.npy'}]")
    (tmp_path / "train.npy").unlink()
    fails(3, "train.npy", "train", config)
    assert snapshot(run) == before


def test_the_configuration_is_compared_by_who_holds_the_directory(tmp_path):
    config = tiny_run.make(tmp_path)
    assert tiny_run.dtopp("train", config, "training.steps=4").returncode == 0
    with open(tmp_path / "run/.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = fails(2, tmp_path / "run", "train", config, "training.steps=4", "training.seed=4")
        assert "training.seed" not in done.stderr
    fails(2, "training.seed", "train", config, "training.steps=4", "training.seed=4")


def prepare(directory, name, text, tokenizer=TOKENIZER):
    source = directory / f"{name}.txt"
    source.write_text(text)
    return tiny_run.dtopp("prepare", "text", source, "--tokenizer", tokenizer, "--output", directory / name)


def test_a_flipped_bit_in_prepared_tokens_exits_3(tmp_path):
    assert prepare(tmp_path, "tokens", "It is a truth universally acknowledged. " * 200).returncode == 0
    config = tiny_run.make(tmp_path)
    overrides = [f"data.train=[{tmp_path / 'tokens'}]", "model.vocab_size=50432", "validation.every=0"]
    path = tmp_path / "tokens/tokens.bin"
    good = path.read_bytes()
    path.write_bytes(good[:10] + bytes([good[10] ^ 4]) + good[11:])
    fails(3, path, "train", config, *overrides)
    path.write_bytes(good)
    assert not (tmp_path / "run").exists()
    assert tiny_run.dtopp("train", config, *overrides, "training.steps=4").returncode == 0


def test_two_tokenizers_exit_2(tmp_path):
    other = tmp_path / "other.json"
    other.write_text(TOKENIZER.read_text() + "\n")
    assert prepare(tmp_path, "a", "one text " * 200).returncode == 0
    assert prepare(tmp_path, "b", "another text " * 200, other).returncode == 0
    config = tiny_run.make(tmp_path)
    fails(2, "tokenizer", "train", config, "model.vocab_size=50432", f"data.train=[{tmp_path / 'a'}]",
          f"data.validation=[{tmp_path / 'b'}]")
    assert not (tmp_path / "run").exists()


def test_prepare_names_file_and_line_of_damaged_text(tmp_path):
    source = tmp_path / "bad.jsonl"
    source.write_text('{"text": "fine"}\n{"text": 3}\n')
    fails(3, ["bad.jsonl", "2"], "prepare", "text", source, "--tokenizer", TOKENIZER, "--output", tmp_path / "out")
    fails(3, "missing.jsonl", "prepare", "text", tmp_path / "missing.jsonl", "--tokenizer", TOKENIZER, "--output",
          tmp_path / "out2")
    (tmp_path / "not.json").write_text("{")
    fails(3, "not.json", "prepare", "text", source, "--tokenizer", tmp_path / "not.json", "--output", tmp_path / "out3")


def test_an_output_that_cannot_be_written_exits_3(tmp_path):
    fails(3, "/proc", "train", tiny_run.make(tmp_path, output="/proc/no/run"))


def test_a_full_disk_exits_3_and_keeps_the_last_checkpoint(tmp_path):
    config = tiny_run.make(tmp_path)
    assert tiny_run.dtopp("train", config, "training.steps=12", "checkpoint.every=4").returncode == 0
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoints/step-00000012")
    before = snapshot(run / "checkpoints")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    done = tiny_run.dtopp("train", config, "training.steps=12", preexec_fn=small_files)
    assert_refused(done, 3, run, alone=False)
    after = snapshot(run / "checkpoints")
    assert all(after[path] == content for path, content in before.items())
    assert tiny_run.dtopp("train", config, "training.steps=12").returncode == 0


def test_damaged_checkpoints_exit_4(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    for model in run.glob("checkpoints/*/model.safetensors"):
        data = bytearray(model.read_bytes())
        data[len(data) // 2] ^= 16
        model.write_bytes(data)
    before = snapshot(run)
    fails(4, "model.safetensors", "train", tiny_run.make(tmp_path), "training.steps=4",
          f"data.train=[{trained}/train.npy]")
    newest = sorted(run.glob("checkpoints/*"))[-1]
    fails(4, "model.safetensors", "evaluate", "text", newest, "--text", tmp_path / "validation.npy")
    assert {key: value for key, value in snapshot(run).items() if key.name != ".lock"} == \
        {key: value for key, value in before.items() if key.name != ".lock"}


def test_two_processes_cannot_write_one_run_directory(tmp_path):
    config = tiny_run.make(tmp_path)
    first = subprocess.Popen([tiny_run.BINARY, "train", config, "training.steps=100000"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    try:
        for line in first.stderr:
            if line.startswith("step"):
                break
        fails(2, str(tmp_path / "run"), "train", config, "training.steps=100000")
    finally:
        first.kill()
        first.communicate()


def test_data_that_become_shorter_during_training_exit_3(tmp_path):
    run = subprocess.Popen([tiny_run.BINARY, "train", tiny_run.make(tmp_path), "training.steps=100000"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in run.stderr:
        if line.startswith("step"):
            break
    os.truncate(tmp_path / "train.npy", 2000)
    errors = [line for line in run.communicate(timeout=60)[1].splitlines() if not line.startswith(("step", "validation"))]
    assert run.returncode == 3, errors
    assert len(errors) == 1 and str(tmp_path / "train.npy") in errors[0] and "shorter" in errors[0], errors


def test_endless_non_finite_steps_exit_6_and_spare_the_parameters(tmp_path):
    config = tiny_run.make(tmp_path)
    done = fails(6, ["max_skips", "optimizer.lr"], "train", config, "optimizer.lr=1.0e38", "optimizer.min_lr=1.0e38",
                 "optimizer.warmup_steps=0", "training.max_skips=2", "training.steps=50")
    assert "skipped" in done.stderr
    lines = [line for line in tiny_run.metrics(tmp_path / "run") if "train/loss" in line]
    assert lines[-1]["train/skipped_steps"] == 3
    thresholds = [line["moe/threshold"] for line in lines[-3:]]
    assert len(set(thresholds)) == 1, "a skipped step moved the controller"


def test_too_little_memory_exits_5_before_the_first_step(tmp_path):
    config = tiny_run.make(tmp_path)
    fails(5, "memory", "train", config, "model.hidden_size=65536", "model.ffn_hidden_size=65536",
          "model.num_layers=64")
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_evaluate_refuses_tokens_that_do_not_fit(trained, tmp_path):
    np.array([1, 2, 300], dtype="<u2").tofile(tmp_path / "tokens.npy")
    fails(2, "300", "evaluate", "text", trained / "run", "--text", tmp_path / "tokens.npy")
    fails(2, "tokenizer", "evaluate", "text", trained / "run", "--text", __file__)
    fails(2, "nonsense", "evaluate", "tasks", trained / "run", "--tasks", "nonsense", "--data", "/nowhere")
