"""Follows the tutorial docs/tutorial/own-moe.md with a tiny random Mixtral: every command, file and program of the page."""

import re
import shlex
import subprocess
import sys

import corpus
import pytest
import tiny_run
import tokenizers
from needs import for_cpus, needs_program
from serving import Server

transformers = pytest.importorskip("transformers")
openai = pytest.importorskip("openai", reason="openai is not installed: scripts/setup.sh test")
pytestmark = [needs_program, for_cpus]

PAGE = (tiny_run.ROOT / "docs/tutorial/own-moe.md").read_text()
NOVEL = "\n".join(corpus.documents(tiny_run.ROOT / "assets/text/novels-validation.jsonl.zst"))


def blocks(kind):
    return [text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S) if name == kind]


def write_model(folder):
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train_from_iterator([NOVEL[:50000]], trainer)
    config = transformers.MixtralConfig(vocab_size=400, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=64,
                                        sliding_window=None, bos_token_id=0, eos_token_id=0)
    transformers.MixtralForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_the_page_works_as_it_stands(tmp_path):
    write_model(tmp_path / "my-moe")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/train.txt").write_text(NOVEL[:60000])
    (tmp_path / "texts/held-out.txt").write_text(NOVEL[60000:70000])
    config, = blocks("yaml")
    (tmp_path / "dynamic.yaml").write_text(config.replace("steps: 200", "steps: 20").replace("every: 50", "every: 10"))
    commands = [shlex.split(line) for block in blocks("") for line in block.splitlines()]
    *others, serve = commands
    for program, *arguments in others:
        assert program == "dtopp"
        done = tiny_run.dtopp(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    lines = [line for line in tiny_run.metrics(tmp_path / "runs/dynamic") if "val/loss" in line]
    assert lines[-1]["val/loss"] < lines[0]["val/loss"] and lines[-1]["val/active_experts"] == pytest.approx(2, rel=0.1)

    client, = blocks("python")
    assert serve[:3] == ["dtopp", "serve", "runs/dynamic"]
    with Server(tmp_path / serve[2], *(tmp_path / word if word.startswith("texts/") else word for word in serve[3:])) as server:
        code = client.replace("http://127.0.0.1:8000/", server.address)
        assert server.address in code
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    means = [float(mean) for mean in re.findall(r"^\d ([\d.]+) ", done.stdout, re.M)]
    assert len(means) == 3 and means[0] < means[1] < means[2]
