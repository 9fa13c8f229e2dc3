"""Tests `dtopp tokenize` against Hugging Face `tokenizers` on random tokenizers and texts. A failure names its seed,
which determines the case. `make nightly` tries 2,000."""

import json
import random

import make_tokenizer_golden as golden
import pytest
import tiny_run
from needs import needs_program
from tokenize_lines import tokenize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

pytestmark = needs_program

CASES = 2000 if tiny_run.FULL else 12
PUBLISHED = list(golden.published_pre_tokenizers().values())
ALPHABETS = ["etaoinshrdlu", "ab", "  \t\u00a0\u3000", "0123456789", ".,;:!?'\"()[]{}<>|_-+=/\\", "éüßñçøåĳǆ", "e\u0301\u0323\u0327\u0308\u0345",
             "日本語中文字", "가각\u1100\u1161\u11a8한", "אבגד", "हिन्दी", "👍🏽\u200d👩🇩🇪", "\0\x01\x7f\u0085\u2028\ufeff\ufffd", "½²Ⅷ٣४"]
PATTERNS = [r"\s+", r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]+", r"'s|'t|'re", r" ?\p{L}+| ?\p{N}+", r"(?<=\d)(?=\D)", r"\b", r"[A-Za-z]",
            r"(?i:AB)", r"\s+(?!\S)", r"[\p{Lu}\p{Lt}]?[\p{Ll}\p{M}]+", r"."]


def word(draw):
    return "".join(draw.choices(draw.choice(ALPHABETS), k=draw.choice([1, 2, 3, 5, 8, 30])))


def text(draw, tokens):
    """A line of words, code points of any kind, pieces of JSON and of numbers, and added tokens."""
    pieces = [lambda: word(draw), lambda: word(draw), lambda: " " * draw.randint(1, 9), lambda: json.dumps({word(draw): draw.random()}),
              lambda: chr(draw.choice([draw.randrange(0x20, 0xd800), draw.randrange(0xe000, 0x110000)])),
              lambda: draw.choice(tokens)[: draw.randint(1, 30)] if tokens else "", lambda: draw.choice(tokens or [" "])]
    line = "".join(draw.choice(pieces)() for _ in range(draw.randint(0, 25)))
    return line.replace("\n", "\r")


def pre_tokenizer(draw, prefix_space):
    if draw.random() < 0.3:
        return None, dict(add_prefix_space=prefix_space, use_regex=draw.random() < 0.7)
    if draw.random() < 0.4:
        return draw.choice(PUBLISHED), None
    parts = []
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.2:
            parts.append(pre_tokenizers.Digits(individual_digits=draw.random() < 0.5))
        else:
            parts.append(pre_tokenizers.Split(Regex(draw.choice(PATTERNS)), draw.choice(["isolated", "isolated", "removed"]), invert=draw.random() < 0.2))
    return pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=draw.random() < 0.3)]), None


def random_tokenizer(draw):
    """A trained tokenizer whose every option is drawn, and the contents of its added tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=draw.random() < 0.3))
    if draw.random() < 0.5:
        tokenizer.normalizer = normalizers.NFC()
    prefix_space = draw.random() < 0.3
    chosen, byte_level = pre_tokenizer(draw, prefix_space)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**byte_level) if byte_level else \
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False) if isinstance(chosen, dict) else chosen
    if isinstance(chosen, dict):
        tokenizer = golden.with_pre_tokenizer(tokenizer, chosen, add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [" ".join(word(draw) for _ in range(20)) for _ in range(60)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=draw.choice([257, 300, 500]), show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    contents = sorted({draw.choice(["<s>", "ab", "e\u0301", word(draw), f" {word(draw)}", f"<{word(draw)}>"]) for _ in range(draw.choice([0, 0, 3, 8]))})
    tokenizer.add_tokens([AddedToken(content, **{flag: draw.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")})
                          for content in contents if content])
    return tokenizer, contents + ["<|endoftext|>"]


MARK = "\u2581"


def marked_parts(draw):
    """The parts of SentencePiece's form: normalizer, pre-tokenizer and decoder."""
    steps = [{"type": "Replace", "pattern": {"String": " "}, "content": MARK}]
    if draw.random() < 0.7:
        steps.insert(0, {"type": "Prepend", "prepend": MARK})
    in_normalizer = {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}
    scheme = draw.choice(["always", "first", "never"])
    in_pre_tokenizer = {"normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": draw.random() < 0.5}}
    decoders = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if draw.random() < 0.7:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    decoder = {"type": "Sequence", "decoders": decoders} if draw.random() < 0.8 else None
    return draw.choice([in_normalizer, in_pre_tokenizer]) | {"decoder": decoder}


def random_marked_tokenizer(draw):
    """The same for a tokenizer of SentencePiece's form: marks for spaces, and bytes for unknown characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=draw.random() < 0.5)
    corpus = [" ".join(word(draw) for _ in range(draw.choice([2, 20]))) for _ in range(60)]
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=draw.choice([100, 300, 500]), limit_alphabet=80, show_progress=False))
    file = json.loads(trained.to_str())
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
    file["model"] |= {"vocab": {token: n for n, token in enumerate(tokens)}, "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True,
                      "ignore_merges": draw.random() < 0.3}
    file |= marked_parts(draw)
    reference = Tokenizer.from_str(json.dumps(file))
    contents = ["<s>", "</s>", *sorted({draw.choice(["ab", word(draw), f"<{word(draw)}>"]) for _ in range(draw.choice([0, 3]))})]
    reference.add_tokens([AddedToken(content, normalized=file["normalizer"] is None and draw.random() < 0.3, special=content in tokens[:3],
                                     **{flag: draw.random() < 0.2 for flag in ("single_word", "lstrip", "rstrip")}) for content in contents])
    return reference, contents + [MARK, "<0x41>", f"{MARK}{MARK}"]


def ids_of(reference, line):
    """None if `tokenizers` panics, as it does with some added tokens next to marks."""
    try:
        return reference.encode(line, add_special_tokens=False).ids
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("make", [random_tokenizer, random_marked_tokenizer])
def test_ids_and_texts_are_those_of_hugging_face(tmp_path, make, seed):
    draw = random.Random(seed)
    reference, tokens = make(draw)
    path = tmp_path / "tokenizer.json"
    path.write_text(reference.to_str())
    lines = [text(draw, tokens) for _ in range(300)]
    expected = [ids_of(reference, line) for line in lines]
    ours = tokenize(path, lines)
    assert len(ours) == len(lines)
    for line, ids, wanted in zip(lines, ours, expected):
        assert wanted is None or ids == wanted, line
    expected = [ids for ids in expected if ids is not None]
    assert len(expected) > len(lines) / 2
    assert tokenize(path, map(json.dumps, expected), "--decode") == [reference.decode(ids, skip_special_tokens=False) for ids in expected]
