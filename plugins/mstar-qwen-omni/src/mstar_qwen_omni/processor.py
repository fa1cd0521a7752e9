"""Requests to tensors. Runs in the frontend; needs `tokenizers`, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstar_core.errors import CheckpointError, InvalidRequest
from mstar_core.spec.content import Content, Prepared
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.conversation import Conversation, Hearing, read_conversation
from mstar_qwen_omni.media.mel import mel_features
from mstar_qwen_omni.media.patches import clip_patches, image_patches
from mstar_qwen_omni.media.settings import MediaSettings
from mstar_qwen_omni.prompt import Prompt, TextTokens, lay_out
from mstar_qwen_omni.renderer import QwenOmniRenderer

Inputs = dict[str, list[NDArray[Any]]]


class QwenOmniProcessor:
    """Prepares and renders; made once per served model.

    What `prepare` gives:

    | input | what |
    |---|---|
    | `ids`, `positions` | int64 [tokens], float32 [3, tokens]: the prompt, with a pad for every row of media |
    | `turns` | int64 [user turns, 2]: where each starts and stops in `ids` |
    | `clips`, `widths` | float32 [mel, frames] and int64 []: each sound, and the frames its chunks are padded to |
    | `pictures`, `grids` | uint8 [patches, values] and int64 [3]: each picture and clip, and its grid |

    Sounds and pictures are in the order of the prompt.
    """

    def __init__(self, config: QwenOmniConfig, checkpoint: Path) -> None:
        self._config = config
        self._settings = MediaSettings.read(checkpoint)
        self._tokens = TextTokens(checkpoint)
        self._check(checkpoint)

    def prepare(self, content: Sequence[Content], params: Mapping[str, Any]) -> Prepared:
        """Tensors of a conversation; raises `InvalidRequest` that names the field."""
        hearing = Hearing(
            compat=params["audio_padding"] == "compat",
            with_clips=params["use_audio_in_video"],
            fps=params["fps"],
        )
        said = read_conversation(content, hearing, self._settings, self._config.audio.chunk)
        prompt = lay_out(said.turns, self._tokens, self._config.ids, self._config.positions_per_second)
        self._check_room(len(prompt.ids), params["max_tokens"])
        return Prepared(inputs={**_prompt(prompt), **self._sounds(said), **self._sights(said)}, params=params)

    def render(self, prepared: Prepared) -> QwenOmniRenderer:
        """A renderer for one request."""
        return QwenOmniRenderer(self._tokens)

    def _sounds(self, said: Conversation) -> Inputs:
        chunk = self._config.audio.chunk
        clips: list[NDArray[Any]] = [mel_features(each, self._settings.sound, said.padded) for each in said.sounds]
        widths = [min(chunk, clip.shape[1]) for clip in clips]
        if said.padded is not None:
            widths = [max(widths)] * len(widths)
        return {"clips": clips, "widths": [np.array(width, np.int64) for width in widths]} if clips else {}

    def _sights(self, said: Conversation) -> Inputs:
        settings = self._settings.picture
        made = [(image_patches if each.ndim == 3 else clip_patches)(each, settings) for each in said.sights]
        if not made:
            return {}
        return {"pictures": [each.values for each in made], "grids": [np.array(each.grid, np.int64) for each in made]}

    def _check_room(self, prompt: int, max_tokens: int) -> None:
        positions = self._config.thinker.positions
        if prompt >= positions:
            raise InvalidRequest(
                f"'input' comes to {prompt} tokens; the model reads fewer than {positions}", param="input"
            )
        if prompt + max_tokens > positions:
            raise InvalidRequest(
                f"'max_tokens' of {max_tokens} and a prompt of {prompt} tokens exceed the model's {positions} "
                f"positions; at most {positions - prompt} fit",
                param="max_tokens",
            )

    def _check(self, checkpoint: Path) -> None:
        """Raise `CheckpointError` where media are made otherwise than the encoders take them."""
        sound, picture = self._settings.sound, self._settings.picture
        audio, vision = self._config.audio, self._config.vision
        made = (sound.bands, picture.patch, picture.frames, picture.merge)
        taken = (audio.mel_bins, vision.patch, vision.temporal, vision.merge)
        if made != taken:
            names = "mel bands, patch, frames of a patch and merged patches"
            raise CheckpointError(
                f"{checkpoint}: {names} are {made} in preprocessor_config.json, but {taken} in config.json"
            )


def _prompt(prompt: Prompt) -> Inputs:
    return {
        "ids": [prompt.ids],
        "positions": [prompt.positions],
        "turns": [prompt.turns],
    }
