"""Pictures over real HTTP, mostly with OpenAI's client and the toy painter behind the real runtime."""

import base64
import io
import json

import httpx
import numpy as np
import openai
import PIL.Image
import pytest

from mstar_core.media.sniff import kind_of
from mstar_core.testing.clips import image_file

RED = image_file(np.full((2, 4, 3), (255, 0, 0), np.uint8))
BLUE = image_file(np.full((6, 8, 3), (0, 0, 255), np.uint8))
CIRCLE = {"model": "toy-painter", "prompt": "A circle."}
SLOW = {"delay_ms": 20.0, "steps": 1000}


def opened(image):
    return PIL.Image.open(io.BytesIO(base64.b64decode(image.b64_json)))


def colour(image):
    return np.asarray(opened(image).convert("RGB"))[0, 0].tolist()


@pytest.fixture
def generate(painter_client):
    return lambda **fields: painter_client.images.generate(**CIRCLE | fields)


@pytest.fixture
def edit(painter_client):
    return lambda image=RED, **fields: painter_client.images.edit(image=image, **CIRCLE | fields)


def refusal(call, **fields):
    with pytest.raises(openai.BadRequestError) as caught:
        call(**fields)
    return caught.value.param, caught.value.body["message"]


def test_answer_has_the_picture_its_size_and_usage(generate):
    answer = generate(size="128x64")
    (image,) = answer.data
    assert opened(image).format == "PNG"
    assert opened(image).size == (128, 64)
    assert (answer.size, answer.output_format, answer.background) == ("128x64", "png", "opaque")
    read = len("user: A circle.")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (read, 0, read)


@pytest.mark.parametrize("size", [None, "auto"])
def test_without_a_size_the_model_chooses(generate, size):
    assert opened(generate(**{"size": size} if size else {}).data[0]).size == (64, 48)


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_bytes_are_of_the_format_asked_for(generate, format):
    answer = generate(output_format=format)
    assert answer.output_format == format
    assert kind_of(base64.b64decode(answer.data[0].b64_json)) == format
    url = generate(output_format=format, response_format="url").data[0].url
    head, _, data = url.partition(",")
    assert head == f"data:image/{format};base64"
    assert kind_of(base64.b64decode(data)) == format


@pytest.mark.parametrize("format", ["jpeg", "webp"])
def test_compression_reaches_the_encoder(generate, format):
    def file(**fields):
        return generate(output_format=format, extra_body={"seed": 1}, **fields).data[0].b64_json

    assert len({file(output_compression=quality) for quality in (1, 50, 95)}) > 1
    assert file() == file(output_compression=95)


def test_everything_about_a_picture_depends_on_text_steps_and_seed(generate):
    def painted(**fields):
        return colour(generate(**fields).data[0])

    first = painted(extra_body={"seed": 0})
    assert painted(extra_body={"seed": 0}) == first
    assert painted(extra_body={"seed": 2**63 - 1}) != first
    assert painted(extra_body={"seed": 0, "steps": 3}) != first
    assert painted(extra_body={"seed": 0}, prompt="A square.") != first


def test_several_pictures_are_several_requests_whose_seeds_follow_one_another(generate):
    several = generate(n=8, extra_body={"seed": 2**63 - 2})
    colours = [colour(image) for image in several.data]
    assert len({tuple(each) for each in colours}) == 8
    assert colours[2] == colour(generate(extra_body={"seed": 0}).data[0])
    assert several.usage.input_tokens == 8 * len("user: A circle.")


def test_pictures_of_an_edit_are_seen_in_their_order_before_the_text(edit, generate):
    seed = {"seed": 3}
    both = colour(edit([RED, BLUE], extra_body=seed).data[0])
    assert colour(edit([RED, BLUE], extra_body=seed).data[0]) == both
    assert colour(edit([BLUE, RED], extra_body=seed).data[0]) != both
    assert colour(edit(RED, extra_body=seed).data[0]) == colour(edit([RED], extra_body=seed).data[0])
    assert colour(edit(RED, extra_body=seed).data[0]) != colour(generate(extra_body=seed).data[0])


