"""What a client may set, with the defaults of the official package (canopyai/Orpheus-TTS, `engine_class.py`)."""

from __future__ import annotations

from mstar_core.spec.params import Parameter

VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
"""The English voices, in the model card's order of realism."""

_MOST_IDS = 4096
"""50 s of speech; the model was trained on sequences of 8192 ids."""


def parameters(positions: int) -> tuple[Parameter, ...]:
    """The request parameters of a checkpoint whose language model knows `positions` positions."""
    return (
        Parameter(name="voice", kind="str", default=VOICES[0], choices=VOICES, doc="Who speaks."),
        Parameter(
            name="temperature",
            kind="float",
            default=0.6,
            minimum=0,
            maximum=2,
            doc="Randomness; 0 always takes the likeliest id.",
        ),
        Parameter(
            name="top_p",
            kind="float",
            default=0.8,
            exclusive_minimum=0,
            maximum=1,
            doc="Sample from the likeliest ids whose probabilities sum to this; 1 is off.",
        ),
        Parameter(
            name="top_k", kind="int", default=0, minimum=0, doc="Sample from this many of the likeliest ids; 0 is off."
        ),
        Parameter(
            name="min_p",
            kind="float",
            default=0.0,
            minimum=0,
            maximum=1,
            doc="Drop ids less likely than this share of the likeliest; 0 is off.",
        ),
        Parameter(
            name="repetition_penalty",
            kind="float",
            default=1.3,
            exclusive_minimum=0,
            maximum=10,
            doc="Makes ids of the prompt and of the speech so far less likely; 1 is off, at least 1.1 keeps it stable.",
        ),
        Parameter(
            name="max_tokens",
            kind="int",
            default=min(_MOST_IDS, positions // 2),
            minimum=1,
            maximum=positions,
            doc="The most audio ids per segment of text (about 82 ids are one second); cut short ends as 'length'.",
        ),
        Parameter(
            name="decode_mode",
            kind="str",
            default="exact",
            choices=("exact", "compat"),
            doc="exact: as decoding the whole speech at once; compat: the official 28-id window, for comparison.",
        ),
        Parameter(
            name="noise", kind="bool", default=True, doc="The codec's noise, drawn from the seed; false leaves it out."
        ),
        Parameter(
            name="slot_mask",
            kind="bool",
            default=True,
            doc="Allow at each place of a frame only the ids that belong there.",
        ),
    )
