"""The recorded cases through the whole runtime, with what the nodes computed on the way."""

import numpy as np
import pytest
import torch
from mstar_bagel.guidance import times
from mstar_bagel.llm.latents import sinusoids
from mstar_bagel.llm.weights import load_backbone
from mstar_bagel.prompts import THINK_TO_ANSWER, THINK_TO_PAINT

pytestmark = pytest.mark.golden

BRANCHES = ("main", "cfg_text", "cfg_img")


def test_every_layer_of_a_prefilled_text_is_that_of_the_reference(text_case, keeper, log, ask, words):
    ask(keeper(text_case.directory), [words(text_case.about["prompt_ids"])], "text", max_tokens=8)
    (step,) = log.of("read_text")
    text_case.check(step["hidden"], "prefill_hidden")
    text_case.check(step["logits"], "prefill_logits")
    text_case.check(torch.stack(step["layers"]), "prefill_layers")
    text_case.check(torch.stack(step["keys"]), "prefill_k")
    text_case.check(torch.stack(step["values"]), "prefill_v")


def test_a_text_goes_on_as_in_the_reference(text_case, keeper, log, ask, ids_of, words):
    answer = ask(keeper(text_case.directory), [words(text_case.about["prompt_ids"])], "text", max_tokens=8)
    assert ids_of(text_case, answer.text) == text_case["decode_tokens"].tolist()
    assert answer.end == "length"
    text_case.check(torch.cat([step["logits"] for step in log.of("decode")])[:8], "decode_logits")


def test_an_answer_about_pictures_is_that_of_the_reference(
    understanding_case, keeper, log, ask, ids_of, shown_in, words
):
    about = understanding_case.about
    most = about.get("max_think_token_n") or about["max_length"]
    answer = ask(
        keeper(understanding_case.directory),
        [*shown_in(understanding_case), words(about["prompt_ids"])],
        "text",
        max_tokens=most - 1,
        think=about.get("think", False),
        vae_resize=about["path"] == "inferencer",
    )
    assert ids_of(understanding_case, answer.text) == about["reference_returned_tokens"][1:]  # without bos
    logits = torch.cat([step["logits"] for step in log.of("decode")])[: most - 1]
    wanted = understanding_case["decode_logits"][: most - 1]
    assert (logits - wanted).abs().max() / wanted.square().mean().sqrt() <= understanding_case.tolerance["float32"]


def test_a_picture_and_every_step_to_it_are_those_of_the_reference(image_case, keeper, log, ask, asked_in):
    content, params = asked_in(image_case)
    answer = ask(keeper(image_case.directory), content, **params)
    for name in ("t", "x", "v", "v_norm", "v_main", "v_cfg_text", "v_cfg_img"):
        if name in image_case.tensors:
            image_case.check(log.column(name), name)
    image_case.check(log.euler[-1]["latents"], "final_latent")
    (picture,) = answer.pictures
    image_case.check_picture(picture, "image_uint8")


def test_what_goes_into_and_through_the_layers_is_that_of_the_reference(image_case, keeper, log, ask, asked_in):
    content, params = asked_in(image_case)
    ask(keeper(image_case.directory), content, **params)
    first = log.of("image_gen")[0]
    rows = len(image_case["step0_llm_in"])
    image_case.check(first["rows"][:rows], "step0_llm_in")
    image_case.check(torch.stack(first["layers"])[:, :rows], "step0_layers")
    for number, (encoded, seen) in enumerate(zip(log.of("prefill_vae"), log.of("prefill_vit"), strict=True)):
        image_case.check(encoded["rows"], f"vae{number}_llm_in")
        image_case.check(torch.stack(encoded["layers"]), f"vae{number}_layers")
        image_case.check(seen["rows"][1:-1], f"vit{number}_llm_in")


def test_every_context_is_where_the_reference_has_it(image_case, keeper, log, ask, asked_in):
    content, params = asked_in(image_case)
    ask(keeper(image_case.directory), content, **params)
    (positions,) = log.of("image_gen")[0]["positions"]
    for branch in BRANCHES:
        wanted = image_case.about["contexts"][branch]["position"]
        if branch in positions:
            assert positions[branch] == wanted
        elif any(branch in step["branches"] for step in image_case.about["steps"]):
            assert positions["main"] == wanted  # main stands for it


def test_thoughts_are_those_of_the_reference(image_case, keeper, log, ask, ids_of, asked_in):
    content, params = asked_in(image_case)
    answer = ask(keeper(image_case.directory), content, "text image", **params)
    thought = image_case.about.get("think_returned_tokens", [])[1:]  # without bos
    assert ids_of(image_case, answer.text) == thought
    if image_case.about["think"]:
        logits = torch.cat([step["logits"] for step in log.of("think")])
        wanted = image_case["think_logits"][: len(logits)]
        assert (logits - wanted).abs().max() / wanted.square().mean().sqrt() <= image_case.tolerance["float32"]


def test_times_are_embedded_as_in_the_reference(pieces_case, context):
    pieces_case.check(sinusoids(pieces_case["t"]), "t_sinusoid")
    latents = load_backbone(context(pieces_case.directory)).latents
    pieces_case.check(latents.times(pieces_case["t"]), "t_embed")
    places = latents.positions[pieces_case["latent_pos_ids"]]
    pieces_case.check(places, "latent_pos_rows")


@pytest.mark.parametrize(("steps", "shift"), [(50, "3"), (6, "3"), (6, "1"), (30, "1.5")])
def test_times_are_those_of_the_reference(pieces_case, steps, shift):
    pieces_case.check(times(steps, float(shift)), f"timesteps_n{steps}_shift{shift}")


def test_the_prompts_to_think_are_those_of_the_reference(pieces_case):
    prompts = pieces_case.about["think_prompts"]
    assert prompts["gen"]["text"] == THINK_TO_PAINT
    assert prompts["und"]["text"] == THINK_TO_ANSWER


def test_a_picture_is_as_large_as_the_reference_makes_it(image_case, keeper, ask, asked_in, shown_in):
    content, params = asked_in(image_case)
    if shown_in(image_case):
        del params["width"], params["height"]
    (picture,) = ask(keeper(image_case.directory), content, **params).pictures
    assert list(picture.shape[:2]) == image_case.about["output_hw"]
    assert picture.dtype == np.uint8
