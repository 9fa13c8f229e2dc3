"""Tests `dtopp tokenize` against Hugging Face `tokenizers`: on the shipped tokenizer, on small ones, GPT-2 style or with the
pre-tokenizers of other families, and on random tokenizers and texts. A failure on those names its seed, which determines the case;
`make nightly` tries 2,000."""

import json
import os
import random
import subprocess

import make_tokenizer_golden as golden
import pytest
import tiny_run
from corpus import documents
from needs import DATA, needs_program
from tiny_run import BINARY
from tokenize_lines import SHIPPED, small_file, tokenize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PUBLISHED = golden.published_pre_tokenizers()
LONG = 1 << (20 if tiny_run.FULL else 18)  # bytes of a word without a break

pytestmark = needs_program


def as_lines(texts):
    """A line cannot contain a newline. A carriage return is white space too."""
    return [text.replace("\n", "\r") for text in texts]


def assert_same_ids(path, reference, lines):
    ours = tokenize(path, lines)
    assert len(ours) == len(lines)
    for line, ids in zip(lines, ours):
        assert ids == reference.encode(line, add_special_tokens=False).ids, repr(line[:200])


def hard_lines(seed, count):
    return as_lines(golden.HARD_CASES + list(golden.random_texts(random.Random(seed), count)))


def test_hard_cases_and_random_unicode():
    assert_same_ids(SHIPPED, golden.shipped_tokenizer(), hard_lines(2, 3000))


def test_every_code_point_beside_letters_digits_marks_and_spaces():
    code_points = [chr(c) for c in range(0x110000) if c != 10 and not 0xD800 <= c < 0xE000]
    if not tiny_run.FULL:  # from plane 2 on, planes behave alike
        code_points = [c for c in code_points if c < "\U00020000" or "\U000e0000" <= c < "\U000e0200" or ord(c) % 61 == 0]
    lines = []
    for i in range(0, len(code_points), 32):
        lines.append("".join(f"a{c}b1{c}2!{c} {c}\u0323{c}\u0301" for c in code_points[i : i + 32]))
    assert_same_ids(SHIPPED, golden.shipped_tokenizer(), lines)


