import pytest
import torch
from mstar_orpheus.codec.config import KERNEL, SnacConfig
from mstar_orpheus.codec.decoder import SnacDecoder
from mstar_orpheus.codec.reach import Rows, left_reach, plan_rows, right_reach
from mstar_orpheus.codec.weights import expected_shapes

FRAMES = 6
ODD = {"encoder_rates": [3, 5, 2], "decoder_rates": [5, 3, 2], "decoder_dim": 24, "vq_strides": [2, 1]}


def positive_decoder(values):
    """Depthwise kernels of their two end taps, nothing cancels: the furthest latent is felt in float64."""
    config = SnacConfig.parse(values)
    weights = {}
    for name, shape in expected_shapes(config).items():
        value = {"alpha": 1e-3, "bias": 0.0}.get(name.rpartition(".")[2], 1 / shape[1] if len(shape) > 1 else 0.0)
        weights[name] = torch.full(shape, value, dtype=torch.float64)
        if shape[-1] == KERNEL:
            weights[name] *= torch.tensor([0.5] + [0] * (KERNEL - 2) + [0.5])
    return SnacDecoder(config, weights)


def decode(decoder, latents, samples=None):
    return decoder(latents, samples=samples)[0]


def random_latents(config, frames=FRAMES):
    shape = (1, frames * config.latents_per_frame, config.latent_dim)
    return torch.rand(shape, generator=torch.manual_seed(1), dtype=torch.float64)


def test_reach_of_the_24_khz_rates_is_4757_samples(small_values):
    config = SnacConfig.parse(small_values)
    assert left_reach(config) == right_reach(config) == 4757


@pytest.mark.parametrize("changes", [{}, ODD], ids=["even rates", "odd rates"])
def test_reach_is_where_what_lies_before_a_window_stops_being_felt(small_values, changes):
    decoder = positive_decoder(small_values | changes)
    config = decoder.config
    whole = random_latents(config, 12) * 1e-8  # small, so that tanh stays linear
    cut = whole[:, config.latents_per_frame :]
    difference = decode(decoder, whole)[config.samples_per_frame :] - decode(decoder, cut)
    reach = left_reach(config)
    assert difference[reach:].abs().max() < 1e-12 * difference.abs().max()
    assert difference[reach - 1].abs() > 1e-9 * difference.abs().max()


@pytest.mark.parametrize("changes", [{}, ODD], ids=["even rates", "odd rates"])
def test_reach_is_where_what_lies_after_a_window_starts_being_felt(small_values, changes):
    decoder = positive_decoder(small_values | changes)
    config = decoder.config
    whole = random_latents(config, 12) * 1e-8  # small, so that tanh stays linear
    cut = whole[:, : -config.latents_per_frame]
    samples = decode(decoder, cut)
    difference = decode(decoder, whole)[: len(samples)] - samples
    reach = right_reach(config)
    assert difference[:-reach].abs().max() < 1e-12 * difference.abs().max()
    assert difference[-reach].abs() > 1e-9 * difference.abs().max()


@pytest.mark.parametrize("changes", [{}, ODD], ids=["even rates", "odd rates"])
def test_planned_rows_give_the_samples_of_the_whole_window(make_decoder, changes):
    decoder = make_decoder(**changes).double()
    latents = random_latents(decoder.config)
    whole = decode(decoder, latents)
    for start, stop in [(0, 1), (0, 5), (7, 8), (100, 301), (len(whole) - 1, len(whole)), (3, len(whole) - 3)]:
        torch.testing.assert_close(decode(decoder, latents, Rows(start, stop)), whole[start:stop], atol=1e-12, rtol=0)


def test_planned_rows_shrink_with_the_wanted_samples(small_values):
    config = SnacConfig.parse(small_values)
    window = config.latents_per_frame * 4
    rows = plan_rows(config, window, Rows(2048, 4096))
    last = rows.blocks[-1]
    assert last.units[-1] == Rows(2048 - 3, 4096 + 3)
    assert last.upsampled == Rows(2048 - 3 - 39, 4096 + 3 + 39)
    assert rows.blocks[0].inputs == Rows(0, 15)


@pytest.mark.parametrize("samples", [Rows(0, 0), Rows(-1, 5), Rows(5, 2049)])
def test_planned_rows_outside_the_window_raise(small_values, samples):
    config = SnacConfig.parse(small_values)
    with pytest.raises(ValueError, match="do not lie in a window of 4 latents, which has samples 0 to 2048"):
        plan_rows(config, 4, samples)
