"""Requests of `vjepa2`: clips to pixels, masks to token numbers, what was emitted to tensors and text. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import InvalidRequest
from mstar_core.spec.content import Content, Prepared, Tensor, Text
from mstar_vjepa.clip.config import ClipConfig
from mstar_vjepa.clip.parameters import MOST_FRAMES
from mstar_vjepa.config import CHANNELS
from mstar_vjepa.contents import Array, Contents, checked_frames, checked_mask, checked_numbers, sort_contents
from mstar_vjepa.pictures import pixels_of_clip

_FORMS = ("frames", "pixels")
_MASKS = ("context_mask", "target_mask")

_OUTPUTS = {"encode": "latents", "predict": "predictions", "classify": "logits"}
"""The tensor that each task's walk emits."""


class ClipProcessor:
    """Prepares and renders; made once per served model, in the frontend."""

    def __init__(self, config: ClipConfig) -> None:
        self._config = config

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """Pixels `[frames, 3, height, width]` and masks; raises `InvalidRequest` naming the field."""
        contents = sort_contents(content, (*_FORMS, *_MASKS))
        pixels = self._pixels(contents, params["frames"])
        tokens = max(len(pixels) // self._config.patches.tubelet, 1) * self._config.patches.tokens
        inputs: dict[str, list[Array]] = {"pixels": [pixels]}
        for name in _MASKS:
            if name in contents.tensors:
                if params["task"] != "predict":
                    raise InvalidRequest(f"{name!r} is not for task {params['task']!r}", param=name)
                inputs[name] = [checked_mask(contents.tensors[name], name, tokens)]
        outputs = frozenset({"tensor", "text"} if params["task"] == "classify" else {"tensor"})
        return Prepared(inputs=inputs, params=params, outputs=outputs)

    def render(self, prepared: Prepared) -> ClipRenderer:
        """A renderer for one request."""
        return ClipRenderer(prepared, self._config)

    def _pixels(self, contents: Contents, wanted: int | None) -> NDArray[np.float32]:
        """The frames that are wanted, as the encoder takes them."""
        name = contents.one_of(_FORMS)
        if len(contents.pictures) + (name is not None) != 1:
            raise InvalidRequest(
                f"'input' must hold one clip: a video, an image, or a tensor {' or '.join(_FORMS)}", param="input"
            )
        patches, pictures = self._config.patches, self._config.pictures
        crop = (patches.height, patches.width)
        if name == "pixels":
            given = checked_numbers(contents.tensors[name], name, None, CHANNELS, *crop)
            return given[_picked(len(given), wanted)]
        frames = checked_frames(contents.tensors[name], name) if name else contents.pictures[0]
        frames = frames[_picked(len(frames), wanted)]
        return pixels_of_clip(frames, shortest=pictures.shortest, crop=crop, mean=pictures.mean, std=pictures.std)


class ClipRenderer:
    """Names the tensor after the task, and says what logits mean."""

    def __init__(self, prepared: Prepared, config: ClipConfig) -> None:
        self._name = _OUTPUTS[prepared.params["task"]]
        self._most = prepared.params.get("labels", 0)
        self._labels = config.head.labels if config.head else ()
        frames = len(prepared.inputs["pixels"][0])
        self._tokens = max(frames // config.patches.tubelet, 1) * config.patches.tokens

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """A tensor under its name, or the labels of logits."""
        return Text("\n".join(self._lines(value))) if modality == "text" else Tensor(self._name, value)

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Tokens of the clip; none are generated."""
        return {"input_tokens": self._tokens, "output_tokens": 0}

    def _lines(self, logits: NDArray[Any]) -> Iterator[str]:
        """The likeliest labels, each with its probability."""
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        for index in np.argsort(-logits, kind="stable")[: self._most]:
            yield f"{shares[index]:.4f} {self._labels[index]}"


def _picked(there: int, wanted: int | None) -> NDArray[np.int64]:
    """Places of the frames to take: `wanted` at equal distances from the first on (transformers, `sample_frames`)."""
    if wanted is None:
        if there > MOST_FRAMES:
            raise InvalidRequest(
                f"the clip has {there} frames, at most {MOST_FRAMES} are encoded; 'frames' picks some", param="frames"
            )
        return np.arange(there)
    if wanted > there:
        raise InvalidRequest(f"'frames' is {wanted}, but the clip has {there}", param="frames")
    return np.arange(wanted) * there // wanted
