#!/usr/bin/env python3
"""Writes the synthetic mixture of configs/studies/powered: four domains whose lowest possible losses are known.

usage: make_mixture.py OUTPUT [--seed 20] [--windows 20000] [--validation 512] [--wide-context 3]

OUTPUT/train/DOMAIN.npy and OUTPUT/validation/DOMAIN.npy hold token ids (uint16). A window has 256 ids: the mark of its domain
(0 to 3), then its content. One more mark follows the last window, so a training window of 257 ids never spans two domains.
--windows are all training windows, shared out by the domains' weights; --validation are windows of each domain.

  copy    16 random ids, repeated
  narrow  each id drawn from softmax(U relu(W e(previous id))), 8 hidden units, 1.5 nats
  wide    the same of the 3 previous ids (--wide-context), 512 hidden units, 1.5 nats
  noise   random ids

The bytes are the same on every machine. Embeddings and weights are small whole numbers, so that products in float64 are exact in
any order; the exponential is a table of whole numbers; an id is drawn by a whole random number below the sum of its row.
OUTPUT/manifest.json lists sizes and SHA-256 sums."""

import argparse
import decimal
import functools
import hashlib
import json
import pathlib

import numpy as np

DOMAINS = {"copy": 0.40, "narrow": 0.20, "wide": 0.35, "noise": 0.05}  # weights in training
WINDOW = 256
FIRST_ID, LAST_ID = 4, 510  # of copy and noise; 511 stays free for the end of text
ALPHABET = 128
WIDE_FIRST, NARROW_FIRST = 4, 132  # first id of each alphabet
EMBEDDING = 16  # numbers per id and position
NATS = 1.5
STEPS_PER_NAT = 256  # entries of the exponential table per nat
SHIFT = 32  # binary digits of the factor behind the point


def exponential_table():
    """Whole numbers 2^30 exp(-i / 256), down to the first 0. decimal rounds correctly on every machine."""
    with decimal.localcontext() as context:
        context.prec = 40
        table = []
        while not table or table[-1] > 0:
            exact = 2**30 * (-decimal.Decimal(len(table)) / STEPS_PER_NAT).exp()
            table.append(int(exact.to_integral_value(decimal.ROUND_HALF_EVEN)))
    return np.array(table, dtype=np.int64)


class Draws:
    """Random whole numbers that depend on the seed and a name alone."""

    def __init__(self, seed, name):
        entropy = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "big")
        self.generator = np.random.PCG64(entropy)

    def words(self, *shape):
        return self.generator.random_raw(int(np.prod(shape))).reshape(shape)

    def below(self, bounds, *shape):
        return ((self.words(*shape) >> np.uint64(1)) % np.asarray(bounds, dtype=np.uint64)).astype(np.int64)

    def gaussians(self, *shape):
        """Set bits of a word minus 32: whole numbers with mean 0 and standard deviation 4, nearly normal."""
        words = self.words(*shape)
        bits = np.unpackbits(words.view(np.uint8).reshape(*shape, 8), axis=-1)
        return bits.sum(-1, dtype=np.int64).astype(np.float64) - 32


