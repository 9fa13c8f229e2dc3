"""Draws the ten digits for the image quick start. Usage: draw_glyphs.py TAR --count N [--seed S]

Each digit is a class. A picture has 32 x 32 pixels: a bright digit on a dark ground, in the font of Debian's
package fonts-dejavu-core. Each digit has a range of hues. The colours of digit and ground, and the digit's
size, position and slant are drawn from the seed. The tar holds DIGIT/NNNNN.png, the digits in turn.
"""

import argparse
import colorsys
import functools
import io
import os
import pathlib
import random
import sys
import tarfile

from PIL import Image, ImageDraw, ImageFont

FONT = pathlib.Path("/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf")
GLYPHS = "0123456789"
SIDE = 32
SCALE = 4  # supersampling factor
SIZES = 30, 34  # range of font sizes in pixels
SHIFT, DEGREES, HUE = 1.5, 6.0, 0.04  # largest deviations in both directions


@functools.cache
def font_of(path, size):
    return ImageFont.truetype(str(path), size)


def colour(hue, saturation, brightness):
    return tuple(round(255 * value) for value in colorsys.hsv_to_rgb(hue % 1, saturation, brightness))


def draw(glyph, numbers, font=FONT):
    """Draws a picture with random numbers from `numbers`, a random.Random."""
    ground = colour(numbers.random(), 0.5, numbers.uniform(0.05, 0.2))
    bright = colour(GLYPHS.index(glyph) / len(GLYPHS) + numbers.uniform(-HUE, HUE), 0.6, numbers.uniform(0.8, 1))
    size = round(SCALE * numbers.uniform(*SIZES))
    middle = [SCALE * (SIDE / 2 + numbers.uniform(-SHIFT, SHIFT)) for _ in range(2)]
    mask = Image.new("L", (SCALE * SIDE, SCALE * SIDE))
    ImageDraw.Draw(mask).text(middle, glyph, fill=255, font=font_of(font, size), anchor="mm")
    mask = mask.rotate(numbers.uniform(-DEGREES, DEGREES), Image.Resampling.BICUBIC, center=tuple(middle))
    picture = Image.new("RGB", (SIDE, SIDE), ground)
    picture.paste(bright, mask=mask.resize((SIDE, SIDE), Image.Resampling.BOX))
    return picture


def draw_all(path, count, seed, font=FONT):
    """Writes the tar. The file gets its name when it is complete."""
    numbers, part = random.Random(seed), path.with_name(path.name + ".part")
    with tarfile.open(part, "w") as tar:
        for i in range(count):
            content, glyph = io.BytesIO(), GLYPHS[i % len(GLYPHS)]
            draw(glyph, numbers, font).save(content, "PNG")
            member = tarfile.TarInfo(f"{glyph}/{i:05d}.png")
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
    os.replace(part, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tar", type=pathlib.Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--font", type=pathlib.Path, default=FONT)
    options = parser.parse_args()
    if not options.font.is_file():
        sys.exit(f"draw_glyphs.py: {options.font}: no such font; run apt-get install fonts-dejavu-core")
    draw_all(options.tar, options.count, options.seed, options.font)


if __name__ == "__main__":
    main()
