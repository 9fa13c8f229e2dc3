#!/usr/bin/env python3
"""Writes the table of dtopp/data/images/picture.cpp: the printable ASCII of the public-domain X11 font misc-fixed 6x10.

Usage: .venv/bin/python scripts/make_glyphs.py FONT, with Pillow. FONT is usr/share/fonts/X11/misc/6x10.pcf.gz of Debian's
package xfonts-base.
"""

import gzip
import pathlib
import re
import sys

from PIL import PcfFontFile

font = PcfFontFile.PcfFontFile(gzip.open(sys.argv[1]))
glyphs = []
for code in range(32, 127):
    *_, image = font.glyph[code]
    assert image.size == (6, 10)
    pixels = "".join("01"[image.getpixel((x, y)) != 0] for y in range(10) for x in range(6))
    glyphs.append(f"0x{int(pixels, 2):015x},")
lines = ["    " + " ".join(glyphs[i : i + 5]) for i in range(0, len(glyphs), 5)]
root = pathlib.Path(__file__).resolve().parent.parent
picture = root / "dtopp/data/images/picture.cpp"
table = "constexpr uint64_t kGlyphs[kGlyphCount] = {\n" + "\n".join(lines) + "\n};\n"
picture.write_text(re.sub(r"(?<=// clang-format off\n).*(?=// clang-format on)", lambda _: table, picture.read_text(),
                          flags=re.S))
