"""The prompt in ChatML, as the published chat template renders it.

<|im_start|>role\n content <|im_end|>\n    for every turn, and then
<|im_start|>assistant\n                    for the reply

sound      <|audio_start|> pads <|audio_end|>
picture    <|vision_start|> pads <|vision_end|>
clip with its sound  <|vision_start|><|audio_start|> pads of both <|audio_end|><|vision_end|>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mstar_qwen_omni.config import SpecialIds
from mstar_qwen_omni.prompt.pieces import Film, Sound, Still, Turn, Words
from mstar_qwen_omni.prompt.positions import Block, Positions, film, place, running, still
from mstar_qwen_omni.prompt.tokens import TextTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """`ids` int64 [tokens] with a pad for every row of media; `positions` float32 [3, tokens] on the rotary axes.

    `turns` int64 [user turns, 2]: where each of the user's starts and stops in `ids`.
    """

    ids: NDArray[np.int64]
    positions: Positions
    turns: NDArray[np.int64]


def lay_out(turns: Sequence[Turn], tokens: TextTokens, ids: SpecialIds, per_second: float) -> Prompt:
    """The prompt of a conversation; `per_second` is how fast positions of clips advance."""
    written = [_write(turn, tokens, ids, per_second) for turn in turns]
    reply = [ids.im_start, ids.assistant, ids.newline]
    stops = np.cumsum([len(each.ids) for each in written])
    spans = [(stop - len(each.ids), stop) for each, stop in zip(written, stops, strict=True) if each.role == "user"]
    blocks = [block for each in written for block in each.blocks]
    return Prompt(
        ids=np.array([id for each in written for id in each.ids] + reply, np.int64),
        positions=place([*blocks, running(len(reply))]),
        turns=np.array(spans, np.int64).reshape(-1, 2),
    )


@dataclass(slots=True)
class _Written:
    """One turn's ids, and the blocks of their positions."""

    role: str
    ids: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def run(self, *ids: int) -> None:
        """Ids one behind the other."""
        self.put(ids, running(len(ids)))

    def put(self, ids: Sequence[int], block: Block) -> None:
        """Ids whose positions are those of a block."""
        self.ids += ids
        self.blocks.append(block)


def _write(turn: Turn, tokens: TextTokens, ids: SpecialIds, per_second: float) -> _Written:
    roles = {"system": ids.system, "user": ids.user, "assistant": ids.assistant}
    turn_ids = _Written(turn.role)
    turn_ids.run(ids.im_start, roles[turn.role])
    pieces = turn.pieces
    # The line's end and the text behind it are read together: byte pair encoding may join them.
    opening = pieces[0].text if pieces and isinstance(pieces[0], Words) else ""
    turn_ids.run(*tokens.encode("\n" + opening))
    for piece in pieces[1:] if opening else pieces:
        match piece:
            case Words(text):
                turn_ids.run(*tokens.encode(text))
            case Sound(count):
                turn_ids.run(ids.audio_start)
                turn_ids.put([ids.audio] * count, running(count))
                turn_ids.run(ids.audio_end)
            case Still(rows, columns):
                turn_ids.run(ids.vision_start)
                turn_ids.put([ids.image] * (rows * columns), still(piece))
                turn_ids.run(ids.vision_end)
            case Film():
                _write_film(piece, turn_ids, ids, per_second)
    turn_ids.run(ids.im_end, ids.newline)
    return turn_ids


def _write_film(clip: Film, turn_ids: _Written, ids: SpecialIds, per_second: float) -> None:
    block, is_sound = film(clip, per_second)
    before, after = [ids.vision_start], [ids.vision_end]
    if clip.sound:
        before, after = [*before, ids.audio_start], [ids.audio_end, *after]
    turn_ids.run(*before)
    turn_ids.put(np.where(is_sound, ids.audio, ids.video).tolist(), block)
    turn_ids.run(*after)
