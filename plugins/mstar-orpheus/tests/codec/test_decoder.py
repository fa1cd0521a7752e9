import pytest
import torch
from mstar_orpheus.codec import layers
from mstar_orpheus.codec.layers import DecoderBlock, depthwise, snake
from mstar_orpheus.codec.reach import Rows, plan_rows
from mstar_orpheus.codec.stream import codes_to_levels
from mstar_orpheus.codec.weights import read_weights
from torch.nn import functional

CLOSE = {"atol": 1e-4, "rtol": 0}


def assert_stage_close(made, expected):
    """Inner stages grow large: float32 rounding counts against a stage's own magnitude."""
    torch.testing.assert_close(made, expected, atol=1e-5 * max(1.0, float(expected.abs().max())), rtol=0)


def latents_of(golden, cases, frames=None):
    strides = golden.config.vq_strides
    codes = [cases[f"snac_full/codes_{level}"][None] for level in range(len(strides))]
    if frames is not None:
        codes = [level[:, : frames * strides[0] // stride] for level, stride in zip(codes, strides, strict=True)]
    return golden.from_codes(codes)


@pytest.mark.golden
def test_latents_from_codes_are_the_reference_s(golden, cases):
    torch.testing.assert_close(latents_of(golden, cases)[0].T, cases["snac_full/z_q"], atol=1e-5, rtol=1e-5)


@pytest.mark.golden
def test_levels_of_audio_ids_are_the_reference_s(golden, cases, facts):
    config, ids = golden.config, facts["token_ids"]
    slots = torch.arange(config.ids_per_frame) * config.codebook_size + ids["audio_base"]
    codes = cases["snac_full/audio_tokens"].view(1, -1, config.ids_per_frame) - slots
    for level, levels in enumerate(codes_to_levels(codes, config)):
        assert torch.equal(levels[0], cases[f"snac_full/codes_{level}"])


@pytest.mark.golden
def test_every_stage_gives_the_reference_s_output(golden, golden_dir, cases, facts):
    latents = latents_of(golden, cases, facts["snac_blocks"]["frames"])
    made = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: made.append(output[0].clone()))
        for module in (golden.stem, *golden.blocks, golden.head)
    ]
    golden(latents)
    for hook in hooks:
        hook.remove()
    last = 2 + len(golden.blocks)
    alphas = read_weights(golden_dir / "snac", golden.config)
    scales = [alphas[f"decoder.model.{index}.block.0.alpha"][0] for index in range(2, last)]
    scales.append(alphas[f"decoder.model.{last}.alpha"][0])
    for index, (output, scale) in enumerate(zip(made, scales, strict=False), start=1):  # every stage gives α x
        assert_stage_close(output.T / scale, cases[f"snac_blocks/decoder_model_{index}"])
    assert_stage_close(snake(made[-2].T) / scales[-1], cases[f"snac_blocks/decoder_model_{last}"])
    torch.testing.assert_close(made[-1][None], cases[f"snac_blocks/decoder_model_{last + 2}"], **CLOSE)


@pytest.mark.golden
def test_first_convolution_gives_the_reference_s_output(golden, cases, facts):
    latents = latents_of(golden, cases, facts["snac_blocks"]["frames"])
    padded = functional.pad(latents, (0, 0, 3, 3))
    output = depthwise(padded, golden.stem.taps, golden.stem.bias, 1)
    assert_stage_close(output[0].T, cases["snac_blocks/decoder_model_0"])


@pytest.mark.golden
def test_decode_without_noise_gives_the_reference_s_samples(golden, cases):
    torch.testing.assert_close(golden(latents_of(golden, cases))[0], cases["snac_full/wav_zero_noise"], **CLOSE)


@pytest.mark.golden
def test_decode_with_recorded_noise_gives_the_reference_s_samples(golden, cases):
    noise = [cases[f"snac_full/noise_{index}"][None] for index in range(len(golden.blocks))]
    torch.testing.assert_close(golden(latents_of(golden, cases), noise)[0], cases["snac_full/wav_with_noise"], **CLOSE)


def test_decode_with_any_tile_size_gives_the_same_samples(small, monkeypatch):
    latents = torch.randn(1, 16, small.config.latent_dim, generator=torch.manual_seed(0))
    noise = [torch.randn(1, len(block.upsampled)) for block in plan_rows(small.config, 16, Rows(0, 8192)).blocks]
    whole = small(latents, noise)
    monkeypatch.setattr(layers, "_TILE_ELEMENTS", 1000)
    torch.testing.assert_close(small(latents, noise), whole, atol=1e-5, rtol=0)


def test_block_of_several_rows_at_once_gives_each_row_s_output(small):
    """The way an accelerator runs a batch."""
    block = small.blocks[0]
    assert isinstance(block, DecoderBlock)
    rows = plan_rows(small.config, 12, Rows(2048, 4096)).blocks[0]
    scaled = torch.randn(3, len(rows.inputs), small.config.decoder_dim, generator=torch.manual_seed(0))
    noise = torch.randn(3, len(rows.upsampled), generator=torch.manual_seed(1))
    together = block(scaled, rows, noise)
    for row in range(3):
        one = slice(row, row + 1)
        torch.testing.assert_close(block(scaled[one], rows, noise[one]), together[one], atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [2.0, -0.7, 1e-3, 1e-9, 0.0])
def test_snake_of_any_alpha_is_folded_exactly_enough(alpha):
    x = torch.linspace(-3, 3, 601)[None, :, None]
    scale = layers.snake_scale(torch.tensor([[[alpha]]]))
    expected = x + torch.sin(alpha * x) ** 2 / (alpha + 1e-9)
    torch.testing.assert_close(snake(x * scale) / scale, expected, atol=2e-5, rtol=1e-5)


def test_decode_outside_the_window_raises(small):
    with pytest.raises(ValueError, match="do not lie in a window of 4 latents"):
        small(torch.zeros(1, 4, small.config.latent_dim), samples=Rows(0, 4096))
