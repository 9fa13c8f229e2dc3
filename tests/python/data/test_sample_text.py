"""The novels in assets/text are the ones that assets/CREDITS.md lists, no validation book is trained on, and the two parts are
the same kind of text."""

import collections
import json
import re
import statistics
import sys
import textwrap

import pytest
import tiny_run
from corpus import decompress

sys.path.insert(0, str(tiny_run.ROOT / "scripts"))
import make_sample_text  # noqa: E402

ASSETS = tiny_run.ROOT / "assets"
T_95 = 3.18  # Student's t for a 95 % interval and the three degrees of freedom of four books


def books(file):
    """{book: {part: text}} of a file in assets/text."""
    found = collections.defaultdict(dict)
    for line in decompress(ASSETS / f"text/{file}.jsonl.zst").decode().split("\n"):
        if line:
            book, _, part = json.loads(line)["id"].partition("#")
            found[book][int(part)] = json.loads(line)["text"]
    return found


def paragraphs(parts):
    return [paragraph for text in parts.values() for paragraph in text.split("\n\n")]


def sentence_share(paragraphs):
    return statistics.mean(bool(re.search(r"[.!?][\"')\]]*$", paragraph)) for paragraph in paragraphs)


def mean_words(paragraphs):
    return statistics.mean(len(paragraph.split()) for paragraph in paragraphs)


def credited(column):
    """The part, train or validation, by book of the table, in one of its two last columns."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w*) ?\| (\w*) ?\|$", (ASSETS / "CREDITS.md").read_text(), re.M)
    assert rows
    return {row[0]: row[column] for row in rows if row[column]}


@pytest.mark.parametrize("name, column", [("novels", 1), ("lab", 2)])
def test_every_book_is_credited_and_in_one_part(name, column):
    parts = collections.defaultdict(set)
    for part in ("train", "validation"):
        for book in books(f"{name}-{part}"):
            parts[book].add(part)
    assert parts == {book: {part} for book, part in credited(column).items()}


def test_books_are_in_the_public_domain():
    lives = re.findall(r"^\| `\w+_(\d{4})` \| .+? \(\d{4}–(\d{4})\)", (ASSETS / "CREDITS.md").read_text(), re.M)
    assert len(lives) == len(credited(2)) == 90
    assert all(int(year) < 1930 and int(death) < 1956 for year, death in lives)


@pytest.mark.parametrize("measure", [sentence_share, mean_words])
@pytest.mark.parametrize("name", ["novels", "lab"])
def test_train_and_held_out_paragraphs_are_alike(name, measure):
    """The training part lies in the 95 % interval of the held-out books' mean. The four held-out books never had broken
    lines, and the interval follows from how much they differ."""
    spread = statistics.stdev(measure(paragraphs(parts)) for parts in books("lab-validation").values())
    held_out = [measure(paragraphs(parts)) for parts in books(f"{name}-validation").values()]
    train = [paragraph for parts in books(f"{name}-train").values() for paragraph in paragraphs(parts)]
    tolerance = T_95 * spread / len(held_out) ** 0.5
    assert measure(train) == pytest.approx(statistics.mean(held_out), abs=tolerance)


@pytest.mark.parametrize("file", ["novels-train", "novels-validation", "lab-train", "lab-validation"])
def test_no_document_has_a_byte_order_mark(file):
    assert "\ufeff".encode() not in decompress(ASSETS / f"text/{file}.jsonl.zst")


def whole(*texts):
    return list(make_sample_text.whole_paragraphs(dict(enumerate(texts)), make_sample_text.word_counts(texts)).values())


def test_paragraphs_of_a_book_broken_into_lines_become_whole_again():
    """Most do exactly. If a paragraph's last line is full, or a full line ends a sentence, nothing tells which is which."""
    for book, parts in books("lab-validation").items():
        broken = ["\n\n".join(line for paragraph in text.split("\n\n") for line in textwrap.wrap(paragraph, 70))
                  for text in parts.values()]
        expected = collections.Counter(" ".join(paragraph.split()) for paragraph in paragraphs(parts))
        restored = collections.Counter(paragraphs(dict(enumerate(whole(*broken)))))
        assert (expected & restored).total() > 0.9 * expected.total(), book
        assert restored.total() == pytest.approx(expected.total(), rel=0.05), book


def test_clean_books_keep_every_byte():
    for parts in books("lab-validation").values():
        assert whole(*parts.values()) == list(parts.values())


PROSE = ("It was late in the year, and the wind that came over the hills was cold enough to keep the people of the valley at "
         "their fires, where they told each other what their fathers had seen.")


@pytest.mark.parametrize("lines", [
    ["CHAPTER II", "THE HILL"],
    ["Thou sweep'st us off as with a flood,", "We vanish hence like dreams;", "And none shall ever see"],
    ["DEAR TOM,", "Come soon.", "Your affectionate sister,", "LUCY."],
    ['"Are you there?"', '"Yes."'],
], ids=["headings", "verse", "letters", "dialogue"])
def test_short_lines_stay_apart(lines):
    broken = textwrap.wrap(PROSE, 70)
    assert whole("\n\n".join([*broken, *lines, *broken])) == ["\n\n".join([PROSE, *lines, PROSE])]


def test_a_paragraph_across_pages_and_parts_belongs_where_it_starts():
    page = "A long paragraph of a page, which the printer had to interrupt in the middle of its last sentence " * 3
    assert whole(f"{page}because\n\nthe page was full.\n\nIt went", "on elsewhere.\n\nThen it ended.") == [
        f"{page}because the page was full.\n\nIt went on elsewhere.", "Then it ended."]


def test_words_divided_at_a_line_end_become_one():
    words = make_sample_text.word_counts(["a congregation in a drawing-room, the congregation"])
    assert make_sample_text.joined("the con-", "gregation came", words) == "the congregation came"
    assert make_sample_text.joined("the drawing-", "room was full", words) == "the drawing-room was full"
    assert make_sample_text.joined("it was late,--", "very late", words) == "it was late,--very late"


def test_a_byte_order_mark_is_dropped():
    assert whole("\ufeff\n\nThe Title\n\nOnce there was a man.") == ["The Title\n\nOnce there was a man."]
