"""Draws the ten digits for the image quick start, and measures how many digits of a model are recognized.

usage: glyphs.py draw TAR --count N [--seed S]
       glyphs.py judge TRAIN.tar HELD_OUT.tar SAMPLES.npz

Each digit is a class. A picture has 32 x 32 pixels: a bright digit on a dark ground, in the font of Debian's
package fonts-dejavu-core. Each digit has a range of hues. The colors of digit and ground, and the digit's
size, position and slant are drawn from the seed. The tar holds DIGIT/NNNNN.png, the digits in turn.

A nearest-neighbor probe returns the class of the nearest training picture, with pictures reduced to their
contrast with the ground. The result is the share that it recognizes. The shares for held-out pictures and for
noise put the samples' share into context.
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
import zipfile

import numpy
from PIL import Image, ImageDraw, ImageFont

FONT = pathlib.Path("/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf")
GLYPHS = "0123456789"
SIDE = 32
SCALE = 4  # supersampling factor
SIZES = 30, 34  # range of font sizes in pixels
SHIFT, DEGREES, HUE = 1.5, 6.0, 0.04  # largest deviations in both directions
KNOWN, HELD_OUT = 5000, 1000  # pictures that `judge` reads from the tars, counted from the first


@functools.cache
def font_of(path, size):
    return ImageFont.truetype(str(path), size)


def color(hue, saturation, brightness):
    return tuple(round(255 * value) for value in colorsys.hsv_to_rgb(hue % 1, saturation, brightness))


def draw(glyph, numbers, font=FONT):
    """Draws a picture with random numbers from `numbers`, a random.Random."""
    ground = color(numbers.random(), 0.5, numbers.uniform(0.05, 0.2))
    bright = color(GLYPHS.index(glyph) / len(GLYPHS) + numbers.uniform(-HUE, HUE), 0.6, numbers.uniform(0.8, 1))
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


def read_tar(path, limit):
    """Returns the pictures, u8 [N, H, W, 3], and the classes, i64 [N]."""
    pictures, labels = [], []
    with tarfile.open(path) as tar:
        for member in tar:
            pictures.append(numpy.asarray(Image.open(io.BytesIO(tar.extractfile(member).read()))))
            labels.append(GLYPHS.index(member.name.split("/")[0]))
            if len(labels) == limit:
                break
    return numpy.stack(pictures), numpy.array(labels)


def contrast(pictures):
    """[N, H W]: the distance of each pixel's color from the border's median, scaled to unit norm."""
    pictures = pictures.astype(numpy.float32)
    border = numpy.concatenate([pictures[:, 0], pictures[:, -1], pictures[:, :, 0], pictures[:, :, -1]], axis=1)
    distance = numpy.linalg.norm(pictures - numpy.median(border, axis=1)[:, None, None], axis=3)
    flat = distance.reshape(len(pictures), -1)
    return flat / numpy.maximum(numpy.linalg.norm(flat, axis=1, keepdims=True), 1e-6)


class Probe:
    def __init__(self, pictures, labels):
        self.known, self.labels = contrast(pictures), labels

    def share_right(self, pictures, labels):
        nearest = (contrast(pictures) @ self.known.T).argmax(axis=1)
        return (self.labels[nearest] == labels).mean()


def judge(train, held_out, samples):
    """Returns (name, share, count) for the samples, for held-out pictures and for noise."""
    probe = Probe(*read_tar(train, KNOWN))
    made = numpy.load(samples)
    noise = numpy.random.default_rng(1).integers(0, 256, made["arr_0"].shape, dtype=numpy.uint8)
    rows = {"samples": (made["arr_0"], made["arr_1"]), "held-out pictures": read_tar(held_out, HELD_OUT),
            "noise": (noise, made["arr_1"])}
    return [(name, probe.share_right(*row), len(row[1])) for name, row in rows.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("tar", type=pathlib.Path)
    drawing.add_argument("--count", type=int, required=True)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--font", type=pathlib.Path, default=FONT)
    judging = commands.add_parser("judge")
    for name in ("train", "held_out", "samples"):
        judging.add_argument(name)
    options = parser.parse_args()
    if options.command == "draw":
        if not options.font.is_file():
            sys.exit(f"glyphs.py: {options.font}: no such font; run apt-get install fonts-dejavu-core")
        draw_all(options.tar, options.count, options.seed, options.font)
        return
    try:
        for name, share, count in judge(options.train, options.held_out, options.samples):
            print(f"{name:<18} {share:.1%} of {count}")
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.exit(f"glyphs.py: {error}")


if __name__ == "__main__":
    main()
