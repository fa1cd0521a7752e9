import numpy as np
import pytest
import torch
from mstar_bagel.vision.nodes import levels, normalised

SIZES = [(112, 112), (56, 98)]


def pictures(count, height, width):
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, height, width, 3), np.uint8))


@pytest.mark.parametrize("size", SIZES)
def test_pictures_seen_together_give_the_bits_that_each_gives_alone(node, tiny, size):
    vit = node("vit", tiny)
    batch = pictures(3, *size)
    together = vit.compute(picture=batch)["rows"]
    assert together.shape == (3, size[0] * size[1] // 14**2, 64)
    for rows, picture in zip(together, batch, strict=True):
        assert torch.equal(rows, vit.compute(picture=picture[None])["rows"][0])


def test_a_picture_sampled_with_one_seed_repeats(node, tiny, call):
    encoder = node("vae_encoder", tiny)
    (picture,) = pictures(1, 64, 96)

    def tokens(**request):
        return encoder.compute(call({"picture": picture}, **request))["tokens"]

    assert tokens(seed=3).shape == (24, 64)
    assert torch.equal(tokens(seed=3), tokens(seed=3))
    assert not torch.equal(tokens(seed=3), tokens(seed=4))
    assert not torch.equal(tokens(seed=3), tokens(seed=3, step=1))
    assert not torch.equal(tokens(seed=3), tokens(sample_posterior=False))
    assert torch.equal(tokens(seed=3, sample_posterior=False), tokens(sample_posterior=False))


def test_latents_of_several_requests_are_those_of_each_alone(node, tiny, call):
    encoder, decoder = node("vae_encoder", tiny), node("vae_decoder", tiny)
    calls = [call({"picture": each}, seed=seed) for seed, each in enumerate(pictures(3, 64, 96))]
    encoded = encoder.forward(calls)
    assert all(
        torch.equal(made["tokens"], encoder.compute(one)["tokens"]) for made, one in zip(encoded, calls, strict=True)
    )
    assert encoded[0]["grid"].tolist() == [4, 6]
    calls = [call({"tokens": made["tokens"]}, height=64, width=96) for made in encoded]
    decoded = decoder.forward(calls)
    assert all(
        torch.equal(made["picture"], decoder.compute(one)["picture"]) for made, one in zip(decoded, calls, strict=True)
    )
    assert decoded[0]["picture"].shape == (64, 96, 3)


def test_levels_are_truncated_and_clamped():
    pixels = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]).expand(1, 3, 1, 5)
    assert levels(pixels)[0, 0, :, 0].tolist() == [0, 0, 127, 255, 255]


def test_levels_go_from_minus_one_to_one():
    assert normalised(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]
