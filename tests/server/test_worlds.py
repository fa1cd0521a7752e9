"""The routes for clips and world models, with the toy world behind the real runtime."""

import base64
import json
import threading

import httpx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from mstar_core.client.service import Service
from mstar_core.media import MediaLimits
from mstar_core.server.settings import ServerSettings
from mstar_core.spec.content import Image, Tensor, Video
from mstar_core.testing import scripted, toy_world
from mstar_core.testing.clips import clip_file, image_file, moving
from mstar_core.testing.plugins import registry_with
from mstar_core.testing.server import http_server

EMBEDDINGS, ROLLOUTS, PLANS = toy_world.ROUTES
ASK = {"model": "toy-world"}
PICTURE = moving(3)[2]
STATES = [[1, 2, 3, 4, 5, 6, 7.5]]
CLIP = clip_file(moving())
LIMITS = MediaLimits(frame_pixels=10_000, frames=50)


class Spy:
    """A service that keeps what it was asked for."""

    def __init__(self, service):
        self._service = service
        self.seen = []

    def __getattr__(self, name):
        return getattr(self._service, name)

    def submit(self, model, content, params, **others):
        self.seen.append((content, params, others))
        return self._service.submit(model, content, params, **others)


@pytest.fixture(scope="module")
def running():
    with Service.start(["toy-world", "scripted"], registry=registry_with(toy_world, scripted)) as service:
        yield Spy(service)


@pytest.fixture(scope="module")
def world_url(running):
    with http_server(running, ServerSettings(port=0, drain_s=5, media=LIMITS, max_body_bytes=8 * 2**20)) as url:
        yield url


@pytest.fixture
def http(world_url, running):
    running.seen.clear()
    with httpx.Client(base_url=world_url, timeout=30) as client:
        yield client


def b64(data):
    return base64.b64encode(data).decode()


def tensor(array):
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": b64(array.tobytes())}


def array_of(part):
    return np.frombuffer(base64.b64decode(part["data"]), part["dtype"]).reshape(part["shape"])


def events(text):
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [(name, json.loads(data)) for name, data in (b.removeprefix("event: ").split("\ndata: ") for b in blocks)]


