"""`mstar_core.Engine`: one model in this process, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mstar_core.client.service import Service
from mstar_core.spec.content import Audio, Content, Image, Tensor, Text, Video
from mstar_core.spec.placement import Placement, load_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mstar_core.plugins.registry import Registry


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
        """All sound, joined; None when there is none."""
        pieces = [content for content in self.contents if isinstance(content, Audio)]
        return Audio(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate) if pieces else None

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures."""
        return tuple(content for content in self.contents if isinstance(content, Image))

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Arrays by name; of several with one name the last."""
        return {content.name: content.array for content in self.contents if isinstance(content, Tensor)}


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
        self, content: str | Content | Sequence[Content], *, outputs: Sequence[str] = (), **parameters: Any
    ) -> Result:
        """Run one request to its end. `parameters` are the model's own and `seed`; raises `RequestError`."""
        ticket = self.service.submit(self.model, _contents(content), parameters, outputs=frozenset(outputs) or None)
        try:
            contents = tuple(ticket)
        except BaseException:
            ticket.cancel()
            raise
        assert ticket.end is not None
        return Result(contents, ticket.end.reason, ticket.end.usage)

    def stream(
        self, content: str | Content | Sequence[Content], *, outputs: Sequence[str] = (), **parameters: Any
    ) -> Iterator[Content]:
        """Content as it is made. Leaving the loop early, by `break` or an exception, cancels the request."""
        ticket = self.service.submit(self.model, _contents(content), parameters, outputs=frozenset(outputs) or None)
        try:
            yield from ticket
        finally:
            ticket.cancel()

    def close(self) -> None:
        """Stop the model's threads and free its memory."""
        self.service.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _contents(content: str | Content | Sequence[Content]) -> list[Content]:
    if isinstance(content, str):
        return [Text(content)]
    if isinstance(content, (Text, Audio, Image, Video, Tensor)):
        return [content]
    return list(content)
