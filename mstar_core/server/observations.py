"""Fields of the routes for clips and worlds: what was seen, tensors by name, the model's parameters; all at top level.

    "video": base64 of a file | {"data": ..., "frames": n} | {"file": NAME, "frames": n} | {"shape", "rate", "data"}
    "image": base64 of a file | {"data": ...} | {"file": NAME} | {"shape", "data"}
    "goal": as `image`, or a tensor
    TENSOR: nested lists of numbers | {"dtype", "shape", "data"} | {"file": NAME, "key": ...}
    "tensors": {name: tensor, ...}
    PARAMETER: its value

TENSOR is `frames`, `states`, `actions` or an input that the model declares; `tensors` takes any name, and the model
judges it. Lists become the dtype that the model declares for its input of that name, else float32. A file of a form
that bears the name of such a field, and that nothing names, is that field. `parts` has the forms in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from mstar_core.client.service import ServedModel
from mstar_core.errors import InvalidRequest
from mstar_core.media.sniff import IMAGES, kind_of
from mstar_core.media.tensors import LISTED_DTYPES
from mstar_core.server.answers import Order
from mstar_core.server.body import shown
from mstar_core.server.numbers import array_from_lists, require_finite
from mstar_core.server.parts import PartReader, base64_bytes
from mstar_core.server.served import require_modality, unknown_field
from mstar_core.spec.content import Content, Image, Tensor
from mstar_core.spec.params import check_parameters

_FILE: JsonDict = {"type": ["string", "object"], "contentEncoding": "base64"}
_TENSOR: JsonDict = {"type": ["array", "object"]}
_GOAL: JsonDict = {"type": ["string", "array", "object"], "contentEncoding": "base64"}


class ObservationFields(BaseModel):
    """The fields of every such route. What else a body has is an input or a parameter of its model."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str
    video: Any = Field(None, description="The clip that was seen.", json_schema_extra=_FILE)
    image: Any = Field(None, description="The picture that was seen.", json_schema_extra=_FILE)
    frames: Any = Field(None, description="uint8 [frames, height, width, 3].", json_schema_extra=_TENSOR)
    tensors: dict[str, Any] = Field(default_factory=dict, description="Further tensors, by name.")
    timeout: float = Field(default_factory=float, gt=0, allow_inf_nan=False)


