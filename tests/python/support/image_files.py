"""Pictures of every kind for the tests of `dtopp prepare images`, and an independent reader of its output."""

import io
import json
import tarfile

import numpy as np
import start
from PIL import Image, ImageOps
from refusal import assert_refused
from safetensors.numpy import load_file


def photograph(seed, width, height):
    """Smooth colors with edges and noise, like a photograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(width, height)
    planes = [np.sin(6 * (x * rng.normal() + y * rng.normal()) + rng.uniform(0, 6)) for _ in range(3)]
    picture = 127 + 90 * np.stack(planes, -1) + rng.normal(0, 8, (height, width, 3))
    picture[(x - 0.4) ** 2 + (y - 0.3) ** 2 < 0.03] = rng.integers(0, 256, 3)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def encoded(picture, kind, **options):
    """Returns the bytes of a picture file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def jpeg(seed, size=32):
    """Returns the bytes of a small photograph."""
    return encoded(photograph(seed, size, size), "JPEG")


def resize(picture, width, height, resample):
    """Resizes rows, then columns, as Pillow does up to version 12. Version 13 resizes the columns of tall
    pictures first."""
    return picture.resize((width, picture.height), resample).resize((width, height), resample)


def center_crop(picture, size):
    """Computes ADM's center_crop_arr (guided_diffusion/image_datasets.py)."""
    while min(*picture.size) >= 2 * size:
        picture = resize(picture, *(x // 2 for x in picture.size), Image.BOX)
    scale = size / min(*picture.size)
    picture = resize(picture, *(round(x * scale) for x in picture.size), Image.BICUBIC)
    pixels = np.array(picture)
    top, left = (pixels.shape[0] - size) // 2, (pixels.shape[1] - size) // 2
    return pixels[top:top + size, left:left + size]


def expected(file, size=None, mode="RGB"):
    """Pillow's pixels of a picture file, [height, width, channels]."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert(mode)
    pixels = center_crop(picture, size) if size else np.array(picture)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def write_tar(path, members):
    """Writes members in the order of the dictionary. A TarInfo as value is a member without content."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            if content is not info:
                info.size = len(content)
            tar.addfile(info, None if content is info else io.BytesIO(content))
    return path


def prepare(binary, sources, output, *options, status=0, names=()):
    """Runs `dtopp prepare images`. Checks the exit status and, after a failure, that its error names each of `names`."""
    command = [binary, "prepare", "images", *sources, "--output", output, *map(str, options)]
    done = start.run(command, capture_output=True, text=True, timeout=300)
    if status:
        assert_refused(done, status, names, alone=False)
        assert done.stdout == ""
    else:
        assert done.returncode == 0, done.stderr
    return done


def about(folder):
    return json.loads((folder / "manifest.json").read_text())["about"]


def tensors(folder):
    """All tensors of a prepared folder: its files are joined in order and offsets continue from file to file."""
    files = [load_file(path) for path in sorted(folder.glob("images-*.safetensors"))]
    joined = {}
    for name in files[0]:
        parts = [file[name] for file in files]
        if name.endswith("offsets"):
            begins = np.cumsum([0] + [part[-1] for part in parts])
            parts = [part[:-1] + begin for part, begin in zip(parts, begins)] + [begins[-1:]]
        joined[name] = np.concatenate(parts)
    return joined


def pictures(folder):
    """The stored pictures, each of shape [height, width, channels]."""
    stored = tensors(folder)
    if "images" in stored:
        return list(stored["images"].transpose(0, 2, 3, 1))
    mode = "RGB" if about(folder)["shape"][0] == 3 else "L"
    ends = stored["offsets"]
    files = [stored["bytes"][begin:end].tobytes() for begin, end in zip(ends, ends[1:])]
    return [expected(file, mode=mode) for file in files]
