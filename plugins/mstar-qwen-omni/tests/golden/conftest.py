"""The recorded cases: their tensors, and the conversations that they were recorded with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mstar_qwen_omni.config import QwenOmniConfig
from mstar_qwen_omni.encoders.rows import rows_of
from mstar_qwen_omni.processor import QwenOmniProcessor
from mstar_qwen_omni.prompt import Film, Sound, Still, Turn, Words
from safetensors.torch import load_file


@dataclass(frozen=True)
class Case:
    """One recorded conversation."""

    name: str
    facts: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    config: QwenOmniConfig

    @property
    def frames(self) -> list[int]:
        """Mel frames of each sound."""
        mask = self.tensors.get("feature_attention_mask")
        return [] if mask is None else mask.sum(1).tolist()

    def grids(self, kind: str) -> list[tuple[int, int, int]]:
        """Patches of each image or video."""
        grids = self.tensors.get(f"{kind}_grid_thw")
        return [] if grids is None else [tuple(grid) for grid in grids.tolist()]

    def turns(self) -> list[Turn]:
        """The conversation, read from the recorded ids: runs of pads, and bytes between them."""
        ids, config = self.config.ids, self.config
        seconds = self.tensors.get("video_second_per_grid", torch.zeros(0)).tolist()
        sounds = iter([rows_of(frames, config.audio.chunk) for frames in self.frames])
        images, videos = iter(self.grids("image")), iter(zip(self.grids("video"), seconds, strict=True))
        merge = config.vision.merge
        turns = []
        for written in _split(self.tensors["input_ids"].tolist(), ids.im_start)[1:-1]:
            role = {ids.system: "system", ids.user: "user", ids.assistant: "assistant"}[written[0]]
            pieces, rest = [], written[2 : written.index(ids.im_end)]
            while rest:
                if rest[0] == ids.audio_start:
                    pieces.append(Sound(next(sounds)))
                    rest = rest[rest.index(ids.audio_end) + 1 :]
                elif rest[0] == ids.vision_start and rest[1] == ids.image:
                    _, rows, columns = next(images)
                    pieces.append(Still(rows // merge, columns // merge))
                    rest = rest[rest.index(ids.vision_end) + 1 :]
                elif rest[0] == ids.vision_start:
                    (steps, rows, columns), apart = next(videos)
                    sound = next(sounds) if rest[1] == ids.audio_start else 0
                    pieces.append(Film(steps, rows // merge, columns // merge, apart, sound))
                    rest = rest[rest.index(ids.vision_end) + 1 :]
                else:
                    starts = [place for place, id in enumerate(rest) if id in (ids.audio_start, ids.vision_start)]
                    stop = min(starts, default=len(rest))
                    pieces.append(Words(bytes(rest[:stop]).decode()))
                    rest = rest[stop:]
            turns.append(Turn(role, tuple(pieces)))
        return turns


def _split(ids, at):
    """Runs between the ids `at`."""
    runs = [[]]
    for id in ids:
        if id == at:
            runs.append([])
        else:
            runs[-1].append(id)
    return runs


@lru_cache(2)
def _recorded(directory: Path):
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(directory / "cases.safetensors").items():
        case, _, inner = name.partition("/")
        tensors.setdefault(case, {})[inner] = tensor
    return tensors, json.loads((directory / "cases.json").read_text())["cases"]


@pytest.fixture(scope="session")
def recorded(golden_dir):
    """All tensors, by case and name."""
    return _recorded(golden_dir)[0]


@pytest.fixture(scope="session")
def conversations(golden_dir) -> dict[str, Case]:
    """The cases that have a prompt, by name."""
    tensors, facts = _recorded(golden_dir)
    config = QwenOmniConfig.read(golden_dir)
    return {name: Case(name, each, tensors[name], config) for name, each in facts.items() if each["kind"] == "generate"}


@pytest.fixture(scope="session")
def golden_processor(golden_dir) -> QwenOmniProcessor:
    """The recorded checkpoint's processor."""
    return QwenOmniProcessor(QwenOmniConfig.read(golden_dir), golden_dir)
