"""Tests python -m dtopp.wandb with the real wandb, offline."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import threading

import pytest
import tiny_run
from needs import needs_program

from dtopp.wandb import follow

pytestmark = needs_program
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is missing: scripts/setup.sh test")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run.trained(tmp_path_factory.mktemp("wandb")) / "run"


def records_of(file):
    """The records of wandb's file: LevelDB's log format behind 7 bytes, with blocks of 32 KiB and parts of records in them."""
    data, at, record = file.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:  # no part begins here
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


def logged_in(file):
    """The values by step, and the configuration."""
    from wandb.proto import wandb_internal_pb2

    logged, config = {}, {}
    for data in records_of(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        if record.WhichOneof("record_type") == "history":
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            logged[values["_step"]] = values
    return logged, config


@needs_wandb
def test_wandb_holds_every_value_and_the_configuration(run, tmp_path):
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path),
                                "PYTHONPATH": os.pathsep.join([str(tiny_run.ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "dtopp.wandb", run, "--project", "test"], env=environment, text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    logged, config = logged_in(next(tmp_path.glob("wandb/offline-run-*/*.wandb")))
    expected = {}
    for line in tiny_run.metrics(run):
        expected.setdefault(line["step"], {}).update(line)
    assert logged.keys() == expected.keys() and len(logged) > 12
    for step, values in expected.items():
        assert {name: logged[step][name] for name in values if name != "step"} == {
            name: value for name, value in values.items() if name != "step"}
    assert config["model"]["hidden_size"] == 32 and config["training"]["steps"] == 12


def test_following_ends_with_the_last_step_and_repeats_nothing_after_a_resumption(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dtopp.wandb.POLL_SECONDS", 0.01)
    whole = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    file, seen = tmp_path / "metrics.jsonl", []
    reader = threading.Thread(target=lambda: seen.extend(follow(tmp_path, 12, grows=True)), daemon=True)
    reader.start()

    def write(content, lines):
        file.write_bytes(content)
        for _ in range(1000):
            if len(seen) < lines:
                reader.join(0.01)

    write(b"".join(whole[:8]) + whole[8][:20], 8)  # a torn line
    write(b"".join(whole[:4]), 4)                  # a resumed run begins again at its checkpoint
    reader.join(0.1)
    write(b"".join(whole), len(whole))
    (tmp_path / "run.json").write_bytes((run / "run.json").read_bytes())
    reader.join(10)
    assert not reader.is_alive()
    assert [line["step"] for line in seen] == [line["step"] for line in tiny_run.metrics(run)]
