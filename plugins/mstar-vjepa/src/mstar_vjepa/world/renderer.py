"""What a request of `vjepa2-ac` emitted, as named tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from numpy.typing import NDArray

from mstar_core.spec.content import Content, Prepared, Tensor
from mstar_vjepa.world.config import WorldConfig

_STEP = ("latents", "states", "energies")
"""What a step of a rollout emits, in order; energies only with a goal."""


SEVERAL = "several"
"""What the processor adds to a request's parameters: whether its rollouts have an axis of their own."""


class WorldRenderer:
    """Names the tensors by the order in which the walks emit them.

    Without an axis for rollouts in the request there is none in its results.
    """

    def __init__(self, prepared: Prepared, config: WorldConfig) -> None:
        self._names = _names(prepared)
        self._single = not prepared.params.get(SEVERAL, False)
        self._frames, self._tokens = len(prepared.inputs["frames"][0]), config.patches.tokens

    def output(self, modality: str, value: NDArray[Any]) -> Content | None:
        """The next tensor."""
        name, of_rollout, step = next(self._names)
        return Tensor(name, value[0] if of_rollout and self._single else value, step)

    def finish(self) -> Sequence[Content]:
        """Nothing is held back."""
        return ()

    def usage(self, tokens: Mapping[str, int]) -> Mapping[str, int]:
        """Tokens of the observed frames, and those that the world model added to its cache."""
        added = sum(number for walk, number in tokens.items() if walk != "observe")
        return {"input_tokens": self._frames * self._tokens, "output_tokens": added}


def _names(prepared: Prepared) -> Iterator[tuple[str, bool, int | None]]:
    """Names in the order of emission, whether the tensor has an axis for rollouts, and the step that made it."""
    params = prepared.params
    match params["task"]:
        case "encode":
            return iter([("latents", False, None)])
        case "plan":
            refined = (("energies", False, step) for step in range(params["refinements"]))
            return chain(refined, [("actions", False, None)], _rolled(_STEP))
        case _:
            return _rolled(_STEP if "goal_frames" in prepared.inputs else _STEP[:-1])


def _rolled(names: Sequence[str]) -> Iterator[tuple[str, bool, int]]:
    return ((name, True, step) for step in count() for name in names)