def long_words():
    letters = random.Random(5)
    return [text * (LONG // len(text.encode())) for text in ("a", "ab", "\u0301\u0323", "é", " ", "日本")] + \
        ["".join(letters.choices(alphabet, k=1 << 18)) for alphabet in ("etaoinshr", "ab", "aeé日", "qzxjv")]


@pytest.mark.parametrize("word", long_words(), ids=lambda word: word[:4])
def test_a_long_word_without_a_break(word):
    assert_same_ids(SHIPPED, golden.shipped_tokenizer(), [word])


@pytest.mark.parametrize("text", ["a", *tiny_run.in_full("etaoinshrdlu"), "qzxjv"])
def test_the_memory_of_a_long_word(tmp_path, text):
    peaks = []
    for megabytes in (1, 17):
        (tmp_path / "word.txt").write_text(text * ((megabytes << 20) // len(text)))
        process = subprocess.Popen([BINARY, "prepare", "text", tmp_path / "word.txt", "--tokenizer", SHIPPED, "--output",
                                    tmp_path / str(megabytes)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        peaks.append(usage.ru_maxrss * 1024)
    # 12 to 17 bytes per byte were measured.
    assert peaks[1] - peaks[0] < 24 * (16 << 20), (peaks[1] - peaks[0]) / (16 << 20)


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("use_regex", [True, False])
@pytest.mark.parametrize("nfc", [True, False])
@pytest.mark.parametrize("prefix_space", [True, False])
def test_gpt2_style(tmp_path, prefix_space, nfc, use_regex, ignore_merges):
    reference = golden.small_tokenizer(prefix_space, nfc, use_regex, ignore_merges)
    path = tmp_path / "tokenizer.json"
    path.write_text(reference.to_str())
    assert_same_ids(path, reference, hard_lines(3, 1000))


def save(tokenizer, folder):
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pre_tokenizers(tmp_path, name):
    for prefix_space, nfc, ignore_merges in [(False, False, True), (True, True, False)]:  # a prefix shows where pieces begin
        reference = golden.small_tokenizer(prefix_space, nfc, False, ignore_merges, PUBLISHED[name])
        path = save(reference, tmp_path)
        assert_same_ids(path, reference, hard_lines(7, 3000 if tiny_run.FULL else 1000))
        ids = [reference.encode(line).ids for line in hard_lines(8, 100)]
        assert tokenize(path, map(json.dumps, ids), "--decode") == [reference.decode(i, skip_special_tokens=False) for i in ids]


@pytest.mark.parametrize("name", PUBLISHED if tiny_run.FULL else ["llama-3", "gpt-oss", "deepseek-v3"])
def test_published_pre_tokenizers_on_every_code_point(tmp_path, name):
    code_points = [chr(c) for c in range(0x110000) if c != 10 and not 0xD800 <= c < 0xE000]
    if not tiny_run.FULL:
        code_points = [c for c in code_points if c < "\u0600" or ord(c) % 17 == 0]
    lines = []
    for i in range(0, len(code_points), 32):
        lines.append("".join(f"a{c}b1{c}2!{c} {c}\u0323{c}\u0301'{c}A{c}z{c}{c}" for c in code_points[i : i + 32]))
    reference = golden.small_tokenizer(True, False, False, False, PUBLISHED[name])
    assert_same_ids(save(reference, tmp_path), reference, lines)


@pytest.mark.parametrize("text", ["a", "A", "é", " ", "日", "1", "!", "\r", "a1 "])
@pytest.mark.parametrize("name", PUBLISHED if tiny_run.FULL else ["gpt-oss", "deepseek-v3"])
def test_published_pre_tokenizers_on_a_long_word_without_a_break(tmp_path, name, text):
    if (name, text) == ("command-a", "1"):
        pytest.skip("its pattern looks ahead over all digits at every third digit")
    reference = golden.small_tokenizer(False, False, False, False, PUBLISHED[name])
    assert_same_ids(save(reference, tmp_path), reference, [text * (LONG // len(text.encode()))])


def test_a_post_processor_adds_nothing(tmp_path):
    """The ids are those of add_special_tokens=False: without Llama's <|begin_of_text|>."""
    reference = golden.small_tokenizer(False, False, False, True, PUBLISHED["llama-3"])
    reference.post_processor = golden.processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    assert reference.encode("a").ids[0] == 0
    assert_same_ids(save(reference, tmp_path), reference, hard_lines(9, 100))


def test_old_files_with_merges_as_strings_and_empty_affixes(tmp_path):
    reference = golden.small_tokenizer(False, False, True)
    file = json.loads(reference.to_str())
    model = file["model"]
    model["merges"] = ["#version: 0.2"] + [" ".join(pair) for pair in model["merges"]]
    model.update(unk_token="", continuing_subword_prefix="", end_of_word_suffix="")
    del model["type"], model["ignore_merges"], model["byte_fallback"]
    del file["pre_tokenizer"]["use_regex"]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    assert_same_ids(path, reference, hard_lines(4, 200))


@pytest.mark.parametrize("unk_token, fuse_unk", [(None, False), ("<|endoftext|>", False), ("<|endoftext|>", True)])
def test_bytes_that_the_vocabulary_lacks(tmp_path, unk_token, fuse_unk):
    file = small_file()
    model = file["model"]
    vocab = model["vocab"]
    lost = {token for token in vocab if "a" in token or "Ã" in token}
    model["vocab"] = {token: id for token, id in vocab.items() if token not in lost}
    model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & lost]
    model.update(unk_token=unk_token, fuse_unk=fuse_unk)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    reference = golden.Tokenizer.from_file(str(path))
    assert_same_ids(path, reference, hard_lines(5, 200) + ["aaabaab", "Ãaéa"])


def test_decodes_any_ids_as_hugging_face_does(tmp_path):
    rng = random.Random(6)
    small = golden.small_tokenizer(True, True, True)
    path = tmp_path / "tokenizer.json"
    path.write_text(small.to_str())
    for file, reference in [(SHIPPED, golden.shipped_tokenizer()), (path, small)]:
        size = reference.get_vocab_size()
        arrays = [[rng.randrange(size) for _ in range(rng.randrange(30))] for _ in range(2000)]
        arrays += [[rng.randrange(2, 258) for _ in range(12)] for _ in range(2000)]  # single bytes
        ours = tokenize(file, [json.dumps(ids) for ids in arrays], "--decode")
        assert ours == [reference.decode(ids, skip_special_tokens=False) for ids in arrays]


def test_lines_end_at_newline_alone():
    reference = golden.shipped_tokenizer()
    text = "a\r\nb\0c\x0bd\x85\u2028e\n\nlast without an end"
    expected = [reference.encode(line).ids for line in text.split("\n")]
    assert tokenize(SHIPPED, text.encode()) == expected
    assert tokenize(SHIPPED, b"") == []


def text_files():
    return sorted((DATA / "data/text").glob("*.jsonl.zst" if tiny_run.FULL else "validation.jsonl.zst"))


@pytest.mark.skipif(not text_files(), reason=f"{DATA} holds no data/text: set DTOPP_DATA to a folder that does")
def test_real_text():
    reference = golden.shipped_tokenizer()
    for path in text_files():
        texts = documents(path)
        assert_same_ids(SHIPPED, reference, as_lines(texts))
        assert_same_ids(SHIPPED, reference, [line for text in texts for line in text.split("\n")])


@pytest.mark.skipif(not text_files(), reason=f"DTOPP_DATA={DATA} holds no data/text")
@pytest.mark.parametrize("name", PUBLISHED if tiny_run.FULL else ["llama-3", "gpt-oss", "deepseek-v3"])
def test_published_pre_tokenizers_on_real_text(tmp_path, name):
    reference = golden.with_pre_tokenizer(golden.shipped_tokenizer(), PUBLISHED[name])
    path = save(reference, tmp_path)
    for texts in map(documents, text_files()):
        assert_same_ids(path, reference, as_lines(texts if tiny_run.FULL else texts[:300]))


CASES = 2000 if tiny_run.FULL else 12
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
        return draw.choice(list(PUBLISHED.values())), None
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
