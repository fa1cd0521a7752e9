import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mstar_bagel.vision.latents import pack_latent, posterior_noise, unpack_latent

COUNTS = st.integers(1, 5)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(1, 3))
def test_a_latent_comes_back_from_its_tokens(pictures, channels, rows, columns, patch):
    latent = torch.randn(pictures, channels, patch * rows, patch * columns)
    tokens = pack_latent(latent, patch)
    assert tokens.shape == (pictures, rows * columns, patch * patch * channels)
    assert torch.equal(unpack_latent(tokens, rows, patch), latent)


@given(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1))
def test_a_value_lies_where_its_row_column_and_channel_say(row, column, channel, inner_row, inner_column):
    latent = torch.zeros(1, 3, 4, 8)
    latent[0, channel, 2 * row + inner_row, 2 * column + inner_column] = 1
    tokens = pack_latent(latent, 2)
    assert tokens[0, 4 * row + column, 6 * inner_row + 3 * inner_column + channel] == 1


def test_noise_is_the_same_for_a_seed_and_another_for_each_picture():
    shape = torch.Size([1, 16, 4, 4])
    first = posterior_noise(7, 0, shape)
    assert torch.equal(first, posterior_noise(7, 0, shape))
    assert not torch.equal(first, posterior_noise(7, 1, shape))
    assert not torch.equal(first, posterior_noise(8, 0, shape))


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_noise_of_any_seed_is_unrelated_to_the_generator_of_that_seed(seed):
    noise = posterior_noise(seed, 0, torch.Size([4096]))
    start = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
    assert abs(torch.dot(noise, start)) / 4096 < 0.08  # five deviations of independent numbers
