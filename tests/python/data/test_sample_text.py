"""The novels in assets/text are the ones that assets/CREDITS.md lists, and no validation book is trained on."""

import json
import re

import pytest
import tiny_run
from corpus import decompress

ASSETS = tiny_run.ROOT / "assets"


def credited(column):
    """The part, train or validation, by book of the table, in one of its two last columns."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w*) ?\| (\w*) ?\|$", (ASSETS / "CREDITS.md").read_text(), re.M)
    assert rows
    return {row[0]: row[column] for row in rows if row[column]}


@pytest.mark.parametrize("name, column", [("novels", 1), ("lab", 2)])
def test_every_book_is_credited_and_in_one_part(name, column):
    parts = {}
    for part in ("train", "validation"):
        for line in decompress(ASSETS / f"text/{name}-{part}.jsonl.zst").decode().split("\n"):
            if line:
                parts.setdefault(json.loads(line)["id"].partition("#")[0], set()).add(part)
    assert parts == {book: {part} for book, part in credited(column).items()}


def test_books_are_in_the_public_domain():
    lives = re.findall(r"^\| `\w+_(\d{4})` \| .+? \(\d{4}–(\d{4})\)", (ASSETS / "CREDITS.md").read_text(), re.M)
    assert len(lives) == len(credited(2)) == 90
    assert all(int(year) < 1930 and int(death) < 1956 for year, death in lives)
