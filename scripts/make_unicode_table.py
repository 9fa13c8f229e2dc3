#!/usr/bin/env python3
"""Writes dtopp/data/text/unicode_table.cpp: the classes that Hugging Face `tokenizers` assigns to every code
point.

`tokenizers` contains three Unicode versions (in its regular expressions for the GPT-2 pattern, in those for
added tokens, and in its NFC), and none equals utf8proc's or PCRE2's. So the table comes from the package
itself, one code point at a time. Code points that PCRE2 10.40 (Unicode 14) lacks get a stand-in that it has.
Needs Python 3.11, which has Unicode 14. Usage: .venv/bin/python scripts/make_unicode_table.py
"""

import itertools
import pathlib
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, WORD, NFC_ACTIVE, NEW = 1, 2, 3, 4, 8, 16
GENERAL_CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cf".split()
NAMED_LETTERS = "[\U00010400-\U0001044f\U000104b0-\U000104fb\U00010c80-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]"
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
    r"""The class \w of single_word added tokens: such a token is not recognized directly before a word
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


def members(pattern):
    """The code points that a pattern of one character matches."""
    split = pre_tokenizers.Split(Regex(f"{pattern}+"), "removed", invert=True).pre_tokenize_str
    text = "".join(map(chr, CODE_POINTS))
    return {ord(c) for i in range(0, len(text), 4096) for piece, _ in split(text[i : i + 4096]) for c in piece}


def stand_ins():
    """Yields (first, last, stand-in) for the code points that are newer than Unicode 14. A stand-in has the same
    general category, length in UTF-8, and membership in these properties; of such code points it is the nearest.
    Patterns of DeepSeek-Coder-V2 name letters, so no stand-in is one of those."""
    assert unicodedata.unidata_version == "14.0.0", "needs Python 3.11"
    properties = [members(pattern) for pattern in (r"\p{Alphabetic}", r"\p{Han}", r"\p{Latin}", NAMED_LETTERS)]
    kind = {c: (category, len(chr(c).encode()), *(c in p for p in properties))
            for category in GENERAL_CATEGORIES for c in members(rf"\p{{{category}}}")}
    old, new = {}, []
    for c in sorted(kind):
        if unicodedata.category(chr(c)) == "Cn":
            new.append(c)
        elif unicodedata.category(chr(c)) == kind[c][0]:
            old.setdefault(kind[c], []).append(c)
        else:
            print(f"U+{c:04X} was {unicodedata.category(chr(c))} in Unicode 14 and is {kind[c][0]}")
    runs = []
    for c in new:
        if runs and c == runs[-1][1] + 1 and kind[c] == kind[runs[-1][0]]:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    for first, last in runs:
        yield first, last, min(old[kind[first]], key=lambda c: abs(c - first))


def rows(items):
    """Lines of at most 110 characters."""
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > 110:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join([*lines, line])


def main():
    classes = bytearray(0x110000)
    for source in (categories, words, nfc_active):
        for code_point, bits in source():
            classes[code_point] |= bits
    new = list(stand_ins())
    for first, last, _ in new:
        for code_point in range(first, last + 1):
            classes[code_point] |= NEW
    runs = [(bits, len(list(run))) for bits, run in itertools.groupby(classes)]
    path = pathlib.Path(__file__).parent.parent / "dtopp/data/text/unicode_table.cpp"
    path.write_text(
        f"// Made by scripts/make_unicode_table.py from Hugging Face tokenizers {tokenizers.__version__}; do not edit.\n"
        '#include <iterator>\n\n#include "dtopp/data/text/unicode.h"\n\nnamespace dtopp::data {\n\n'
        "// Each run: its number of code points << 5 | their class bits.\n"
        "// clang-format off\n"
        "const uint32_t kUnicodeTable[] = {\n" + rows(f"{count << 5 | bits}," for bits, count in runs) + "\n};\n"
        "const size_t kUnicodeTableSize = std::size(kUnicodeTable);\n\n"
        "const NewCodePoints kNewCodePoints[] = {\n" + rows(f"{{0x{a:x}, {b - a + 1}, 0x{c:x}}}," for a, b, c in new) + "\n};\n"
        "// clang-format on\nconst size_t kNewCodePointsSize = std::size(kNewCodePoints);\n\n}  // namespace dtopp::data\n"
    )
    print(f"{len(runs)} runs, {len(new)} runs of new code points")


if __name__ == "__main__":
    main()
