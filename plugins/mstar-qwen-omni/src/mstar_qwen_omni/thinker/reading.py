"""What the thinker keeps for a request between its calls: rows of media that were encoded and are not read yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mstar_core.engines.base import Row
from mstar_core.engines.values import tensor_of
from mstar_qwen_omni.config import SpecialIds

_CPU = torch.device("cpu")


@dataclass(slots=True)
class Reading:
    """Rows by the number of the call that brought them, and whether the reply is to be spoken.

    Rows of sounds are `[n, hidden]`, those of pictures the same beside `[levels, n, hidden]`.
    """

    sounds: dict[int, Any] = field(default_factory=dict)
    sights: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    aloud: bool = False

    def check(self, ids: torch.Tensor, special: SpecialIds) -> None:
        """Raise ValueError unless the prompt has a place for every row, and a row for every place."""
        for what, places, kept in (
            ("sounds", (special.audio,), self.sounds.values()),
            ("pictures", special.visual, [rows for rows, _ in self.sights.values()]),
        ):
            wanted = int(_any_of(ids, places).sum())
            given = sum(_length(rows) for rows in kept)
            if wanted != given:
                raise ValueError(f"the prompt has {wanted} places for rows of {what}, the encoder made {given}")

    def sound_rows(self, device: torch.device) -> torch.Tensor:
        """Rows of all sounds in the prompt's order, `[n, hidden]`."""
        return torch.cat([tensor_of(rows, device) for _, rows in sorted(self.sounds.items())])

    def sight_rows(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of all pictures in the prompt's order, `[n, hidden]`, and their deepstack rows `[levels, n, hidden]`."""
        kept = [both for _, both in sorted(self.sights.items())]
        rows = torch.cat([tensor_of(rows, device) for rows, _ in kept])
        return rows, torch.cat([tensor_of(deep, device) for _, deep in kept], dim=1)

    def forget(self) -> None:
        """Let the rows go: the prompt was read."""
        self.sounds.clear()
        self.sights.clear()

    def pack(self) -> dict[str, Any]:
        """The state in plain values."""
        return {
            "aloud": self.aloud,
            "sounds": [[step, _packed(rows)] for step, rows in self.sounds.items()],
            "sights": [[step, _packed(rows), _packed(deep)] for step, (rows, deep) in self.sights.items()],
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Reading:
        """The state from what `pack` gave."""
        return cls(
            sounds={step: _unpacked(rows) for step, rows in packed["sounds"]},
            sights={step: (_unpacked(rows), _unpacked(deep)) for step, rows, deep in packed["sights"]},
            aloud=packed["aloud"],
        )


def media_places(ids: torch.Tensor, special: SpecialIds) -> tuple[torch.Tensor, torch.Tensor]:
    """Where sounds and where pictures stand among ids `[tokens]`: two bool `[tokens]`."""
    return _any_of(ids, (special.audio,)), _any_of(ids, special.visual)


def _any_of(ids: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    return torch.isin(ids, torch.tensor(wanted, device=ids.device))


def _length(rows: Any) -> int:
    return len(rows.tensor() if isinstance(rows, Row) else rows)


def _packed(value: Any) -> dict[str, Any]:
    """A tensor as plain values; encoders give float32."""
    tensor = tensor_of(value, _CPU).float().contiguous()
    return {"shape": list(tensor.shape), "bytes": tensor.numpy().tobytes()}


def _unpacked(value: Mapping[str, Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(value["bytes"]), dtype=torch.float32).view(value["shape"])
