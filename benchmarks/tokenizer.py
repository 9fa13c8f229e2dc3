#!/usr/bin/env python3
"""Times the tokenizer against Hugging Face `tokenizers`, one thread each, in turn on the same documents.

Prints one JSON line per case. `encode` calls tokenizers' encode() per document, `encode_batch` its
encode_batch() for all of them, both with TOKENIZERS_PARALLELISM=false. The ids must be equal. Needs the
target tokenizer_benchmark.

Usage: .venv/bin/python benchmarks/tokenizer.py [--text FILE.jsonl[.zst]] [--megabytes N] [--rounds N]
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent


def read_documents(path, megabytes):
    sys.path.insert(0, str(ROOT / "tests/python/support"))
    from corpus import documents

    texts = documents(path) if path.suffix == ".zst" else [json.loads(line)["text"] for line in path.open() if line.strip()]
    chosen, size = [], 0
    for text in texts:
        if size >= megabytes * 1e6:
            break
        chosen.append(text)
        size += len(text.encode())
    return chosen, size


class Program:
    """The C++ program, which keeps running between rounds."""

    def __init__(self, binary, tokenizer, texts):
        self.file = tempfile.NamedTemporaryFile()
        for text in texts:
            data = text.encode()
            self.file.write(struct.pack("<Q", len(data)) + data)
        self.file.flush()
        self.process = subprocess.Popen([binary, tokenizer, self.file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def time_hugging_face(encode_all):
    start = time.perf_counter()
    encodings = encode_all()
    seconds = time.perf_counter() - start
    crc, tokens = 0, 0
    for encoding in encodings:
        ids = encoding.ids
        crc = zlib.crc32(struct.pack(f"<{len(ids)}i", *ids), crc)
        tokens += len(ids)
    return {"seconds": seconds, "tokens": tokens, "crc32": crc}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=pathlib.Path, default=ROOT / "assets/text/lab-train.jsonl.zst")
    parser.add_argument("--tokenizer", default=str(ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"))
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/tokenizer_benchmark"))
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    texts, size = read_documents(args.text, args.megabytes)
    reference = tokenizers.Tokenizer.from_file(args.tokenizer)
    program = Program(args.binary, args.tokenizer, texts)
    peers = {
        "encode": lambda: [reference.encode(text, add_special_tokens=False) for text in texts],
        "encode_batch": lambda: reference.encode_batch(texts, add_special_tokens=False),
    }
    ours, theirs = [], {name: [] for name in peers}
    for _ in range(args.rounds):
        for name, encode_all in peers.items():
            mine, other = program.round(), time_hugging_face(encode_all)
            assert (mine["tokens"], mine["crc32"]) == (other["tokens"], other["crc32"]), "the ids differ"
            ours.append(mine["seconds"])
            theirs[name].append(other["seconds"])
    program.close()
    own = statistics.median(ours)
    for name, seconds in theirs.items():
        peer = statistics.median(seconds)
        print(json.dumps({
            "case": f"tokenizer: {name}", "documents": len(texts), "megabytes": round(size / 1e6, 2), "same_ids": True,
            "dtopp_mb_per_s": round(size / 1e6 / own, 2), "tokenizers_mb_per_s": round(size / 1e6 / peer, 2),
            "ratio": round(peer / own, 2), "rounds": args.rounds}), flush=True)


if __name__ == "__main__":
    main()
