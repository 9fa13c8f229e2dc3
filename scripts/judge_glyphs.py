"""Measures recognised digits. Usage: judge_glyphs.py TRAIN.tar HELD_OUT.tar SAMPLES.npz

A nearest-neighbour probe returns the class of the nearest training picture (draw_glyphs.py), with pictures
reduced to their contrast with the ground. The result is the share that it recognises. The shares for held-out
pictures and for noise put the samples' share into context.
"""

import io
import sys
import tarfile
import zipfile

import numpy
from draw_glyphs import GLYPHS
from PIL import Image

KNOWN, HELD_OUT = 5000, 1000  # pictures read from the tars, counted from the first


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
    """[N, H W]: the distance of each pixel's colour from the border's median, scaled to unit norm."""
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
    """Yields (name, share, count) for the samples, for held-out pictures and for noise."""
    probe = Probe(*read_tar(train, KNOWN))
    made = numpy.load(samples)
    noise = numpy.random.default_rng(1).integers(0, 256, made["arr_0"].shape, dtype=numpy.uint8)
    rows = {"samples": (made["arr_0"], made["arr_1"]), "held-out pictures": read_tar(held_out, HELD_OUT),
            "noise": (noise, made["arr_1"])}
    return [(name, probe.share_right(*row), len(row[1])) for name, row in rows.items()]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.splitlines()[0])
    try:
        for name, share, count in judge(*sys.argv[1:]):
            print(f"{name:<18} {share:.1%} of {count}")
    except (OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        sys.exit(f"judge_glyphs.py: {error}")


if __name__ == "__main__":
    main()
