"""What goes in and comes out of a model, in a client's terms: text, audio, images, video, named tensors.

Faces build these from HTTP bodies, files and Python values; a model's `Processor` turns them into tensors and back.
What goes in is in the client's order. In a conversation it bears a `role`, who said it, and the number of its
`message`, from 0; outside of one all is the `user`'s, in one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

Role: TypeAlias = Literal["system", "user", "assistant"]
"""Who said something: the operator, the person, the model."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text; as an output, the text that is new since the piece before."""

    text: str
    role: Role = field(default="user", kw_only=True)
    message: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono sound: `samples` float32 [n] in [-1, 1] at `rate` Hz; as an output, the samples that are new."""

    samples: NDArray[np.float32]
    rate: int
    role: Role = field(default="user", kw_only=True)
    message: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture: `pixels` uint8 [height, width, 3], RGB."""

    pixels: NDArray[np.uint8]
    role: Role = field(default="user", kw_only=True)
    message: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """A clip: `frames` uint8 [frames, height, width, 3], RGB, at `rate` frames a second; `audio` is its sound track."""

    frames: NDArray[np.uint8]
    rate: float
    audio: Audio | None = None
    role: Role = field(default="user", kw_only=True)
    message: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array of any dtype and shape.

    `step`, for an output of a model that makes such tensors one after the other (a simulated moment, a refinement of a
    plan): its number, from 0; None for one that is made once. Faces put steps of one name together, [steps, ...].
    """

    name: str
    array: Array
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the output that is being made has come: `done` of `total` steps.

    Walks emit it as an int64 [2] tensor of the modality `PROGRESS`. It is no output: no card lists it, no request asks
    for it, no renderer sees it. Faces that answer with wholes skip it.
    """

    done: int
    total: int


Content: TypeAlias = "Text | Audio | Image | Video | Tensor"

Piece: TypeAlias = "Content | Progress"
"""What a running request gives."""

MODALITIES: Mapping[type, str] = {Text: "text", Audio: "audio", Image: "image", Video: "video", Tensor: "tensor"}
"""The modality's name for each kind of content."""

MODALITY_NAMES = tuple(MODALITIES.values())

PROGRESS = "progress"
"""What walks emit `Progress` as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request ready for the runtime: its tensors by input name, its checked parameters, the modalities it wants."""

    inputs: Mapping[str, Sequence[Array]]
    params: Mapping[str, Any]
    outputs: frozenset[str] = field(default_factory=frozenset)


class Renderer(Protocol):
    """Turns one request's emitted tensors into content, in order. Made by `Processor.render`, used by one request."""

    def output(self, modality: str, value: Array) -> Content | None:
        """The content of one emitted tensor; None when nothing can be shown yet (half a character, say)."""
        ...

    def finish(self) -> Sequence[Content]:
        """What is still held back once everything was emitted."""
        ...

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """The counts a client is told, from the KV tokens that each walk appended."""
        ...


class Processor(Protocol):
    """What `mstar_processor` returns: the model's tokenizers and media transforms. Lives in the frontend; no torch."""

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """Content and checked parameters to tensors; raises `InvalidRequest` naming the field for what cannot be."""
        ...

    def render(self, prepared: Prepared) -> Renderer:
        """A renderer for one request."""
        ...
