import json

import pytest
from mstar_orpheus.codec.config import SnacConfig, SnacConfigError

RATES_44K = {"encoder_rates": [3, 3, 7, 7], "decoder_rates": [7, 7, 3, 3], "vq_strides": [8, 4, 2, 1]}


def test_config_of_the_24_khz_rates_has_its_frame(small_values):
    config = SnacConfig.parse(small_values)
    assert (config.hop, config.latents_per_frame, config.samples_per_frame) == (512, 4, 2048)
    assert config.slot_levels == (0, 1, 2, 2, 1, 2, 2)
    assert config.ids_per_frame == 7
    assert config.latent_dim == 16


def test_config_of_four_levels_has_fifteen_slots(small_values):
    config = SnacConfig.parse(small_values | RATES_44K)
    assert config.slot_levels == (0, 1, 2, 3, 3, 2, 3, 3, 1, 2, 3, 3, 2, 3, 3)


def test_config_with_attention_is_refused(small_values):
    with pytest.raises(SnacConfigError, match=r"attn_window_size is 32.*not supported; the 24 kHz one has none"):
        SnacConfig.parse(small_values | RATES_44K | {"attn_window_size": 32})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": False}, "noise is False"),
        ({"depthwise": False}, "depthwise is False"),
        ({"codebook_sise": 3}, "unknown key 'codebook_sise'; did you mean 'codebook_size'"),
        ({"decoder_rates": [8, 8, 4]}, "same product"),
        ({"decoder_rates": []}, "decoder_rates must be positive"),
        ({"decoder_dim": 24}, "decoder_dim 24 must be divisible"),
        ({"vq_strides": [4, 3, 1]}, "vq_strides"),
        ({"vq_strides": [4, 2, 2]}, "vq_strides"),
        ({"codebook_size": 0}, "codebook_size must be positive"),
        ({"codebook_size": "4096"}, "codebook_size must be an integer"),
        ({"vq_strides": 4}, "vq_strides must be a list of integers"),
        ({"encoder_dim": True}, "encoder_dim must be an integer"),
        ({"latent_dim": 17}, "latent_dim 17 does not follow"),
    ],
)
def test_config_with_a_wrong_value_names_the_key(small_values, change, message):
    with pytest.raises(SnacConfigError, match=message.replace("[", r"\[")):
        SnacConfig.parse(small_values | change)


def test_config_without_a_key_names_it(small_values):
    del small_values["vq_strides"], small_values["codebook_dim"]
    with pytest.raises(SnacConfigError, match="missing keys: codebook_dim, vq_strides"):
        SnacConfig.parse(small_values)


def test_config_file_is_named_in_every_error(tmp_path, small_values):
    path = tmp_path / "config.json"
    with pytest.raises(SnacConfigError, match=r"config\.json: no such file"):
        SnacConfig.read(tmp_path)
    path.write_text("{")
    with pytest.raises(SnacConfigError, match=r"config\.json: not valid JSON"):
        SnacConfig.read(tmp_path)
    path.write_text("[]")
    with pytest.raises(SnacConfigError, match=r"config\.json: a JSON object was expected, found list"):
        SnacConfig.read(tmp_path)
    path.write_text(json.dumps(small_values))
    assert SnacConfig.read(tmp_path) == SnacConfig.parse(small_values)


@pytest.mark.golden
def test_config_of_the_reference_checkpoint_reads(golden_dir, facts):
    config = SnacConfig.read(golden_dir / "snac")
    assert config.codebook_size == facts["token_ids"]["codebook_size"]
    assert config.ids_per_frame == facts["token_ids"]["tokens_per_frame"]
    assert config.samples_per_frame * facts["snac_full"]["frames"] == facts["snac_full"]["samples"]
