import pytest
import torch
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.encoder import ClipEncoder
from mstar_vjepa.config import MEAN, STD
from mstar_vjepa.pictures import pixels_of_clip

from mstar_core.nn.transformer import attend_within
from mstar_core.spec.content import Tensor, Video

pytestmark = pytest.mark.golden

PIXELS = "pixel_values_videos"


def test_latents_are_those_of_the_reference(encoder_case, served, ask):
    service = served("vjepa2", encoder_case.directory)
    for row, pixels in enumerate(encoder_case.given(PIXELS)):
        made = ask(service, [Tensor("pixels", pixels)], task="encode")
        encoder_case.check(made["latents"][0], "last_hidden_state", row)


def test_every_block_gives_what_the_reference_gives(encoder_case, context):
    layers = sorted(name for name in encoder_case.tensors if name.startswith("out.hidden_states."))
    model = ClipEncoder(context(encoder_case.directory)).model
    pixels = encoder_case.tensors[f"in.{PIXELS}"]
    pixels = pixels.expand(-1, 2, -1, -1, -1) if pixels.shape[1] == 1 else pixels
    clips, frames = pixels.shape[:2]
    x = model.patches.clips(pixels)
    rotary = tuple(table.repeat(clips, 1, 1) for table in model._rotary(frames // 2))
    for index, name in enumerate(layers):
        encoder_case.check(x.view(clips, -1, x.shape[1]), name.removeprefix("out."))
        x = model.blocks[index](x, attend_within(clips), rotary) if index < len(model.blocks) else x


def test_predictions_are_those_of_the_reference(predictor_case, served, ask):
    service = served("vjepa2", predictor_case.directory)
    masks = [name for name in ("context_mask", "target_mask") if predictor_case.has(name)]
    for row, pixels in enumerate(predictor_case.given(PIXELS)):
        given = [Tensor(name, predictor_case.given(name)[row]) for name in masks]
        made = ask(service, [Tensor("pixels", pixels), *given], task="predict")
        predictor_case.check(made["predictions"][0], "predictor_last_hidden_state", row)


def test_logits_and_the_likeliest_label_are_those_of_the_reference(classifier_case, served, ask):
    service = served("vjepa2", classifier_case.directory)
    labels = ClipConfig.read(classifier_case.directory).head.labels
    for row, pixels in enumerate(classifier_case.given(PIXELS)):
        made = ask(service, [Tensor("pixels", pixels)], task="classify", labels=1)
        classifier_case.check(made["logits"][0], "logits", row)
        assert made["text"].endswith(labels[int(classifier_case.wanted("logits")[row].argmax())])


def test_pixels_are_those_of_the_reference_to_one_level(clip_pictures):
    crop = clip_pictures.params["crop_size"]
    pixels = pixels_of_clip(
        clip_pictures.given("video_uint8_THWC"),
        shortest=clip_pictures.params["shortest_edge"],
        crop=(crop, crop),
        mean=MEAN,
        std=STD,
    )
    clip_pictures.check(pixels[None], PIXELS)


def test_a_video_is_prepared_as_its_frames_are(clip_pictures, served, ask):
    service = served("vjepa2", clip_pictures.directory)
    frames = clip_pictures.given("video_uint8_THWC")
    video = ask(service, [Video(frames, 8.0)], task="encode")["latents"][0]
    pixels = ask(service, [Tensor("pixels", clip_pictures.wanted(PIXELS)[0])], task="encode")["latents"][0]
    assert torch.nn.functional.cosine_similarity(*map(torch.from_numpy, (video, pixels))).min() > 0.999