def content(http, running, route=ROLLOUTS, **fields):
    """What the model gets for these fields."""
    answer = http.post(route, json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return running.seen[-1][0]


def refusal(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


CLIPS = {
    "base64 text": b64(CLIP),
    "file in an object": {"data": b64(CLIP)},
    "with its type": {"type": "video", "data": b64(CLIP)},
    "frames": {"rate": 10, "shape": [6, 32, 48, 3], "data": b64(moving().tobytes())},
}


@pytest.mark.parametrize("route", toy_world.ROUTES)
@pytest.mark.parametrize("video", CLIPS.values(), ids=CLIPS)
def test_clip_in_each_form_reaches_the_model(http, running, route, video):
    (clip,) = content(http, running, route, video=video)
    assert isinstance(clip, Video)
    assert (clip.frames.shape, clip.rate) == ((6, 32, 48, 3), 10.0)


def test_frames_of_a_file_are_picked_while_it_is_decoded(http, running):
    (clip,) = content(http, running, video={"data": b64(CLIP), "frames": 2})
    assert len(clip.frames) == 2
    assert clip.frames[1, -1, -1, 2] == pytest.approx(100, abs=8)


@pytest.mark.parametrize(
    "image",
    [b64(image_file(PICTURE)), {"data": b64(image_file(PICTURE))}, {"shape": [32, 48, 3], "data": b64(PICTURE)}],
)
def test_picture_in_each_form_reaches_the_model(http, running, image):
    (picture,) = content(http, running, image=image)
    assert isinstance(picture, Image)
    assert np.array_equal(picture.pixels, PICTURE)


TENSORS = {
    "lists": STATES,
    "values": tensor(np.array(STATES, np.float32)),
    "lists with a dtype": {"dtype": "float32", "shape": [1, 7], "data": STATES},
    "safetensors": {"data": b64(save({"states": np.array(STATES, np.float32), "x": np.zeros(1)}))},
    "a key of safetensors": {"data": b64(save({"a": np.zeros(1), "b": np.array(STATES, np.float32)})), "key": "b"},
}


@pytest.mark.parametrize("states", TENSORS.values(), ids=TENSORS)
def test_tensor_in_each_form_reaches_the_model(http, running, states):
    for fields in ({"states": states}, {"tensors": {"states": states}}):
        (given,) = content(http, running, **fields)
        assert (given.name, given.array.dtype, given.array.tolist()) == ("states", np.float32, STATES)


def test_lists_become_the_dtype_that_the_model_declares(http, running):
    mask, states = content(http, running, EMBEDDINGS, mask=[3, 1], tensors={"states": STATES})
    assert (mask.name, mask.array.dtype, mask.array.tolist()) == ("mask", np.int64, [3, 1])
    assert states.array.dtype == np.float32


def test_number_in_frames_is_the_parameter_and_an_object_the_tensor(http, running):
    frames = tensor(moving(2))
    answer = http.post(EMBEDDINGS, json=ASK | {"video": b64(CLIP), "frames": 2})
    assert array_of(answer.json()["outputs"][0])[0] == 2 * 32 * 48 * 3
    (given,) = content(http, running, EMBEDDINGS, frames=frames)
    assert (given.name, given.array.dtype, given.array.shape) == ("frames", np.uint8, (2, 32, 48, 3))


GOALS = {
    "picture": (b64(image_file(PICTURE)), Image),
    "picture in an object": ({"data": b64(image_file(PICTURE))}, Image),
    "pixels": ({"shape": [32, 48, 3], "data": b64(PICTURE)}, Image),
    "lists": ([[1.0, 2.0]], Tensor),
    "values": (tensor(np.ones((2, 2), np.float32)), Tensor),
    "tensor file": ({"data": b64(save({"goal": np.ones((2, 2), np.float32)}))}, Tensor),
}


@pytest.mark.parametrize(("goal", "kind"), GOALS.values(), ids=GOALS)
def test_goal_is_a_picture_or_a_tensor_by_what_it_is(http, running, goal, kind):
    *_, last = content(http, running, PLANS, image=b64(image_file(PICTURE)), states=STATES, goal=goal)
    given = running.seen[-1][0]
    assert isinstance(given[-1] if kind is Image else given[2], kind)
    assert len(given) == 3
    assert isinstance(last, Image if kind is Image else Tensor)


def test_content_comes_as_video_image_tensors_goal(http, running):
    picture = b64(image_file(PICTURE))
    given = content(
        http,
        running,
        goal=picture,
        tensors={"mask": [1]},
        actions=STATES,
        image=picture,
        states=STATES,
        video=b64(CLIP),
    )
    kinds = [piece.name if isinstance(piece, Tensor) else type(piece).__name__ for piece in given]
    assert kinds == ["Video", "Image", "states", "actions", "mask", "Image"]


def test_parameters_and_the_routes_task_reach_the_model(http, running):
    for route, task in zip(toy_world.ROUTES, toy_world.TASKS, strict=True):
        answer = http.post(route, json=ASK | {"tensors": {"states": STATES}, "horizon": 2, "seed": 7, "timeout": 9})
        assert answer.status_code == 200, answer.text
        _, params, others = running.seen[-1]
        assert params == {"task": task, "horizon": 2, "seed": 7}
        assert others["timeout"] == 9


def test_embeddings_take_another_task_and_the_world_routes_do_not(http, running):
    answer = http.post(EMBEDDINGS, json=ASK | {"video": b64(CLIP), "task": "rollout"})
    assert answer.json()["finish_reason"] == "length"
    error = refusal(http.post(PLANS, json=ASK | {"video": b64(CLIP), "task": "rollout"}))
    assert (error["param"], error["message"]) == ("task", "this route is for the task 'plan', not \"rollout\"")


def test_whole_answer_lists_every_tensor_with_its_step(http):
    answer = http.post(ROLLOUTS, json=ASK | {"states": STATES, "horizon": 3}).json()
    assert (answer["model"], answer["finish_reason"]) == ("toy-world", "length")
    assert [(part["name"], part["step"]) for part in answer["outputs"]] == [("latents", step) for step in range(3)]
    assert array_of(answer["outputs"][2]).tolist() == [2.0, sum(STATES[0])]


def test_stream_has_an_event_for_each_step_and_then_the_rest(http):
    answer = http.post(PLANS, json=ASK | {"states": STATES, "refinements": 3, "seed": 1, "stream": True})
    *made, (last, end) = events(answer.text)
    assert [(name, part["name"], part.get("step")) for name, part in made] == [
        *(("step", "energies", step) for step in range(3)),
        ("output", "actions", None),
    ]
    assert array_of(made[-1][1]).tolist() == [[1.0] * 7] * 3
    assert (last, end["finish_reason"]) == ("end", "stop")


def test_steps_are_sent_while_later_ones_are_made(http, running):
    fields = ASK | {"states": STATES, "horizon": 100_000, "delay_ms": 20, "stream": True}
    with http.stream("POST", ROLLOUTS, json=fields) as answer:
        pieces = answer.iter_text()  # kept: httpx closes the connection with the iterator
        assert next(pieces).startswith("event: step\n")
        assert running.open_requests == 1
    assert gone(running)


def gone(running):
    """Whether nothing is left within a second."""
    for _ in range(100):
        if running.open_requests == 0:
            return True
        threading.Event().wait(0.01)
    return False


def test_client_that_leaves_before_a_whole_answer_cancels(http, running):
    with pytest.raises(httpx.ReadTimeout):
        http.post(ROLLOUTS, json=ASK | {"states": STATES, "horizon": 1000, "delay_ms": 20}, timeout=0.5)
    assert gone(running)


def test_step_that_fails_ends_the_stream_with_an_error_and_is_500_without(http):
    fields = ASK | {"states": STATES, "horizon": 5, "fail_at": 2}
    answer = http.post(ROLLOUTS, json=fields | {"stream": True})
    if answer.status_code == 200:  # the failure may come before the first step was sent
        *steps, (last, told) = events(answer.text)
        assert [name for name, _ in steps] == ["step"] * len(steps)
        assert (len(steps) <= 2, last, told["error"]["code"]) == (True, "error", "node_failed")
    else:
        assert refusal(answer, 500)["code"] == "node_failed"
    assert refusal(http.post(ROLLOUTS, json=fields), 500)["code"] == "node_failed"


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/vnd.safetensors"])
def test_answer_as_safetensors_has_steps_together_and_the_rest_as_metadata(http, tmp_path, kind):
    headers = {"accept": kind, "x-request-id": "a-1"}
    answer = http.post(PLANS, json=ASK | {"states": STATES, "refinements": 4, "horizon": 2}, headers=headers)
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-mstar-finish-reason"] == "stop"
    assert {name: array.shape for name, array in load(answer.content).items()} == {
        "energies": (4, 3),
        "actions": (2, 7),
    }
    (tmp_path / "answer").write_bytes(answer.content)
    with safe_open(tmp_path / "answer", "numpy") as file:
        told = file.metadata()
    assert (told["id"], told["model"], told["finish_reason"]) == ("a-1", "toy-world", "stop")
    assert json.loads(told["usage"])["output_tokens"] == 0


def test_text_beside_tensors_is_in_the_metadata(http):
    answer = http.post(
        EMBEDDINGS, json=ASK | {"image": b64(image_file(PICTURE))}, headers={"accept": "application/octet-stream"}
    )
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    assert json.loads(header["__metadata__"]["outputs"]) == [{"type": "text", "text": "saw 1 things"}]


def test_single_step_keeps_its_axis_in_safetensors(http):
    answer = http.post(
        ROLLOUTS, json=ASK | {"states": STATES, "horizon": 1}, headers={"accept": "application/octet-stream"}
    )
    assert load(answer.content)["latents"].shape == (1, 2)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/octet-stream;q=0"])
def test_answer_is_json_unless_binary_is_asked_for(http, accept):
    answer = http.post(ROLLOUTS, json=ASK | {"states": STATES}, headers={"accept": accept})
    assert answer.headers["content-type"] == "application/json"


def test_stream_cannot_be_binary(http, running):
    headers = {"accept": "application/octet-stream"}
    assert (
        refusal(http.post(ROLLOUTS, json=ASK | {"states": STATES, "stream": True}, headers=headers))["param"]
        == "stream"
    )
    assert not running.seen


@pytest.mark.parametrize("form", ["lists", "base64", "form"])
def test_goal_of_realistic_size_goes_through(http, running, form):
    goal = np.random.default_rng(0).standard_normal((256, 1408)).astype(np.float32)
    assert goal.nbytes > 1.4e6
    if form == "form":
        fields = {"request": json.dumps(ASK | {"states": STATES})}
        answer = http.post(PLANS, data=fields, files={"goal": save({"goal": goal})})
    else:
        value = goal.tolist() if form == "lists" else tensor(goal)
        answer = http.post(PLANS, json=ASK | {"states": STATES, "goal": value})
    assert answer.status_code == 200, answer.text[:300]
    given = next(piece for piece in running.seen[-1][0] if piece.name == "goal")
    assert np.array_equal(given.array, goal)


def test_files_of_a_form_are_the_fields_that_they_are_named_like_or_named_by(http, running):
    fields = ASK | {"states": {"file": "robot", "key": "pose"}, "image": {"file": "view"}}
    files = {
        "robot": save({"pose": np.array(STATES, np.float32), "x": np.zeros(1)}),
        "view": image_file(PICTURE),
        "actions": save({"a": np.ones((2, 7), np.float32)}),
        "goal": image_file(PICTURE, "jpeg"),
        "mask": save({"m": np.array([4], np.int64)}),
    }
    answer = http.post(ROLLOUTS, data={"request": json.dumps(fields)}, files=files)
    assert answer.status_code == 200, answer.text
    kinds = [getattr(piece, "name", type(piece).__name__) for piece in running.seen[-1][0]]
    assert kinds == ["Image", "states", "actions", "mask", "Image"]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({}, "video", "nothing to look at"),
        ({"model": None}, "model", "string"),
        ({"model": "toy-wrld"}, "model", "did you mean 'toy-world'"),
        ({"model": "scripted"}, "model", "does not serve /v1/world/rollouts; models that do: toy-world"),
        ({"stats": STATES}, "stats", "did you mean 'states'"),
        ({"horzon": 3}, "horzon", "did you mean 'horizon'"),
        ({"tensors": {"stats": STATES}}, "tensors.stats", "did you mean 'states'"),
        ({"tensors": [STATES]}, "tensors", "dictionary"),
        ({"tensors": {"states": STATES}, "states": STATES}, "tensors.states", "given twice"),
        ({"states": 5}, "states", "nested lists of numbers"),
        ({"states": None}, "states", "nested lists of numbers"),
        ({"states": []}, "states", "empty list"),
        ({"states": [[]]}, "states.0", "empty list"),
        ({"states": [[1, 2], [3]]}, "states.1", "a list of 2 like those before it, got 1 elements"),
        ({"states": [[1, 2], 3]}, "states.1", "a list of 2"),
        ({"states": [1, [2]]}, "states.1", "must be a number, got [2]"),
        ({"states": [[1, None]]}, "states.0.1", "must be a number, got null"),
        ({"states": [["1"]]}, "states.0.0", "must be a number"),
        ({"states": [[True]]}, "states.0.0", "must be a number, got true"),
        ({"states": [[1, 1e39]]}, "states.0.1", "finite in float32, got inf"),
        ({"states": [[10**400]]}, "states.0.0", "must be a number"),
        ({"states": json.loads("[" * 9 + "1" + "]" * 9)}, "states.0.0.0.0.0.0.0.0", "nested deeper than 8"),
        ({"mask": [1.0], "states": STATES}, "mask.0", "an integer that fits int64"),
        ({"mask": [2**63], "states": STATES}, "mask.0", "an integer that fits int64"),
        ({"states": tensor(np.array([[1.0, np.nan]], np.float32))}, "states.0.1", "finite in float32, got nan"),
        ({"states": {"dtype": "float32", "shape": [3], "data": "AAAA"}}, "states.data", "takes 12"),
        ({"states": {"dtype": "float23", "shape": [1], "data": "AAAA"}}, "states.dtype", "did you mean 'float32'"),
        ({"states": {"dtype": "float32", "shape": [2], "data": [1.0]}}, "states.shape", "the lists are [1]"),
        ({"states": {"data": "AAAA"}}, "states.data", "not tensors that can be read"),
        ({"states": {"dtype": "float32", "shape": [1]}}, "states.data", "'data' or 'file', got neither"),
        ({"states": {"name": "x", "data": [1.0]}}, "states.name", "by its place"),
        ({"states": {"file": "x"}}, "states.file", "files come as multipart/form-data"),
        ({"video": 5}, "video", "base64 of a file or an object of a video"),
        ({"video": None}, "video", "base64 of a file"),
        ({"video": "!"}, "video", "base64"),
        ({"video": ""}, "video", "not a video that can be read (there are none)"),
        ({"video": b64(b"text named .mp4")}, "video", "not a video that can be read"),
        ({"video": b64(CLIP[:100])}, "video", "cannot be decoded"),
        ({"video": "file:///etc/passwd"}, "video", "base64"),
        ({"video": "https://127.0.0.1/clip.mp4"}, "video", "base64"),
        ({"video": {"url": "https://127.0.0.1/clip.mp4"}}, "video.url", "unknown field"),
        ({"video": {"data": b64(CLIP), "frame": 2}}, "video.frame", "did you mean 'frames'"),
        ({"video": {"data": b64(CLIP), "frames": 0}}, "video.frames", "greater than or equal to 1"),
        ({"video": {"data": b64(CLIP), "file": "x"}}, "video.data", "got both"),
        ({"video": {"type": "image", "data": b64(CLIP)}}, "video", "of a video"),
        ({"image": b64(CLIP)}, "image", "not a picture that can be read"),
        ({"image": b64(image_file(PICTURE)[:60])}, "image", "cannot be decoded"),
        ({"goal": "AAAA", "states": STATES}, "goal", "not a picture"),
        ({"goal": {"data": "AAAA"}, "states": STATES}, "goal.data", "not tensors"),
        ({"goal": None, "states": STATES}, "goal", "base64 of a file"),
        ({"states": STATES, "horizon": 100_001}, "horizon", "at most 100000"),
        ({"states": STATES, "horizon": [1]}, "horizon", "an integer"),
        ({"states": STATES, "stream": 1}, "stream", "boolean"),
        ({"states": STATES, "timeout": 0}, "timeout", "greater than 0"),
        ({"states": STATES, "seed": 2**63}, "seed", str(2**63 - 1)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_field_that_cannot_be_is_named(http, running, fields, param, told):
    answer = http.post(ROLLOUTS, json=ASK | fields)
    error = refusal(answer, 404 if "did you mean 'toy-world'" in told else 400)
    assert error["param"] == param
    assert told in error["message"]
    assert not running.open_requests


def test_embeddings_know_no_stream_and_no_actions_but_the_models_inputs(http):
    error = refusal(http.post(EMBEDDINGS, json=ASK | {"video": b64(CLIP), "stream": True}))
    assert (error["param"], "unknown field 'stream'" in error["message"]) == ("stream", True)
    assert refusal(http.post(EMBEDDINGS, json=ASK | {"actions": STATES}))["param"] == "actions"


def test_media_over_a_limit_are_413_with_the_numbers(http, running):
    large = image_file(np.zeros((101, 100, 3), np.uint8))
    error = refusal(http.post(ROLLOUTS, json=ASK | {"image": b64(large)}), 413)
    assert (error["param"], error["code"]) == ("image", "too_large")
    assert "100 x 101 = 10100 pixels; at most 10000 are taken" in error["message"]
    error = refusal(http.post(ROLLOUTS, json=ASK | {"video": {"data": b64(clip_file(moving(51)))}}), 413)
    assert (error["param"], "more than 50 frames" in error["message"]) == ("video.data", True)
    assert not running.seen


def test_body_over_the_limit_is_413_as_json_and_as_a_form(http, running):
    large = b"\0" * (8 * 2**20 + 1)
    assert refusal(http.post(ROLLOUTS, content=large, headers={"content-type": "application/json"}), 413)
    assert refusal(http.post(ROLLOUTS, data={"request": json.dumps(ASK)}, files={"video": large}), 413)
    assert not running.seen


def test_nan_in_the_body_is_no_json(http):
    body = b'{"model": "toy-world", "states": [[NaN]]}'
    error = refusal(http.post(ROLLOUTS, content=body, headers={"content-type": "application/json"}))
    assert "not valid JSON" in error["message"]


def test_generate_serves_the_same_model(http, running):
    parts = [
        {"type": "video", "data": b64(CLIP), "frames": 3},
        {"type": "image", "data": b64(image_file(PICTURE))},
        {"type": "tensor", "name": "states", "data": STATES},
    ]
    fields = ASK | {"input": parts, "parameters": {"task": "encode"}}
    seen = load(http.post("/generate", json=fields, headers={"accept": "application/octet-stream"}).content)["latents"]
    assert seen[::2].tolist() == [3 * 32 * 48 * 3, 32 * 48 * 3, 7]


def test_schema_tells_the_fields_the_form_and_the_answers(http):
    paths = http.get("/openapi.json").json()["paths"]
    for route in toy_world.ROUTES:
        operation = paths[route]["post"]
        bodies = operation["requestBody"]["content"]
        fields = bodies["application/json"]["schema"]["properties"]
        assert {"model", "video", "image", "frames", "tensors"} <= fields.keys()
        assert ("stream" in fields) == ("actions" in fields) == (route != EMBEDDINGS)
        assert bodies["multipart/form-data"]["schema"]["required"] == ["request"]
        answers = operation["responses"]["200"]["content"]
        assert {"application/json", "application/vnd.safetensors", "text/event-stream"} <= answers.keys()
    assert len({paths[route]["post"]["operationId"] for route in toy_world.ROUTES}) == 3


def test_models_list_the_routes(http):
    assert http.get("/v1/models/toy-world").json()["routes"] == ["/generate", *toy_world.ROUTES]
