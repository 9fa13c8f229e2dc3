"""Tests the reference sampler against published values and plain properties."""

import numpy as np
import reference_sampler


def test_philox_gives_the_published_values():
    """The known answers of the Random123 distribution (kat_vectors, philox4x32 10)."""
    ones = 0xFFFFFFFF
    pi_counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    pi_key = 0xA4093822 | 0x299F31D0 << 32
    assert reference_sampler.philox4x32((0, 0, 0, 0), 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert reference_sampler.philox4x32((ones,) * 4, ones | ones << 32) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6,
                                                                            0x6D5451FD)
    assert reference_sampler.philox4x32(pi_counter, pi_key) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_every_epoch_takes_each_window_once_in_another_order():
    for size in (1, 2, 3, 37, 64, 65):
        orders = [[reference_sampler.permuted(i, epoch, size, seed=5) for i in range(size)] for epoch in (0, 1)]
        for order in orders:
            assert sorted(order) == list(range(size))
        assert size < 37 or orders[0] != orders[1]


def test_windows_overlap_by_the_one_token_that_is_only_a_target():
    tokens = np.arange(101)
    windows = reference_sampler.samples(tokens, 10, seed=1, first=0, count=10)
    assert sorted(windows[:, 0]) == list(range(0, 100, 10))
    assert all((np.diff(window) == 1).all() and len(window) == 11 for window in windows)
