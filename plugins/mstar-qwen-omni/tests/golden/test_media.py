import numpy as np
import pytest
import torch
from mstar_qwen_omni.encoders.nodes import VisionEncoder
from mstar_qwen_omni.media.mel import mel_features, mel_filters
from mstar_qwen_omni.media.patches import image_patches
from mstar_qwen_omni.media.settings import MediaSettings

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module")
def golden_settings(golden_dir):
    return MediaSettings.read(golden_dir)


def test_mel_features_are_the_references(recorded, golden_settings):
    case = recorded["preproc_audio"]
    np.testing.assert_allclose(mel_filters(golden_settings.sound), case["mel_filters"], atol=1e-8)
    features = mel_features(case["waveform"].numpy(), golden_settings.sound)
    np.testing.assert_allclose(features, case["input_features"][0], atol=1e-5)


@pytest.mark.parametrize("name", ["preproc_image_exact", "preproc_image_resized"])
def test_patches_are_the_references(recorded, golden_settings, golden_dir, context, name):
    case = recorded[name]
    made = image_patches(case["image_hwc_uint8"].numpy(), golden_settings.picture)
    assert made.grid == tuple(case["image_grid_thw"][0].tolist())
    normal = VisionEncoder(context(golden_dir)).normal(torch.from_numpy(made.values))
    torch.testing.assert_close(normal, case["pixel_values"], atol=1e-6, rtol=0)
