"""Tests dtopp's safetensors files against Hugging Face's package in both directions, and its sharded models."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from huggingface_hub import save_torch_state_dict

BUILD = Path(os.environ.get("DTOPP_BUILD", Path(__file__).parents[3] / "build" / "release"))
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.uint8: "U8"}


def list_tensors(paths):
    done = subprocess.run(
        [BUILD / "bin" / "list_tensors", *paths], capture_output=True, text=True, check=True, timeout=300
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def digits_of(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes().hex() if tensor.numel() else ""


def described(tensors):
    return {name: [DTYPES[t.dtype], list(t.shape), digits_of(t)] for name, t in tensors.items()}


def save_checkpoint(run, item):
    subprocess.run([BUILD / "bin" / "checkpoint_driver", "save", run, "0", item], check=True, timeout=60)
    return run / "checkpoints" / f"step-{int(item.rstrip('s')):08}"


def test_hugging_face_opens_a_checkpoint(tmp_path):
    checkpoint = save_checkpoint(tmp_path, "30")
    for name in ["model.safetensors", "optimizer.safetensors"]:
        tensors = safetensors.torch.load_file(checkpoint / name)
        assert described(tensors) == list_tensors([checkpoint / name])[0]
    assert {"model.embed_tokens.weight.exp_avg", "model.embed_tokens.weight.exp_avg_sq"} <= tensors.keys()
    with safetensors.safe_open(checkpoint / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("model.layers.0.mlp.gate.scale").shape == torch.Size([])


def test_shards_are_those_of_hugging_face(tmp_path):
    """The names, index and split are those that huggingface_hub gives the same tensors."""
    checkpoint = save_checkpoint(tmp_path / "run", "30s")
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    tensors = {}
    for shard in sorted(set(index["weight_map"].values())):
        part = safetensors.torch.load_file(checkpoint / shard)
        assert {index["weight_map"][name] for name in part} == {shard}
        tensors |= part
    assert tensors.keys() == index["weight_map"].keys()
    whole = safetensors.torch.load_file(save_checkpoint(tmp_path / "whole", "30") / "model.safetensors")
    assert described(tensors) == described(whole)

    ordered = {name: tensors[name] for name in sorted(tensors, key=lambda name: index["weight_map"][name])}
    (tmp_path / "theirs").mkdir()
    save_torch_state_dict(ordered, tmp_path / "theirs", max_shard_size=48)
    theirs = json.loads((tmp_path / "theirs" / "model.safetensors.index.json").read_text())
    assert theirs["weight_map"] == index["weight_map"]
    assert theirs["metadata"]["total_size"] == index["metadata"]["total_size"]


def test_files_of_the_python_package_are_read(tmp_path):
    torch.manual_seed(1)
    tensors = {
        "bf16": torch.randn(3, 5).bfloat16(),
        "half": torch.randn(7).half(),
        "scalar": torch.tensor(0.1),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(6).view(1, 2, 3),
        'näme "quoted" \n': torch.arange(5, dtype=torch.uint8),
    }
    safetensors.torch.save_file(tensors, tmp_path / "file", metadata={"format": "pt", "note": "{}"})
    assert list_tensors([tmp_path / "file"]) == [described(tensors)]
    (tmp_path / "sharded").mkdir()
    save_torch_state_dict(tensors, tmp_path / "sharded", max_shard_size=40)
    found = {}
    for part in list_tensors(sorted((tmp_path / "sharded").glob("*.safetensors"))):
        found |= part
    assert found == described(tensors)


def mutated(data, generator):
    data = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(min(len(data), 200))
        action = generator.randrange(3)
        if action == 0:
            data[at] ^= 1 << generator.randrange(8)
        elif action == 1:
            data[at] = generator.choice(b'{}[],:"0123456789 -.eF\0')
        else:
            del data[at : at + generator.randint(1, 3)]
    return bytes(data)


def test_nothing_is_read_that_hugging_face_refuses_or_reads_otherwise(tmp_path):
    """Every mutated file that dtopp's reader accepts has the same meaning for Hugging Face's reader, which
    may accept more."""
    generator = random.Random(1)
    tensors = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.ones(2).bfloat16()}
    original = safetensors.torch.save(tensors, {"format": "pt"})
    paths = []
    for i in range(3000):
        paths.append(tmp_path / str(i))
        paths[-1].write_bytes(mutated(original, generator))
    accepted = 0
    for path, ours in zip(paths, list_tensors(paths), strict=True):
        if set(ours) == {"error"}:
            continue
        accepted += 1
        theirs = dict(safetensors.deserialize(path.read_bytes()))
        assert {name: [t["dtype"], t["shape"], bytes(t["data"]).hex()] for name, t in theirs.items()} == ours
    assert accepted > 50


@pytest.mark.parametrize("cut", [0, 7, 8, 30, -1])
def test_a_truncated_file_is_refused_with_its_name(tmp_path, cut):
    data = safetensors.torch.save({"a": torch.ones(4)})
    path = tmp_path / "file"
    path.write_bytes(data[:cut])
    assert str(path) in list_tensors([path])[0]["error"]