def test_fields_of_a_form_are_what_they_are_in_json(edit, painter_url):
    of_form = edit(
        [RED, BLUE], n=2, size="32x16", output_format="jpeg", output_compression=80, extra_body={"seed": 3, "steps": 2}
    )
    fields = {"n": 2, "size": "32x16", "output_format": "jpeg", "output_compression": 80, "seed": 3, "steps": 2}
    images = [base64.b64encode(RED).decode(), f"data:image/png;base64,{base64.b64encode(BLUE).decode()}"]
    of_json = httpx.post(f"{painter_url}/v1/images/edits", json=CIRCLE | fields | {"image": images}).json()
    assert [image.b64_json for image in of_form.data] == [image["b64_json"] for image in of_json["data"]]
    assert opened(of_form.data[0]).size == (32, 16)


def test_one_picture_may_be_a_text_in_json(edit, painter_url):
    body = CIRCLE | {"image": base64.b64encode(RED).decode(), "seed": 1}
    answer = httpx.post(f"{painter_url}/v1/images/edits", json=body).json()
    assert answer["data"][0]["b64_json"] == edit(extra_body={"seed": 1}).data[0].b64_json


@pytest.mark.parametrize("what", ["image_generation", "image_edit"])
def test_stream_has_progress_and_each_picture_when_it_is_ready(generate, edit, what):
    call = generate if what == "image_generation" else edit
    events = list(call(n=2, stream=True, extra_body={"seed": 1}))
    progress = [event for event in events if event.type == f"{what}.progress"]
    completed = [event for event in events if event.type == f"{what}.completed"]
    assert len(progress) + len(completed) == len(events)
    for index in (0, 1):
        assert [(each.done, each.total) for each in progress if each.index == index] == [(n, 4) for n in (1, 2, 3, 4)]
    whole = call(n=2, extra_body={"seed": 1}).data
    assert {each.index: each.b64_json for each in completed} == {n: whole[n].b64_json for n in (0, 1)}
    assert {(each.size, each.output_format, each.background) for each in completed} == {("64x48", "png", "opaque")}
    assert completed[0].usage.input_tokens > 0


