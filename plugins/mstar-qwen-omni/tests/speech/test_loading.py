"""What is wrong with a checkpoint's speech is said at once, with names."""

from __future__ import annotations

import pytest
import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.speech.code2wav.decoder import Code2Wav
from mstar_qwen_omni.speech.talker import AssistantRows, Talker
from safetensors.torch import load_file, save_file

from mstar_core.errors import CheckpointError

CPU = torch.device("cpu")


@pytest.fixture
def without(tmp_path, fixture_dir):
    """A checkpoint that lacks a tensor, and may have one that is too short."""

    def making(missing, short=None):
        tensors = load_file(fixture_dir / "model.safetensors")
        del tensors[missing]
        if short is not None:
            tensors[short] = tensors[short][:-1].clone()
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return making


def test_talker_when_tensors_do_not_fit_then_all_are_named(without, fixture_dir):
    missing, short = "talker.codec_head.weight", "talker.code_predictor.lm_head.3.weight"
    config = QwenOmniConfig.read(fixture_dir).talker
    with pytest.raises(CheckpointError) as raised:
        Talker.load(without(missing, short), config, device=CPU, dtype=torch.float32)
    assert f"{missing} is missing" in str(raised.value)
    assert f"{short} [63, 48]" in str(raised.value)


def test_code2wav_when_tensors_do_not_fit_then_all_are_named(without, fixture_dir):
    missing, short = "code2wav.upsample.1.1.gamma", "code2wav.decoder.2.block.0.alpha"
    config = QwenOmniConfig.read(fixture_dir).code2wav
    with pytest.raises(CheckpointError) as raised:
        Code2Wav.load(without(missing, short), config, device=CPU)
    assert f"{missing} is missing" in str(raised.value)
    assert f"{short} [23]" in str(raised.value)


def test_rows_when_the_thinkers_embedding_is_missing_then_it_is_named(without, fixture_dir):
    config = QwenOmniConfig.read(fixture_dir)
    talker = Talker.load(fixture_dir, config.talker, device=CPU, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"thinker\.model\.embed_tokens\.weight is missing"):
        AssistantRows(without("thinker.model.embed_tokens.weight"), config, talker)
