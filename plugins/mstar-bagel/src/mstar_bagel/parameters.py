"""What a client may set. Where tasks differ a default is "not set"; `resolved` then takes the task's.

Defaults are those of the reference's notebook (ByteDance-Seed/Bagel, `inference.ipynb`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mstar_bagel.config import BagelConfig
from mstar_core.spec.params import Parameter

DEFAULT_LENGTH = 1000
"""Ids of an answer or a thought. The reference counts bos among them."""

RENORMS = ("global", "channel", "text_channel")

_MOST_STEPS, _MOST_SCALE = 1000, 100
"""Twenty times the reference's steps, and a scale at which nothing of a picture is left."""

_PAINTING: Mapping[str, Any] = {"img_scale": 1.0, "interval_start": 0.4, "renorm": "global"}
_EDITING: Mapping[str, Any] = {"img_scale": 2.0, "interval_start": 0.0, "renorm": "text_channel"}
"""The defaults that depend on whether pictures were given."""


COMPARED = "compared"
"""The key of a prepared request's parameters under which stand the contexts, `text` and `image`, that differ from the
main one: its guidance must not do without them."""


def resolved(params: Mapping[str, Any], *, editing: bool) -> dict[str, Any]:
    """A request's parameters with its task's defaults in the place of those that it does not set; no size yet."""
    defaults = _EDITING if editing else _PAINTING
    return {name: defaults.get(name) if value is None else value for name, value in params.items()}


def parameters(config: BagelConfig) -> tuple[Parameter, ...]:
    """The request parameters of a checkpoint."""
    return (*_text(config), *_picture(config), *_guidance())


def _text(config: BagelConfig) -> tuple[Parameter, ...]:
    most, left_out = config.llm.positions, f"Left out: {DEFAULT_LENGTH}, or as many as there is room for."
    return (
        Parameter(name="think", kind="bool", default=False, doc="Think first, in words, before the answer or picture."),
        Parameter(
            name="max_tokens",
            kind="int",
            minimum=1,
            maximum=most,
            doc=f"The most ids of an answer, thoughts included; one cut short ends as 'length'. {left_out}",
        ),
        Parameter(
            name="max_think_tokens",
            kind="int",
            minimum=1,
            maximum=most,
            doc=f"The most ids that are thought before a picture. {left_out}",
        ),
        Parameter(
            name="temperature",
            kind="float",
            default=0.0,
            minimum=0,
            maximum=2,
            doc="Randomness of text; 0 always takes the likeliest id.",
        ),
        Parameter(
            name="vae_resize",
            kind="bool",
            default=True,
            doc="Fit given pictures to the autoencoder before the model looks at them; false looks at the originals.",
        ),
    )


def _picture(config: BagelConfig) -> tuple[Parameter, ...]:
    return (
        _side("width", config),
        _side("height", config),
        Parameter(
            name="steps",
            kind="int",
            default=50,
            minimum=1,
            maximum=_MOST_STEPS,
            doc="Points in time from noise to picture: the model runs once less often.",
        ),
        Parameter(
            name="timestep_shift",
            kind="float",
            default=3.0,
            exclusive_minimum=0,
            maximum=_MOST_SCALE,
            doc="Above 1, more of the steps lie near the noise, where the composition is made.",
        ),
        Parameter(
            name="sample_posterior",
            kind="bool",
            default=True,
            doc="Encode given pictures with noise from the seed, as the model was trained; false takes the mean.",
        ),
    )


def _guidance() -> tuple[Parameter, ...]:
    return (
        _scale("text_scale", 4.0, "How much more the picture follows the last text; with 1 or less nothing is guided."),
        _scale(
            "img_scale",
            None,
            "How much more it follows the given pictures; 1 or less: not at all. Left out: 2 with pictures, else 1.",
        ),
        _share(
            "interval_start",
            None,
            "Steps at later times than this, of 1 (noise) to 0, are guided. Left out: 0 with pictures, else 0.4.",
        ),
        _share("interval_end", 1.0, "Steps at times up to this are guided."),
        Parameter(
            name="renorm",
            kind="str",
            choices=RENORMS,
            doc="How guidance is kept from growing the velocity: as a whole, by token, or by token before the pictures "
            "come in. Left out: text_channel with pictures, else global.",
        ),
        _share("renorm_min", 0.0, "The most that it is shrunk to; 1 leaves it as it is."),
    )


def _side(name: str, config: BagelConfig) -> Parameter:
    multiple, longest = config.pixels_per_token, config.longest_side
    return Parameter(
        name=name,
        kind="int",
        minimum=max(config.transforms.vae.shortest // 2, multiple),
        maximum=longest,
        doc=f"Pixels of the picture, a multiple of {multiple}. Left out: as the last given picture, or {longest}.",
    )


def _scale(name: str, default: float | None, doc: str) -> Parameter:
    return Parameter(name=name, kind="float", default=default, minimum=0, maximum=_MOST_SCALE, doc=doc)


def _share(name: str, default: float | None, doc: str) -> Parameter:
    return Parameter(name=name, kind="float", default=default, minimum=0, maximum=1, doc=doc)
