"""Runs `dtopp tokenize` on lines."""

import json

import make_tokenizer_golden as golden
import start
from tiny_run import BINARY, ROOT

SHIPPED = ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"


def tokenize(tokenizer, lines, *options, check=True):
    """The lines of standard output, parsed. With check=False, the finished process."""
    data = lines if isinstance(lines, bytes) else "".join(line + "\n" for line in lines).encode()
    done = start.run([BINARY, "tokenize", "--tokenizer", tokenizer, *options], input=data, capture_output=True)
    if not check:
        return done
    assert done.returncode == 0, done.stderr.decode()
    out = done.stdout.decode().split("\n")
    assert out.pop() == ""
    return [json.loads(line) for line in out]


def small_file():
    return json.loads(golden.small_tokenizer(False, True, True).to_str())


def marked_file():
    """A tokenizer of SentencePiece's form: marks for spaces, and bytes for unknown characters."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a", "</s>"]
    return {"version": "1.0", "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]},
            "pre_tokenizer": None, "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
            "model": {"type": "BPE", "vocab": {token: n for n, token in enumerate(vocab)}, "merges": [["\u2581", "a"]],
                      "byte_fallback": True},
            "added_tokens": [{"id": vocab.index(token), "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for token in ("<unk>", "</s>")]}
