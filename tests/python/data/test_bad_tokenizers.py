"""`dtopp tokenize` refuses damaged and foreign tokenizers, and lines that are not valid, by name."""

import json

import pytest
from needs import needs_program
from refusal import assert_refused
from tokenize_lines import SHIPPED, marked_file, small_file, tokenize

pytestmark = needs_program


@pytest.mark.parametrize(
    "lines, options, place",
    [
        (b"good\nbad \xff\n", [], "line 2: byte 4"),
        (b"\xed\xa0\x80\n", [], "line 1: byte 0"),
        (b"[1]\n[1, x]\n", ["--decode"], "line 2"),
        (b"[1.5]\n", ["--decode"], "line 1"),
        (b"[-1]\n", ["--decode"], "line 1"),
        (b"[50277]\n", ["--decode"], "line 1"),
        (b"[18446744073709551615]\n", ["--decode"], "line 1"),
        (b"\n", ["--decode"], "line 1"),
        (b"[" * 100000 + b"\n", ["--decode"], "line 1"),
    ],
)
def test_bad_lines_are_named(lines, options, place):
    done = tokenize(SHIPPED, lines, *options, check=False)
    assert_refused(done, 3, place)


def damage(path, value):
    def apply(file):
        *parents, last = path
        for key in parents:
            file = file[key]
        file[last] = value

    return apply


@pytest.mark.parametrize(
    "change, named",
    [
        (damage(["model", "type"], "WordPiece"), "model.type"),
        (damage(["model", "vocab"], []), "model.vocab"),
        (damage(["model", "vocab", "zzz"], 1 << 40), "zzz"),
        (damage(["model", "vocab", "zzz"], -1), "zzz"),
        (damage(["model", "vocab", "zzz"], 5), "id 5"),
        (damage(["model", "merges"], [["a", "qqq"]]), "qqq"),
        (damage(["model", "merges"], ["a b c"]), "model.merges[0]"),
        (damage(["model", "merges"], [["a"]]), "model.merges[0]"),
        (damage(["model", "dropout"], 0.1), "model.dropout"),
        (damage(["model", "end_of_word_suffix"], "</w>"), "model.end_of_word_suffix"),
        (damage(["normalizer"], {"type": "Lowercase"}), "Lowercase"),
        (damage(["pre_tokenizer"], None), "pre_tokenizer"),
        (damage(["pre_tokenizer"], {"type": "Whitespace"}), "Whitespace"),
        (damage(["decoder"], {"type": "WordPiece"}), "WordPiece"),
        (damage(["added_tokens", 0, "content"], 7), "added_tokens[0].content"),
        (damage(["added_tokens", 0, "content"], "x" * 2000), "added_tokens[0].content"),
        (damage(["added_tokens", 0, "lstrip"], "yes"), "added_tokens[0].lstrip"),
        (damage(["version"], "9"), "version"),
    ],
)
def test_damaged_or_foreign_files_are_refused_by_name(tmp_path, change, named):
    file = small_file()
    change(file)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    assert_refused(tokenize(path, b"x\n", check=False), 3, [path, named])


METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def set_metaspace(**options):
    def apply(file):
        file["normalizer"], file["pre_tokenizer"] = None, METASPACE | options

    return apply


@pytest.mark.parametrize(
    "change, named",
    [
        (damage(["normalizer", "normalizers", 0, "prepend"], "x"), "normalizer.normalizers[0].prepend"),
        (damage(["normalizer", "normalizers", 1, "content"], "_"), "normalizer.normalizers[1].content"),
        (damage(["normalizer", "normalizers", 1, "pattern"], {"Regex": " "}), "normalizer.normalizers[1].pattern.String"),
        (lambda file: file["normalizer"]["normalizers"].append({"type": "NFC"}), "normalizer"),
        (lambda file: file["normalizer"]["normalizers"].pop(), "normalizer"),
        (damage(["pre_tokenizer"], METASPACE), "pre_tokenizer"),
        (set_metaspace(replacement="_"), "pre_tokenizer.replacement"),
        (set_metaspace(prepend_scheme="often"), "pre_tokenizer.prepend_scheme"),
        (set_metaspace(add_prefix_space=False), "pre_tokenizer.add_prefix_space"),
        (lambda file: (set_metaspace()(file), file.update(normalizer={"type": "NFC"})), "normalizer"),
        (damage(["decoder", "decoders", 3, "start"], 2), "decoder.decoders[3]"),
        (lambda file: file["decoder"]["decoders"].pop(1), "decoder"),
        (damage(["model", "byte_fallback"], False), "model.byte_fallback"),
        (lambda file: file["model"]["vocab"].pop("<0x41>"), "model.byte_fallback"),
        (damage(["added_tokens", 0, "normalized"], True), "added_tokens[0].normalized"),
    ],
)
def test_marks_for_spaces_that_are_not_supported_are_refused_by_name(tmp_path, change, named):
    file = marked_file()
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    assert tokenize(path, ["a a\u00e9"]) == [[259, 259, 196, 170]]
    change(file)
    path.write_text(json.dumps(file))
    assert_refused(tokenize(path, b"x\n", check=False), 3, [path, named])


def split(pattern, **options):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False, **options}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


@pytest.mark.parametrize(
    "parts, named",
    [
        ([split({"Regex": "(a"}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({"Regex": "[a"}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({"Regex": "a"}), split({"Regex": "*"}), BYTE_LEVEL], "pretokenizers[1].pattern"),
        ([split({"Regex": "\\p{Nonsense}"}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({"Regex": "[\r\n\\h]"}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({"Regex": 7}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({}), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split("a"), BYTE_LEVEL], "pretokenizers[0].pattern"),
        ([split({"Regex": "a"}, behavior="MergedWithNext"), BYTE_LEVEL], "MergedWithNext"),
        ([split({"Regex": "a"}, invert=None), BYTE_LEVEL], "pretokenizers[0].invert"),
        ([BYTE_LEVEL, split({"Regex": "a"})], "pretokenizers[1]"),
        ([{"type": "Digits"}, BYTE_LEVEL], "individual_digits"),
        ([{"type": "Punctuation", "behavior": "Isolated"}, BYTE_LEVEL], "Punctuation"),
        ([split({"Regex": "a"})], "ByteLevel"),
    ],
)
def test_damaged_or_foreign_pre_tokenizers_are_refused_by_name(tmp_path, parts, named):
    file = small_file()
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    assert_refused(tokenize(path, b"x\n", check=False), 3, [named, path])


@pytest.mark.parametrize("pattern", [r"(?:a+)+[bc]", r"\p{L}*[bc]", r"a*a*a*a*[bc]", r"a*[bc]|.", r"(?=(?:.*)*[bc])a"])
def test_a_pattern_that_backtracks_without_end_is_an_error(tmp_path, pattern):
    file = small_file()
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split({"Regex": pattern}), BYTE_LEVEL]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    assert_refused(tokenize(path, b"b\n" + b"a" * (1 << 20) + b"\n", check=False), 3, ["line 2", "pretokenizers[0].pattern", path])


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"model": ', b"\xff\xfe", b"[" * 1000000])
def test_what_is_not_a_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert_refused(tokenize(path, b"x\n", check=False), 3, path)
