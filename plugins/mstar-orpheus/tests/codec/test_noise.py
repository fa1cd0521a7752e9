import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mstar_orpheus.codec.noise import philox4x32, position_noise

# Known answers of philox4x32-10: Random123's `kat_vectors` (Salmon et al., 2011).
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def noise_at(seed, start, length, block=0, blocks=2):
    starts, lengths = [[0]] * blocks, [1] * blocks
    starts[block], lengths[block] = [start], length
    return position_noise([seed], starts, lengths)[block][0]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter, key, expected):
    words = philox4x32(torch.tensor(counter)[:, None], torch.tensor(key)[:, None])
    assert words[:, 0].tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**34), st.integers(1, 40), st.integers(0, 60))
def test_noise_at_a_position_is_the_same_whatever_range_asks(seed, start, length, offset):
    longer = noise_at(seed, start, offset + length)
    assert torch.equal(noise_at(seed, start + offset, length), longer[offset:])


def test_noise_of_a_batch_row_is_its_noise_alone():
    seeds, starts, lengths = [3, 2**63 + 5, 3], [[0, 7, 2], [64, 1, 5]], [33, 130]
    together = position_noise(seeds, starts, lengths)
    for row, seed in enumerate(seeds):
        alone = position_noise([seed], [[block[row]] for block in starts], lengths)
        assert all(torch.equal(one[0], many[row]) for one, many in zip(alone, together, strict=True))


def test_noise_of_another_seed_block_or_position_differs():
    here = noise_at(1, 100, 50)
    assert not torch.equal(here, noise_at(2, 100, 50))
    assert not torch.equal(here, noise_at(1 + 2**32, 100, 50))
    assert not torch.equal(here, noise_at(1, 101, 50))
    assert not torch.equal(here, noise_at(1, 100 + 2**34, 50))
    assert not torch.equal(here, noise_at(1, 100, 50, block=1))


def test_noise_is_standard_normal_and_uncorrelated():
    values = noise_at(11, 0, 200_000).double()
    assert values.mean().abs() < 0.01
    assert (values.std() - 1).abs() < 0.01
    assert (values.pow(4).mean() - 3).abs() < 0.1
    for lag in (1, 2, 3, 4, 8):
        assert (values[:-lag] * values[lag:]).mean().abs() < 0.01
