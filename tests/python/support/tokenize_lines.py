"""Runs `dtopp tokenize` on lines."""

import json
import subprocess

import make_tokenizer_golden as golden
from tiny_run import BINARY, ROOT

SHIPPED = ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def tokenize(tokenizer, lines, *options, check=True):
    """The lines of standard output, parsed. With check=False, the finished process."""
    data = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
    done = subprocess.run([BINARY, "tokenize", "--tokenizer", tokenizer, *options], input=data, capture_output=True)
    if not check:
        return done
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode().split("\n")
    assert out.pop() == ""
    return [json.loads(line) for line in out]


def small_file():
    return json.loads(golden.small_tokenizer(False, True, True).to_str())
