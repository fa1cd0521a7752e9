"""Requests to segments and pictures in the sizes that the model takes. Runs in the frontend; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_bagel.config import BagelConfig
from mstar_bagel.contents import Contents, Floats, sort_contents
from mstar_bagel.parameters import COMPARED, DEFAULT_LENGTH, resolved
from mstar_bagel.prompts import THINK_TO_ANSWER, THINK_TO_PAINT
from mstar_bagel.renderer import BagelRenderer
from mstar_bagel.tokenizer import BagelTokenizer
from mstar_bagel.vision.pictures import Picture, fit
from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Content, Prepared

Array = NDArray[Any]


class BagelProcessor:
    """Prepares for both tasks, since only the machine knows which is asked for: pictures as both encoders see them, and
    the prompts of both ways of thinking. Unless the client says what it wants, a text alone is painted, and what is
    said of a picture is answered.
    """

    def __init__(self, config: BagelConfig, checkpoint: Path) -> None:
        self._config = config
        self._tokenizer = BagelTokenizer(checkpoint, config.ids)

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """Texts to segments int64 [ids], pictures fitted; raises `InvalidRequest` naming the field."""
        contents = sort_contents(content)
        settled = resolved(params, editing=bool(contents.pictures))
        fitted = [fit(picture, self._config.transforms.vae) for picture in contents.pictures]
        settled |= self._size(settled, fitted)
        inputs: dict[str, list[Array]] = {
            "content": self._items(contents, fitted if settled["vae_resize"] else contents.pictures),
            **({"pictures": list(fitted)} if fitted else {}),
            **self._thinking(settled),
            **self._noises(contents, settled, fitted),
        }
        settled |= self._lengths(inputs, settled) | {COMPARED: _compared(contents, settled)}
        outputs = frozenset({"text" if contents.pictures else "image"})
        return Prepared(inputs=inputs, params=settled, outputs=outputs)

    def render(self, prepared: Prepared) -> BagelRenderer:
        """A renderer for one request."""
        return BagelRenderer(self._config, self._tokenizer, prepared)

    def _items(self, contents: Contents, looked_at: Sequence[Picture]) -> list[Array]:
        """Segments and pictures as the ViT sees them, in the client's order."""
        pictures = iter(looked_at)
        return [
            self._segment(item) if isinstance(item, str) else fit(next(pictures), self._config.transforms.vit)
            for item in contents.items
        ]

    def _segment(self, text: str) -> NDArray[np.int64]:
        return np.array(self._tokenizer.segment(text), np.int64)

    def _thinking(self, params: Mapping[str, Any]) -> dict[str, list[Array]]:
        if not params["think"]:
            return {}
        prompts = {"think_to_answer": THINK_TO_ANSWER, "think_to_paint": THINK_TO_PAINT}
        return {name: [self._segment(prompt)] for name, prompt in prompts.items()}

    def _size(self, params: Mapping[str, Any], fitted: Sequence[Picture]) -> dict[str, int]:
        """Height and width of the picture to be made: what is asked for, else the last given picture's."""
        longest = self._config.longest_side
        sides = dict(zip(("height", "width"), fitted[-1].shape if fitted else (longest, longest), strict=False))
        for name, side in sides.items():
            wanted = params[name]
            multiple = self._config.pixels_per_token
            if wanted is not None and wanted % multiple:
                near = max(round(wanted / multiple), 1) * multiple
                raise InvalidRequest(
                    f"{name!r} must be a multiple of {multiple}, got {wanted}; the nearest is {near}", param=name
                )
            sides[name] = side if wanted is None else wanted
        return sides

    def _noises(
        self, contents: Contents, params: Mapping[str, Any], fitted: Sequence[Picture]
    ) -> dict[str, list[Floats]]:
        """The given noises, of the shapes of what they stand for."""
        rows, columns = self._config.grid(params["height"], params["width"])
        scale, channels = self._config.vae.downsample, self._config.vae.channels
        posterior = [(channels, picture.shape[0] // scale, picture.shape[1] // scale) for picture in fitted]
        wanted: dict[str, list[tuple[int, ...]]] = {
            "noise": [(rows * columns, self._config.latent_width)],
            "posterior_noise": [*posterior],
        }
        for name, given in contents.noises.items():
            shapes = [array.shape for array in given]
            if shapes != wanted[name]:
                raise InvalidRequest(f"{name!r} has shapes {shapes}, here {wanted[name]} are needed", param=name)
        return contents.noises

    def _lengths(self, inputs: Mapping[str, Sequence[Array]], params: Mapping[str, Any]) -> dict[str, int]:
        """How much may be written: what is asked for, else the default or what there is room for.

        Texts take a position each id, pictures one each time they are seen, and one is the picture's that is made.
        """
        positions = self._config.llm.positions
        read = [*inputs["content"], *inputs.get("think_to_answer", ()), *inputs.get("think_to_paint", ())]
        room = positions - sum(len(each) if each.ndim == 1 else 2 for each in read) - 1
        if room < 1:
            raise InvalidRequest(f"'input' is too long: the model knows {positions} positions", param="input")
        lengths = {}
        for name in ("max_tokens", "max_think_tokens"):
            wanted = min(DEFAULT_LENGTH, room) if params[name] is None else params[name]
            if wanted > room:
                raise InvalidRequest(
                    f"{name!r} of {wanted} exceeds the model's {positions} positions with this input; "
                    f"at most {room} fit",
                    param=name,
                )
            lengths[name] = wanted
        return lengths


def _compared(contents: Contents, params: Mapping[str, Any]) -> list[str]:
    """Which contexts lack something that the main one has: the last text, the pictures, both of them the thought."""
    text = params["think"] or isinstance(contents.items[-1], str)
    image = (params["think"] or bool(contents.pictures)) and params["img_scale"] > 1
    differ = {"text": text, "image": image}
    return [name for name in differ if differ[name] and params["text_scale"] > 1]
