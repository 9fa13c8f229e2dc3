#!/usr/bin/env python3
"""Writes dtopp/data/text/unicode_table.cpp: the classes that Hugging Face `tokenizers` assigns to every code
point.

`tokenizers` contains three Unicode versions (in its regular expressions for the GPT-2 pattern, in those for
added tokens, and in its NFC), and none equals utf8proc's. So the table comes from the package itself, one
code point at a time. Usage: .venv/bin/python scripts/make_unicode_table.py
"""

import pathlib

import tokenizers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, WORD, NFC_ACTIVE = 1, 2, 3, 4, 8
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def categories():
    """A code point that joins a letter is a letter, one that joins a digit is a number, and one that joins
    neither is a space."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    for code_point in CODE_POINTS:
        c = chr(code_point)
        if len(split("a" + c)) == 1:
            yield code_point, LETTER
        elif len(split("1" + c)) == 1:
            yield code_point, NUMBER
        elif len(split("!" + c)) > 1:
            yield code_point, SPACE


def words():
    r"""The class \w of single_word added tokens: such a token is not recognised directly before a word
    character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken("<x>", single_word=True, normalized=False)])
    token = tokenizer.token_to_id("<x>")
    for code_point in CODE_POINTS:
        if tokenizer.encode("<x>" + chr(code_point)).ids[0] != token:
            yield code_point, WORD


def nfc_active():
    """Code points that NFC may change, move or join to the preceding one; NFC leaves all others unchanged."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    low, high = "\u0334", "\u0301"  # combining classes 1 (the lowest) and 230
    for code_point in CODE_POINTS:
        c = chr(code_point)
        decomposed = nfd(c)
        is_mark = decomposed == c and (nfd("a" + c + low) != "a" + c + low or nfd("a" + high + c) != "a" + high + c)
        if nfc(c) != c or is_mark:
            yield code_point, NFC_ACTIVE
        for part in decomposed[1:]:
            yield ord(part), NFC_ACTIVE


def main():
    classes = bytearray(0x110000)
    for source in (categories, words, nfc_active):
        for code_point, bits in source():
            classes[code_point] |= bits
    runs = [(c, classes[c]) for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    items = [f"0x{start << 8 | bits:x}," for start, bits in runs]
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > 110:
            lines.append(line)
            line = "   "
        line += " " + item
    lines.append(line)
    path = pathlib.Path(__file__).parent.parent / "dtopp/data/text/unicode_table.cpp"
    path.write_text(
        "// Made by scripts/make_unicode_table.py from Hugging Face tokenizers " + tokenizers.__version__ + "; do not edit.\n"
        '#include <iterator>\n\n#include "dtopp/data/text/unicode.h"\n\nnamespace dtopp {\n\n'
        "// Each run: its first code point << 8 | its class bits; it ends where the next one begins.\n"
        "// clang-format off\n"
        "const uint32_t kUnicodeTable[] = {\n" + "\n".join(lines) + "\n};\n// clang-format on\nconst size_t kUnicodeTableSize = std::size(kUnicodeTable);\n\n}  // namespace dtopp\n"
    )
    print(f"{len(runs)} runs, {len(lines)} lines")


if __name__ == "__main__":
    main()