def test_the_event_is_named_as_its_type(painter_url):
    reply = httpx.post(f"{painter_url}/v1/images/generations", json=CIRCLE | {"stream": True, "steps": 1})
    blocks = [block.split("\n") for block in reply.text.split("\n\n") if block]
    assert [name for name, _ in blocks] == ["event: image_generation.progress", "event: image_generation.completed"]
    assert [json.loads(data[6:])["type"] for _, data in blocks] == [name[7:] for name, _ in blocks]


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"size": "17x32"}, "size", "multiple of 16"),
        ({"size": "1024x1024"}, "size", "at most 256"),
        ({"size": "large"}, "size", "WIDTHxHEIGHT"),
        ({"size": "0x16"}, "size", "WIDTHxHEIGHT"),
        ({"size": "16x16", "extra_body": {"width": 16}}, "size", "give one of them"),
        ({"extra_body": {"width": 17}}, "width", "multiple of 16"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 9}, "n", "less than or equal to 8"),
        ({"quality": "high"}, "quality", "has no 'quality'"),
        ({"background": "transparent"}, "background", "has no 'background'"),
        ({"style": "vivid"}, "style", "unknown field"),
        ({"moderation": "low"}, "moderation", "unknown field"),
        ({"output_format": "gif"}, "output_format", "png, jpeg, webp"),
        ({"output_compression": 50}, "output_compression", "for jpeg and webp"),
        ({"output_format": "jpeg", "output_compression": 101}, "output_compression", "less than or equal to 100"),
        ({"response_format": "file"}, "response_format", "'b64_json' or 'url'"),
        ({"partial_images": 1}, "partial_images", "must be 0"),
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"prompt": " \n"}, "prompt", "only blanks"),
        ({"extra_body": {"seed": 2**63}}, "seed", "at most"),
        ({"extra_body": {"seed": -1}}, "seed", "at least 0"),
        ({"extra_body": {"seed": 1.5}}, "seed", "an integer"),
        ({"extra_body": {"stepz": 3}}, "stepz", "did you mean 'steps'"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(generate, fields, param, hint):
    found, message = refusal(generate, **fields)
    assert (found, hint in message) == (param, True), (found, message)


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"image": b"just text"}, "image.0", "not a picture"),
        ({"image": [RED, b""]}, "image.1", "there are none"),
        ({"image": RED[:40]}, "image.0", "cannot be decoded"),
        ({"image": []}, "image", "at least 1"),
        ({"image": [RED] * 33}, "image.32", "more than the 32"),
        ({"mask": RED}, "mask", "pictures are sent as 'image'"),
        ({"input_fidelity": "high"}, "input_fidelity", "unknown field"),
        ({"size": "17x32"}, "size", "multiple of 16"),
        ({"n": 9}, "n", "less than or equal to 8"),
        ({"extra_body": {"seed": "one"}}, "seed", "an integer"),
        ({"extra_body": {"seed": 2**63}}, "seed", "at most"),
        ({"extra_body": {"stream": "maybe"}}, "stream", "boolean"),
    ],
)
def test_what_cannot_be_is_refused_in_a_form(edit, fields, param, hint):
    found, message = refusal(edit, **fields)
    assert (found, hint in message) == (param, True), (found, message)


@pytest.mark.parametrize("image", ["/etc/passwd", "file:///etc/passwd", "http://169.254.169.254/", "data:,x", 7, [7]])
def test_pictures_in_json_are_data_and_nothing_else(painter_url, image):
    reply = httpx.post(f"{painter_url}/v1/images/edits", json=CIRCLE | {"image": image})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("image")


def test_a_form_from_a_page_of_another_origin_is_refused(painter_url):
    reply = httpx.post(
        f"{painter_url}/v1/images/edits",
        data=CIRCLE,
        files={"image": RED},
        headers={"origin": "https://elsewhere.example"},
    )
    assert reply.status_code == 400
    assert "other origins" in reply.json()["error"]["message"]


def test_model_without_the_route_is_refused(http):
    reply = http.post("/v1/images/generations", json={"model": "speaker", "prompt": "A circle."})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


def test_one_request_that_fails_ends_all(generate, painter, eventually):
    fields = {"n": 4, "extra_body": {"fail_at": 2}}
    with pytest.raises(openai.InternalServerError, match="painter"):
        generate(**fields)
    assert eventually(lambda: painter.open_requests == 0)
    with pytest.raises(openai.APIError, match="painter"):
        list(generate(**fields, stream=True))
    assert eventually(lambda: painter.open_requests == 0)


def test_client_that_leaves_a_stream_cancels_all_its_requests(generate, painter, eventually):
    stream = generate(n=3, stream=True, extra_body=SLOW)
    next(iter(stream))
    assert painter.open_requests == 3
    stream.close()
    assert eventually(lambda: painter.open_requests == 0)


def test_client_that_leaves_before_the_answer_cancels(painter_client, painter, eventually):
    with pytest.raises(openai.APITimeoutError):
        painter_client.with_options(timeout=0.3).images.generate(**CIRCLE, n=3, extra_body=SLOW)
    assert eventually(lambda: painter.open_requests == 0)


def test_a_second_run_gives_the_same_after_others_ran_between(generate, edit):
    first = generate(extra_body={"seed": 9}).data[0].b64_json
    edit([RED, BLUE], n=2, extra_body={"seed": 9})
    assert generate(extra_body={"seed": 9}).data[0].b64_json == first