class Teacher:
    """A random network that gives the distribution of the next id from the previous `order` ids."""

    def __init__(self, seed, name, order, hidden):
        draws = Draws(seed, f"teacher {name}")
        self.order = order
        self.table = exponential_table()
        self.embeddings = draws.gaussians(order, ALPHABET, EMBEDDING)
        self.w = draws.gaussians(order * EMBEDDING, hidden)
        self.u = draws.gaussians(hidden, ALPHABET)
        self.means = np.zeros(ALPHABET, dtype=np.int64)
        self.means = self.logits(draws.below(ALPHABET, 4000, order)).sum(0) // 4000
        self.factor = 0
        self.calibrate(seed, name)

    def logits(self, contexts):
        """Whole-number logits for contexts [n, order]; the most recent id comes first."""
        inputs = np.concatenate([self.embeddings[i][contexts[:, i]] for i in range(self.order)], 1)
        exact = np.maximum(inputs @ self.w, 0) @ self.u
        return exact.astype(np.int64) - self.means

    def weights(self, contexts):
        """Whole-number weights [n, ALPHABET]; an id's probability is its weight over the row's sum."""
        logits = self.logits(contexts) * self.factor >> SHIFT
        below = logits.max(1, keepdims=True) - logits
        return self.table[np.minimum(below, len(self.table) - 1)]

    def generate(self, draws, windows, length):
        """Returns ids [windows, length] below ALPHABET and the mean entropy of the drawn ids' distributions, in nats."""
        ids = np.empty((windows, self.order + length), dtype=np.int64)
        ids[:, : self.order] = draws.below(ALPHABET, windows, self.order)
        entropy = 0.0
        for position in range(self.order, self.order + length):
            weights = self.weights(ids[:, position - self.order : position][:, ::-1])
            sums = weights.cumsum(1)
            drawn = draws.below(sums[:, -1], windows)
            ids[:, position] = (sums <= drawn[:, None]).sum(1)
            p = weights / sums[:, -1:]
            entropy -= float((p * np.log(np.where(p > 0, p, 1))).sum(1).mean())
        return ids[:, self.order :], entropy / length

    def calibrate(self, seed, name):
        """Sets the factor of the logits by doubling and bisection, so that generated ids have an entropy of NATS."""

        def is_too_flat(factor):
            self.factor = factor
            return self.generate(Draws(seed, f"calibration {name}"), 64, WINDOW - 1)[1] > NATS

        high = 1 << 16
        while is_too_flat(high):
            high *= 2
        low = high // 2
        while high - low > low >> 9:
            middle = (low + high) // 2
            low, high = (middle, high) if is_too_flat(middle) else (low, middle)
        self.factor = high


@functools.cache
def teacher_of(domain, seed, wide_context):
    order, hidden = (1, 8) if domain == "narrow" else (wide_context, 512)
    return Teacher(seed, domain, order, hidden)


def make_domain(domain, seed, part, windows, wide_context):
    """Returns the ids of one file and the entropy of its distributions (None for domains without a teacher)."""
    draws = Draws(seed, f"{part} {domain}")
    length, entropy = WINDOW - 1, None
    span = LAST_ID - FIRST_ID + 1
    if domain == "copy":
        content = np.tile(FIRST_ID + draws.below(span, windows, 16), (1, 16))[:, :length]
    elif domain == "noise":
        content = FIRST_ID + draws.below(span, windows, length)
    else:
        content, entropy = teacher_of(domain, seed, wide_context).generate(draws, windows, length)
        content += NARROW_FIRST if domain == "narrow" else WIDE_FIRST
    mark = list(DOMAINS).index(domain)
    ids = np.concatenate([np.full((windows, 1), mark), content], 1).reshape(-1)
    return np.append(ids, mark).astype(np.uint16), entropy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--windows", type=int, default=20000)
    parser.add_argument("--validation", type=int, default=512)
    parser.add_argument("--wide-context", type=int, default=3, choices=(2, 3))
    arguments = parser.parse_args()
    if min(arguments.windows, arguments.validation) < 20 or arguments.seed < 0:
        parser.error("--windows and --validation must be at least 20, and --seed not negative")
    manifest = {"seed": arguments.seed, "windows": arguments.windows, "validation": arguments.validation,
                "wide_context": arguments.wide_context, "entropy": {}, "files": {}}
    for part in ("train", "validation"):
        (arguments.output / part).mkdir(parents=True, exist_ok=True)
        for domain, weight in DOMAINS.items():
            windows = round(weight * arguments.windows) if part == "train" else arguments.validation
            ids, entropy = make_domain(domain, arguments.seed, part, windows, arguments.wide_context)
            path = arguments.output / part / f"{domain}.npy"
            np.save(path, ids)
            name = f"{part}/{domain}.npy"
            manifest["files"][name] = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            if entropy is not None:
                manifest["entropy"][name] = round(entropy, 6)
            print(f"{name}: {windows} windows" + (f", {entropy:.3f} nats" if entropy is not None else ""))
    (arguments.output / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
