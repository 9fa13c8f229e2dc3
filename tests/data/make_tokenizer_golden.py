#!/usr/bin/env python3
"""Writes tests/data/tokenizer_golden.json: the ids that Hugging Face `tokenizers` gives for hard cases.

Usage: .venv/bin/python tests/data/make_tokenizer_golden.py
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).parent.parent.parent
CORPUS = ["the cat's hat isn't there; they'll see we've 1234 cats\n\n  and\tdogs", "naïve café, Übung, 日本語 한국어 русский"] * 50

HARD_CASES = [
    "", " ", "\n", "\t", "\0", "a\0b", "\r\n", "line\r\nline\r\n\r\n", "a\n\nb\n\n\n c", "a \n b", "x\n\n", "  x", "x  ",
    "Hello world", "don't DON'T we'll we'LL 'tis 're're 'x ''s l'l", "abc123def 4567 ½²Ⅷ", "a.b,c!?… —„“",
    "e\u0301 o\u0308\u0323 \u1112\u1161\u11ab \uac00\u11a8 \u212b \u2126 \u0344 \u0958 \ufb1d",
    "\u0301start a\u0327\u0301\u0316 \u1df9\u0327a \U00011935\U00011930 \U00011938", "각 힣 한국어",
    "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪", "日本語のテキスト。中文没有空格", "مرحبا بالعالم שלום ภาษาไทย हिन्दी",
    "\u0085\u00a0\u1680\u2003\u2028\u2029\u202f\u3000x\u200b\ufeffy\u180ez", "\U0001d7d8\U00010ffd\U000e0001\U0010ffff\ue000\uffff",
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|>\n<|padding|><|endoftext|", "<|endoftext|><|endoftext|>",
    "café cafe\u0301 <s>x<s> <s2>   <w> a<w>b <w> ,<w>. <w>é <n\u0303> <ñ>  <b>  x",
    "def f(x):\n    if x:\n        return [1,\n\t\t2]\n", "a" * 100, "ab" * 60, "=" * 70, "é" * 40,
]
HARD_CASES += ["x" + " " * n + "y" for n in range(2, 31)] + ["\t" * n + " " * n for n in range(1, 4)]


def random_texts(rng, count):
    pools = ["ab e's\n ", "  \t\n\r\u00a0", "<|endoftext|>", "e\u0301\u0323\u0327a\u0308", "0123½ ", "가각\u1100\u1161\u11a8", "日本👍🏽\u200d"]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 12)):
            pool = rng.choice(pools)
            if rng.random() < 0.2:
                c = rng.randrange(0x110000)
                parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "-")
            parts.append("".join(rng.choice(pool) for _ in range(rng.randrange(1, 6))))
            parts.append(rng.choice(["", "", "<|endoftext|>", "<s>", " <w> ", "<b>  "]))
        yield "".join(parts)


def published_pre_tokenizers():
    """Each `pre_tokenizer` as published in the tokenizer.json of a model family."""
    return json.loads((ROOT / "tests/data/pre_tokenizers.json").read_text())


def with_pre_tokenizer(tokenizer, pre_tokenizer, **byte_level):
    """A copy of `tokenizer` with another pre-tokenizer, whose ByteLevel gets these options."""
    file = json.loads(tokenizer.to_str())
    *splits, last = pre_tokenizer["pretokenizers"]
    file["pre_tokenizer"] = {**pre_tokenizer, "pretokenizers": [*splits, {**last, **byte_level}]}
    return Tokenizer.from_str(json.dumps(file))


def small_tokenizer(prefix_space, nfc, use_regex, ignore_merges=False, pre_tokenizer=None):
    """A small tokenizer with an added token of each kind: GPT-2 style, or with a published pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=use_regex)
    if pre_tokenizer:
        tokenizer = with_pre_tokenizer(tokenizer, pre_tokenizer, add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([
        AddedToken("<s>", lstrip=True, normalized=False), AddedToken("<s2>", rstrip=True, normalized=True),
        AddedToken("<w>", single_word=True, normalized=False), AddedToken("<b>", lstrip=True, rstrip=True, normalized=True),
        AddedToken("<n\u0303>", normalized=True), AddedToken("cats\u00e9", normalized=False), AddedToken("   ", normalized=True),
        AddedToken("<x>", normalized=False, special=True), AddedToken("<xy", normalized=False),
    ])
    return tokenizer


def shipped_tokenizer():
    return Tokenizer.from_file(str(ROOT / "assets/tokenizer/gpt-neox-20b.tokenizer.json"))


def golden(tokenizer, rng, texts):
    encode = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in texts]
    decode = []
    for i in range(20):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(8)] + [0, tokenizer.get_vocab_size() - 2]
        decode.append({"ids": ids, "skip_special": bool(i % 2), "text": tokenizer.decode(ids, skip_special_tokens=bool(i % 2))})
    return {"encode": encode, "decode": decode}


def main():
    rng = random.Random(1)
    texts = HARD_CASES + list(random_texts(rng, 60))
    cases = [{"name": "gpt-neox-20b", "json": None, **golden(shipped_tokenizer(), rng, texts)}]
    for flags in [(False, True, True), (True, False, True), (True, True, False)]:
        tokenizer = small_tokenizer(*flags)
        cases.append({"name": "small prefix_space={} nfc={} regex={}".format(*flags), "json": tokenizer.to_str(),
                      **golden(tokenizer, rng, texts)})
    for name in ("llama-3", "gpt-oss", "deepseek-v3"):
        tokenizer = small_tokenizer(False, False, False, pre_tokenizer=published_pre_tokenizers()[name])
        cases.append({"name": name, "json": tokenizer.to_str(), **golden(tokenizer, rng, texts)})
    path = ROOT / "tests/data/tokenizer_golden.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"made_with": "tokenizers {tokenizers.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