class WorldFields(ObservationFields):
    """The fields of the routes of world models."""

    states: Any = Field(None, description="[states, components].", json_schema_extra=_TENSOR)
    actions: Any = Field(None, description="[actions, components].", json_schema_extra=_TENSOR)
    goal: Any = Field(None, description="A picture or a tensor of what is wanted.", json_schema_extra=_GOAL)
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One request to one of these routes, before its content is read. Made and used in a thread: decoding takes time.

    Every method raises `InvalidRequest` or `TooLarge` naming the field.
    """

    fields: ObservationFields
    model: ServedModel
    reader: PartReader

    def order(self, task: str, *, fixed: bool) -> Order:
        """The checked request. Content comes as video, image, tensors in the order of the fields, goal picture.

        `task` is what the model's parameter of that name is set to, where it has such a choice; when it is `fixed` the
        request cannot ask for another.
        """
        given = self._given()
        params = self._params(given)
        _settle_task(params, self.model, task, fixed=fixed)
        check_parameters(self.model.parameters, params)
        contents = list(self._contents({name: value for name, value in given.items() if name not in params}))
        if not contents:
            raise InvalidRequest("there is nothing to look at: give 'video', 'image' or a tensor", param="video")
        self.reader.uploads.require_all_named()
        return Order(
            model=self.fields.model,
            content=contents,
            params=params,
            timeout=self.fields.timeout or None,
            stream=isinstance(self.fields, WorldFields) and self.fields.stream,
        )

    def _given(self) -> dict[str, Any]:
        """The fields that are content or parameters; files that are named like content stand for it."""
        own = {name: value for name, value in self.fields if name in self.fields.model_fields_set - _CONTROLS}
        given = {**own, **(self.fields.model_extra or {})}
        files = [name for name in self.reader.uploads.unnamed if name in self._content_names and name not in given]
        return given | {name: {"file": name} for name in files}

    @property
    def _content_names(self) -> set[str]:
        inputs = {each.name for each in self.model.spec.inputs}
        return (set(type(self.fields).model_fields) - _CONTROLS - {"tensors"}) | inputs

    def _params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are parameters: of their names, and neither lists nor objects, which only content is."""
        declared = {parameter.name for parameter in self.model.parameters}
        known = declared | self._content_names | type(self.fields).model_fields.keys()
        for name in given:
            if name not in known:
                raise unknown_field(name, self.fields.model, known)
        structured = {name for name in self._content_names if isinstance(given.get(name), (list, Mapping))}
        return {name: value for name, value in given.items() if name in declared - structured}

    def _contents(self, given: Mapping[str, Any]) -> Iterator[Content]:
        """The content of fields that are no parameters."""
        goal = self._goal(given["goal"]) if "goal" in given else None
        if "video" in given:
            yield self._video(given["video"])
        if "image" in given:
            yield self._taken(self._image(given["image"], "image"), "image")
        for name, value in given.items():
            if name not in (*_FILES, "goal", "tensors"):
                yield self._tensor(name, value, name)
        for name, value in self.fields.tensors.items():
            if name in given:
                raise InvalidRequest(f"the tensor {name!r} is given twice", param=f"tensors.{name}")
            yield self._tensor(name, value, f"tensors.{name}")
        if goal is not None:
            yield goal

    def _video(self, value: object) -> Content:
        if isinstance(value, str):
            return self._taken(self.reader.video_file(base64_bytes(value, "video"), "video"), "video")
        return self._taken(self.reader.video(_object(value, "video", "video"), "video"), "video")

    def _image(self, value: object, at: str) -> Image:
        if isinstance(value, str):
            return self.reader.image_file(base64_bytes(value, at), at)
        return self.reader.image(_object(value, at, "image"), at)

    def _goal(self, value: object) -> Content:
        """A picture or a tensor: lists, and objects with a dtype or key, are tensors; what a file is, its bytes say."""
        if isinstance(value, list) or (isinstance(value, Mapping) and _is_tensor(value)):
            return self._tensor("goal", value, "goal")
        if isinstance(value, Mapping) and "shape" not in value:
            data, _ = self.reader.payload(value, "goal")
            if kind_of(data) not in IMAGES:
                return self._tensor("goal", value, "goal")
        return self._taken(self._image(value, "goal"), "goal")

    def _tensor(self, name: str, value: object, at: str) -> Content:
        dtype = next((each.dtype for each in self.model.spec.inputs if each.name == name), "")
        dtype = dtype if dtype in LISTED_DTYPES else "float32"
        if isinstance(value, list):
            return self._taken(Tensor(name, array_from_lists(value, dtype, at)), at)
        part = _object(value, at, "tensor")
        if "name" in part:
            raise InvalidRequest(f"unknown field '{at}.name': the tensor is {name!r} by its place", param=f"{at}.name")
        listed = {"dtype": dtype} if isinstance(part.get("data"), list) else {}
        tensor = self.reader.tensor({**listed, **part, "name": name}, at)
        require_finite(tensor.array, at)
        return self._taken(tensor, at)

    def _taken(self, content: Content, at: str) -> Content:
        require_modality(self.model, content, at)
        return content


_CONTROLS = frozenset({"model", "timeout", "stream"})
_FILES = ("video", "image")


def _settle_task(params: dict[str, Any], model: ServedModel, task: str, *, fixed: bool) -> None:
    choices = next((each.choices for each in model.parameters if each.name == "task"), ())
    if task in choices and params.setdefault("task", task) != task and fixed:
        raise InvalidRequest(f"this route is for the task {task!r}, not {shown(params['task'])}", param="task")


def _is_tensor(value: Mapping[str, Any]) -> bool:
    return bool({"dtype", "key"} & value.keys()) or isinstance(value.get("data"), list)


def _object(value: object, at: str, kind: str) -> Mapping[str, Any]:
    """A part whose type follows from its field."""
    if isinstance(value, Mapping) and value.get("type", kind) == kind:
        return value
    forms = "nested lists of numbers or an object" if kind == "tensor" else "base64 of a file or an object"
    raise InvalidRequest(f"{at!r} must be {forms} of a {kind}, got {shown(value)}", param=at)
