"""Computes the order of training samples independently of dtopp: Philox 4x32-10 (Salmon et al. 2011) keyed by
the seed, and a Feistel network with cycle walking that permutes the windows of each epoch."""

import numpy as np

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
ROUNDS = 6


def philox4x32(counter, key):
    """Runs ten rounds on four 32-bit words under a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & MASK32, first >> 32 ^ c3 ^ k1, first & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def stream_id(purpose):
    """The 64-bit FNV-1a hash of the purpose's name."""
    value = 0xCBF29CE484222325
    for byte in purpose.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK64
    return value


def bits(seed, purpose, index):
    stream = stream_id(purpose)
    return philox4x32((index & MASK32, index >> 32, stream & MASK32, stream >> 32), seed)


def permuted(position, epoch, size, seed, purpose="sample order"):
    """The index in file order of `position` of an epoch."""
    half = (max(size - 1, 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        for turn in range(ROUNDS):
            word = bits(seed, purpose, epoch << 30 | turn << 26 | right)[0]
            left, right = right, left ^ (word & mask)
        position = left << half | right
        if position < size:
            return position


def samples(tokens, sequence_length, seed, first, count):
    """Samples first, first + 1, … of the global order: int64 [count, sequence_length + 1]."""
    windows = (len(tokens) - 1) // sequence_length
    places = [permuted(i % windows, i // windows, windows, seed) for i in range(first, first + count)]
    return np.stack([tokens[p * sequence_length:(p + 1) * sequence_length + 1] for p in places]).astype(np.int64)
