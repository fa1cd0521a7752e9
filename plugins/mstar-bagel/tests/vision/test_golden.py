import re

import pytest
import torch
from mstar_bagel.config import BagelConfig, Limits
from mstar_bagel.vision.latents import unpack_latent
from mstar_bagel.vision.nodes import normalised
from mstar_bagel.vision.pictures import fit, fitted_size

pytestmark = pytest.mark.golden


@pytest.fixture
def transforms():
    def of(case):
        return BagelConfig.read(case.directory).transforms

    return of


def given_pictures(case):
    """Numbers of the pictures that a case was given."""
    return range(sum(bool(re.fullmatch(r"image\d+", name)) for name in case.tensors))


def latent_of(made, patch):
    """The latent that the encoder gave as tokens."""
    return unpack_latent(made["tokens"][None], int(made["grid"][0]), patch)


def channels_first(picture):
    return normalised(torch.as_tensor(picture)).permute(2, 0, 1)


def test_sizes_are_those_of_the_reference(pieces_case):
    for row in pieces_case.about["resize_table"]:
        limits = Limits(longest=row["max"], shortest=row["min"], stride=row["stride"], max_pixels=row["max_pixels"])
        assert list(fitted_size(tuple(reversed(row["in_wh"])), limits)) == list(reversed(row["out_wh"])), row


def test_a_resized_picture_is_that_of_the_reference(pieces_case, transforms):
    rules = transforms(pieces_case)
    seen = fit(pieces_case["resize_image"].numpy(), rules.vae)
    pieces_case.check(seen, "resize_image_out")
    pieces_case.check(channels_first(seen), "resize_image_vae_pixels")
    pieces_case.check(channels_first(fit(pieces_case["resize_image"].numpy(), rules.vit)), "resize_image_vit_pixels")


def test_rows_of_pictures_are_those_of_the_reference(vit_case, node, transforms):
    vit = node("vit", vit_case.directory)
    made = []
    for index in range(vit_case.about["n_images"]):
        picture = torch.from_numpy(fit(vit_case[f"image{index}"].numpy(), transforms(vit_case).vit))
        vit_case.check(channels_first(picture), f"pixels{index}")
        patches = vit.model.patches(normalised(picture)[None])
        vit_case.check(patches, f"tokens{index}")
        grid = tuple(vit_case.about["grids"][index])
        made.append((vit.model.encode(patches, 1, grid), vit.compute(picture=picture[None])["rows"][0]))
    encoded, rows = (torch.cat(each) for each in zip(*made, strict=True))
    vit_case.check(encoded, "vit_out")
    vit_case.check(rows, "llm_in")


def test_the_encoder_gives_moments_and_latents_of_the_reference(vae_case, node, call, transforms):
    encoder = node("vae_encoder", vae_case.directory)
    picture = torch.from_numpy(fit(vae_case["image"].numpy(), transforms(vae_case).vae))
    pixels = channels_first(picture)[None]
    vae_case.check(pixels, "pixels")
    mean, log_variance = encoder.model(pixels)
    vae_case.check(mean, "mean")
    vae_case.check(log_variance, "logvar")
    vae_case.check(encoder.model.latent(mean), "latent")
    of_mean = encoder.compute(call({"picture": picture}, sample_posterior=False))["tokens"]
    vae_case.check(of_mean, "latent_packed")
    sampled = encoder.compute(call({"picture": picture, "posterior_noise": vae_case["eps"][0]}))
    vae_case.check(latent_of(sampled, encoder.patch), "latent_sampled")


@pytest.mark.parametrize(("latent", "pixels"), [("latent", "recon"), ("random_latent", "random_decoded")])
def test_the_decoder_gives_pixels_of_the_reference(vae_case, node, latent, pixels):
    vae_case.check(node("vae_decoder", vae_case.directory).model(vae_case[latent]), pixels)


def test_a_made_picture_is_that_of_the_reference(image_case, node, call):
    decoder = node("vae_decoder", image_case.directory)
    height, width = image_case.about["output_hw"]
    made = decoder.compute(call({"tokens": image_case["final_latent"]}, height=height, width=width))
    image_case.check_picture(made["picture"], "image_uint8")
    latent = unpack_latent(image_case["final_latent"][None], height // decoder.token_side, decoder.patch)
    image_case.check(latent, "vae_decode_in")


def test_pictures_to_edit_become_the_latents_of_the_reference(image_case, node, call, transforms):
    encoder = node("vae_encoder", image_case.directory)
    for index in given_pictures(image_case):
        picture = fit(image_case[f"image{index}"].numpy(), transforms(image_case).vae)
        image_case.check(picture, f"image{index}_after_vae_resize")
        noise = image_case.tensors.get(f"vae{index}_eps")
        sampling = {"sample_posterior": False} if noise is None else {}
        inputs = {"picture": picture, "posterior_noise": None if noise is None else noise[0]}
        made = encoder.compute(call(inputs, **sampling))
        image_case.check(latent_of(made, encoder.patch), f"vae{index}_latent")


def test_pictures_to_edit_become_the_rows_of_the_reference(image_case, node, transforms):
    rules = transforms(image_case)
    for index in given_pictures(image_case):
        picture = fit(fit(image_case[f"image{index}"].numpy(), rules.vae), rules.vit)
        rows = node("vit", image_case.directory).compute(picture=torch.from_numpy(picture)[None])["rows"][0]
        image_case.check(rows, f"vit{index}_llm_in")


def test_pictures_to_understand_become_the_rows_of_the_reference(understanding_case, node, transforms):
    rules = transforms(understanding_case)
    for index in given_pictures(understanding_case):
        picture = understanding_case[f"image{index}"].numpy()
        if understanding_case.about["path"] == "inferencer":
            picture = fit(picture, rules.vae)
        picture = torch.from_numpy(fit(picture, rules.vit))
        rows = node("vit", understanding_case.directory).compute(picture=picture[None])["rows"][0]
        understanding_case.check(rows, f"vit{index}_llm_in")
