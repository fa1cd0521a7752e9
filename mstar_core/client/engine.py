"""`mstar_core.Engine`: one model in this process, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mstar_core.client.files import write_audio, write_images, write_tensors
from mstar_core.client.service import Service
from mstar_core.media.tensors import by_name
from mstar_core.spec.content import Audio, Content, Image, Piece, Progress, Tensor, Text, Video
from mstar_core.spec.placement import Placement, load_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mstar_core.client.ticket import Ticket
    from mstar_core.plugins.registry import Registry

Input: TypeAlias = "str | Content | Sequence[str | Content]"
"""What a request says: a text, a piece of content, or several of both."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """All that a request produced, why it ended (`stop`, `length`, ...), and its counts."""

    contents: tuple[Content, ...]
    finish_reason: str
    usage: Mapping[str, int]

    @property
    def text(self) -> str:
        """All text, joined."""
        return "".join(content.text for content in self.contents if isinstance(content, Text))

    @property
    def audio(self) -> Audio | None:
        """All sound, joined: `samples` float32 [n] at `rate` Hz; None when there is none."""
        pieces = [content for content in self.contents if isinstance(content, Audio)]
        return Audio(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate) if pieces else None

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures."""
        return tuple(content for content in self.contents if isinstance(content, Image))

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Arrays by name; those made step by step, or several times, along a new first axis, [steps, ...]."""
        return by_name(self.contents)

    def write_audio(self, path: str | Path) -> None:
        """Write the sound to a file whose suffix names the format; raises `ValueError` when there is none."""
        audio = self.audio
        if audio is None:
            raise ValueError(f"there is no audio to write to {path}")
        write_audio(Path(path), audio)

    def write_images(self, path: str | Path) -> list[Path]:
        """Write the pictures to a file whose suffix names the format; several to `NAME-1.png`, `NAME-2.png`, ...

        Returns the paths; raises `ValueError` when there is no picture.
        """
        if not self.images:
            raise ValueError(f"there is no image to write to {path}")
        return write_images(Path(path), self.images)

    def write_tensors(self, path: str | Path) -> None:
        """Write the tensors to a safetensors file; raises `ValueError` when there are none."""
        tensors = self.tensors
        if not tensors:
            raise ValueError(f"there are no tensors to write to {path}")
        write_tensors(Path(path), tensors)

    def __repr__(self) -> str:
        parts = [f"{len(self.text)} characters"] if self.text else []
        if self.audio is not None:
            parts.append(f"{self.audio.samples.size / self.audio.rate:.2f} s of audio")
        parts += [f"{len(self.images)} images"] if self.images else []
        parts += [f"tensors {', '.join(self.tensors)}"] if self.tensors else []
        return f"<Result: {'; '.join(parts) or 'nothing'}; finish_reason {self.finish_reason!r}>"


class Engine:
    """Loads a model and answers requests until it is closed.

        with Engine("speaker") as engine:
            result = engine.generate("Hello.", seed=1)
            for content in engine.stream("Hello again.", seed=2): ...

    `checkpoint` is a name on the model's card, a directory or a hub id; `placement` a YAML file or a `Placement`.
    Requests may come from several threads. Raises `PluginError`, `CheckpointError`, `PlacementError` or `Unavailable`
    when the model cannot be loaded.
    """

    def __init__(
        self,
        model: str,
        *,
        checkpoint: str | Path | None = None,
        placement: str | Path | Placement | None = None,
        registry: Registry | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.model = model
        placed = placement if isinstance(placement, Placement) or placement is None else load_placement(Path(placement))
        self.service = Service.start(
            [model],
            checkpoints={model: str(checkpoint)} if checkpoint else None,
            placement=placed,
            registry=registry,
            progress=progress,
        )

    def generate(
        self,
        input: Input,
        /,
        *,
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **parameters: Any,
    ) -> Result:
        """Run one request to its end; Ctrl-C cancels it.

        `on_progress` is called, in this thread, as often as the model says how far an output has come.

        `outputs` are the modalities wanted (default: what the model's processor chooses, or all that it makes),
        `timeout` the seconds after which the request fails with `DeadlineExceeded` (default: the model's own deadline),
        `parameters` the model's own and `seed`. Raises `InvalidRequest` naming the field, or another `RequestError`.
        """
        ticket = self.submit(input, outputs=outputs, timeout=timeout, **parameters)
        try:
            return finished(ticket, ticket, on_progress)
        except BaseException:  # also KeyboardInterrupt: nobody will take the rest
            ticket.cancel()
            raise

    def stream(
        self,
        input: Input,
        /,
        *,
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Iterator[Piece]:
        """Content as it is made, and `Progress` on the way to it; the request is sent when the iteration begins.

        Leaving the loop early, by `break` or an exception, cancels the request.
        """
        ticket = self.submit(input, outputs=outputs, timeout=timeout, **parameters)
        try:
            yield from ticket
        finally:
            ticket.cancel()

    def submit(
        self,
        input: Input,
        /,
        *,
        outputs: Iterable[str] | None = None,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Ticket:
        """Send a request and return at once: iterate the ticket for content, here or in an event loop."""
        wanted = None if outputs is None else frozenset(outputs)
        return self.service.submit(self.model, _contents(input), parameters, outputs=wanted, timeout=timeout)

    def close(self) -> None:
        """Stop the model's threads and free its memory; requests still open end as unavailable."""
        self.service.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def finished(ticket: Ticket, pieces: Iterable[Piece], on_progress: Callable[[Progress], None] | None = None) -> Result:
    """Collect the content of `pieces`, which iterates `ticket` to its end."""
    collected = []
    for piece in pieces:
        if not isinstance(piece, Progress):
            collected.append(piece)
        elif on_progress is not None:
            on_progress(piece)
    assert ticket.end is not None
    return Result(tuple(collected), ticket.end.reason, ticket.end.usage)


def _contents(given: Input) -> list[Content]:
    pieces = [given] if isinstance(given, (str, Text, Audio, Image, Video, Tensor)) else given
    return [Text(piece) if isinstance(piece, str) else piece for piece in pieces]
