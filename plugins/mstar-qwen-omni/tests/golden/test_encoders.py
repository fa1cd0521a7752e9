import pytest
import torch
from mstar_qwen_omni.encoders.audio import Heard
from mstar_qwen_omni.encoders.nodes import AudioEncoder, VisionEncoder

pytestmark = pytest.mark.golden

TOLERANCE = {"atol": 5e-5, "rtol": 0}


def test_rows_of_sounds_are_the_references(conversations, golden_dir, context):
    model = AudioEncoder(context(golden_dir)).model
    cases = [case for case in conversations.values() if case.frames]
    assert {"audio", "mixed", "audio_in_video", "raw_audio_chat"} <= {case.name for case in cases}
    for case in cases:
        features, frames = case.tensors["input_features"], case.frames
        width = max(min(case.config.audio.chunk, each) for each in frames)  # the reference's padding
        sounds = [Heard(each[:, :count], width) for each, count in zip(features, frames, strict=True)]
        with torch.inference_mode():
            rows = torch.cat(model(sounds))
        torch.testing.assert_close(rows, case.tensors["audio_features_out"], **TOLERANCE)


@pytest.mark.parametrize(("kind", "name"), [("image", "pixel_values"), ("video", "pixel_values_videos")])
def test_rows_and_deepstack_rows_are_the_references(conversations, golden_dir, context, kind, name):
    model = VisionEncoder(context(golden_dir)).model
    cases = [case for case in conversations.values() if case.grids(kind)]
    assert cases
    for case in cases:
        with torch.inference_mode():
            sights = model(case.tensors[name], case.grids(kind))
        rows = torch.cat([sight.rows for sight in sights])
        torch.testing.assert_close(rows, case.tensors["vision_merged"], **TOLERANCE)
        for level, deep in enumerate(torch.cat([sight.deep for sight in sights], dim=1)):
            torch.testing.assert_close(deep, case.tensors[f"vision_deepstack_{level}"], **TOLERANCE)
