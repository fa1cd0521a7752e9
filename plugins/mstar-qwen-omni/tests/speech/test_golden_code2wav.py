"""Waveforms of the recorded cases (transformers, float32)."""

from __future__ import annotations

import pytest
import torch

SPOKEN = (
    "text", "text_reppen", "text_default_penalty", "text_eos", "image", "audio", "video", "mixed", "raw_audio_chat",
)  # fmt: skip
pytestmark = pytest.mark.golden

TOLERANCE = 1e-3


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", SPOKEN)
def test_decoder_when_a_case_is_sounded_then_gives_the_recorded_waveform(name, recorded, code2wav):
    with torch.inference_mode():
        close(code2wav.whole(recorded[f"{name}/codes"].T), recorded[f"{name}/wav"])


def test_decoder_when_random_codes_are_sounded_then_gives_the_recorded_waveform(recorded, code2wav):
    with torch.inference_mode():
        close(code2wav.whole(recorded["code2wav/codes"].T), recorded["code2wav/wav_full"])


def test_layers_when_codes_are_sounded_then_give_the_recorded_values(recorded, code2wav):
    names = [
        (code2wav.transformer, "pre_transformer_out"),
        *((stage.stretch, f"upsample_{index}_0") for index, stage in enumerate(code2wav.ratios)),
        *((stage, f"upsample_{index}_1") for index, stage in enumerate(code2wav.ratios)),
        (code2wav.first, "decoder_0"),
        (code2wav.rates[0], "decoder_1"),
        *((stage, f"decoder_{index}_first_2000") for index, stage in enumerate(code2wav.rates[1:], 2)),
        (code2wav.snake, "decoder_5_first_2000"),
    ]
    seen, handles = {}, []
    for module, name in names:
        handles.append(module.register_forward_hook(lambda _, given, made, name=name: seen.update({name: made[0]})))
    with torch.inference_mode():
        wav = code2wav.whole(recorded["code2wav_blocks/codes"].T)
    for handle in handles:
        handle.remove()
    close(wav, recorded["code2wav_blocks/wav"])
    for name, made in seen.items():
        close(made[..., :2000] if "first" in name else made, recorded[f"code2wav_blocks/{name}"])
    assert len(seen) == len(names)
