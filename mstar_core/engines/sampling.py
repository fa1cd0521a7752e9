"""Sampling that does not depend on the batch: a row's token is a function of its logits, settings, seed and step.

A row's logits go through repetition penalty, allowed-token mask and temperature, then top-k, top-p and min-p cut the
distribution, and one uniform number picks from what is left by its cumulative sum, tokens in order of falling
probability (equal ones by rising id). Temperature 0 takes the first. The steps and their order are those of the
logits processors in Hugging Face transformers, except that the mask has no counterpart there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from mstar_core.engines.random_numbers import stream_id, uniforms
from mstar_core.engines.ranking import leading

UNMASKED = -1
"""The phase in which every token is allowed."""

PADDING_SLOT = 0
"""The row of a history table that belongs to no request."""

_WIDTHS = (64, 1024)
"""How many leading tokens are looked at before all are; sorting a whole vocabulary costs far more on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSpec:
    """One of a node's samplers. A setting is a number, or the name of the request parameter that holds it.

    A parameter that the request left unset (None) means the neutral value. `history` names the input port whose token
    ids count for the repetition penalty beside the sampled ones (a prompt); None counts only what was sampled here.
    `draws` is how often one step samples (a code predictor: once per group).
    """

    vocab: int
    temperature: float | str = 1.0
    top_k: int | str = 0
    top_p: float | str = 1.0
    min_p: float | str = 0.0
    repetition_penalty: float | str = 1.0
    history: str | None = None
    draws: int = 1

    @property
    def penalises(self) -> bool:
        """Whether any request can have a repetition penalty."""
        return self.repetition_penalty != 1.0

    def settings(self, params: Mapping[str, Any]) -> SamplerSettings:
        """The settings of one request."""

        def value(setting: float | str, neutral: float) -> float:
            number = params[setting] if isinstance(setting, str) else setting
            return neutral if number is None else float(number)

        return SamplerSettings(
            temperature=value(self.temperature, 1.0),
            top_k=int(value(self.top_k, 0)),
            top_p=value(self.top_p, 1.0),
            min_p=value(self.min_p, 0.0),
            penalty=value(self.repetition_penalty, 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """What one request asks of one sampler, in numbers; top_k 0, top_p 1, min_p 0 and penalty 1 switch a step off."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    penalty: float

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """One call of a batch as a sampler sees it on the loop thread: `slot` is its place in the history table, `phase`
    its row of the mask table, `counts` whether what is sampled becomes history (a prefill that goes on samples for
    nothing)."""

    settings: SamplerSettings
    seed: int
    step: int
    slot: int
    phase: int
    counts: bool


@dataclass(frozen=True, slots=True)
class Features:
    """What at least one row of a batch needs; the rest is skipped."""

    penalty: bool
    mask: bool
    random: bool


@dataclass(slots=True)
class SamplerRows:
    """A batch's rows on the device; numbers per row are `[rows, 1]`."""

    features: Features
    temperature: torch.Tensor  # float32, 1 where greedy
    top_k: torch.Tensor  # int64, 0 for off
    top_p: torch.Tensor  # float64
    min_p: torch.Tensor  # float64
    penalty: torch.Tensor  # float32
    uniforms: torch.Tensor  # [rows, draws] float64
    slots: torch.Tensor  # [rows] int64
    phases: torch.Tensor  # [rows] int64
    weights: torch.Tensor  # [rows] int32, 0 where nothing counts

    def clone(self) -> SamplerRows:
        """The same rows in memory of their own."""
        return replace(self, **{name: getattr(self, name).clone() for name in self._tensors()})

    def copy_(self, other: SamplerRows) -> None:
        """Take over the numbers of as many other rows, in place."""
        for name in self._tensors():
            getattr(self, name).copy_(getattr(other, name))

    def _tensors(self) -> list[str]:
        return [each.name for each in fields(self) if each.name != "features"]


class Sampler:
    """A sampler of one node: its tables on the device, and the function from logits to ids.

    `masks` `[phases, vocab]` is true where a token is allowed. The history table counts, per request slot, how often
    each token was seen; its row 0 takes what padding writes.
    """

    def __init__(
        self, spec: SamplerSpec, *, purpose: Sequence[str], slots: int, masks: torch.Tensor | None, device: torch.device
    ) -> None:
        self.spec = spec
        self.stream = stream_id(*purpose)
        self.device = device
        self.slots = slots
        self.phases = 0 if masks is None else masks.shape[0]
        self._masks = None if masks is None else _additive(masks, spec.vocab).to(device)
        counts = (slots + 1, spec.vocab) if spec.penalises else (0, spec.vocab)
        self.history = torch.zeros(counts, dtype=torch.int32, device=device)

    def rows(self, rows: Sequence[SamplerRow]) -> SamplerRows:
        """Put a batch's rows on the device."""
        settings = [row.settings for row in rows]
        features = Features(
            penalty=any(each.penalty != 1.0 for each in settings),
            mask=any(row.phase != UNMASKED for row in rows),
            random=not all(each.greedy for each in settings),
        )
        random = uniforms([row.seed for row in rows], self.stream, [row.step for row in rows], self.spec.draws)
        random[[each.greedy for each in settings]] = 0.0
        return SamplerRows(
            features=features,
            temperature=self._column([each.temperature or 1.0 for each in settings], np.float32),
            top_k=self._column([1 if each.greedy else each.top_k for each in settings], np.int64),
            top_p=self._column([each.top_p for each in settings], np.float64),
            min_p=self._column([each.min_p for each in settings], np.float64),
            penalty=self._column([each.penalty for each in settings], np.float32),
            uniforms=self._device(random),
            slots=self._device(np.asarray([row.slot for row in rows], np.int64)),
            phases=self._device(np.asarray([self._phase(row.phase) for row in rows], np.int64)),
            weights=self._device(np.asarray([row.counts for row in rows], np.int32)),
        )

    def scores(self, logits: torch.Tensor, rows: SamplerRows) -> torch.Tensor:
        """Logits `[rows, vocab]` after penalty, mask and temperature, float32."""
        scores = logits.float()
        if rows.features.penalty:
            seen = self.history.index_select(0, rows.slots) > 0  # [rows, vocab]
            penalised = torch.where(scores < 0, scores * rows.penalty, scores / rows.penalty)
            scores = torch.where(seen, penalised, scores)
        if rows.features.mask:
            assert self._masks is not None, "a phase was given to a sampler without masks"
            scores = scores + self._masks.index_select(0, rows.phases)
        return scores / rows.temperature if rows.features.random else scores

    def sample(self, logits: torch.Tensor, rows: SamplerRows, draw: int = 0) -> torch.Tensor:
        """Token ids `[rows]` int64 for logits `[rows, vocab]`."""
        scores = self.scores(logits, rows)
        if not rows.features.random:
            return scores.max(-1).indices  # of equal ones the first
        logprobs = scores.log_softmax(-1)
        vocab = scores.shape[1]
        for width in (*(width for width in _WIDTHS if width < vocab and scores.device.type == "cpu"), vocab):
            cut = truncated(logprobs, rows, width)
            ids, decided = _pick(cut, rows.uniforms[:, draw : draw + 1])
            if width == vocab or bool(decided.all()):
                break
        return ids

    def count(self, slots: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        """Add `weights` to the history of `ids`, entry by entry; negative weights take back."""
        self.history.view(-1).index_add_(0, slots * self.spec.vocab + ids, weights)

    def grow(self) -> None:
        """Make room in the history table for `slots` requests (set before), keeping what is there."""
        history = self.history
        self.history = history.new_zeros(self.slots + 1, self.spec.vocab)
        self.history[: history.shape[0]] = history

    def forget(self, slot: int) -> None:
        """Clear one request's history."""
        self.history[slot] = 0

    def _phase(self, phase: int) -> int:
        if not UNMASKED <= phase < self.phases:
            raise ValueError(f"phase {phase} is not among the sampler's {self.phases} masks")
        return self.phases if phase == UNMASKED else phase

    def _column(self, numbers: Sequence[float], dtype: type[np.generic]) -> torch.Tensor:
        return self._device(np.asarray(numbers, dtype)[:, None])

    def _device(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self.device)


@dataclass(slots=True)
class Truncated:
    """The leading tokens of each row, and what top-k, top-p and min-p leave of them.

    `cumulative` sums the probabilities that were left, in order; `total` is their sum over the whole vocabulary.
    `known` says whether the tokens beyond `width` cannot change what was left; a row that nothing is cut from
    (`uncut`) is never known short of the whole vocabulary, but its total is 1 and its first `complete` tokens are in
    their place.
    """

    ids: torch.Tensor  # [rows, width] int64
    probabilities: torch.Tensor  # [rows, width] float64, 0 where cut
    cumulative: torch.Tensor  # [rows, width] float64
    total: torch.Tensor  # [rows, 1] float64
    known: torch.Tensor  # [rows, 1] bool
    uncut: torch.Tensor  # [rows, 1] bool
    complete: torch.Tensor  # [rows, 1] int64


def truncated(logprobs: torch.Tensor, rows: SamplerRows, width: int) -> Truncated:
    """Cut the distributions `[rows, vocab]`, looking at their `width` leading tokens.

    Sums are running sums in float64, so that more tokens of probability zero leave them bit for bit the same.
    """
    vocab = logprobs.shape[1]
    values, ids = leading(logprobs, width)
    floor = values[:, -1:]
    whole = (floor == float("-inf")) | (width == vocab)
    limited = (rows.top_k > 0) & (rows.top_k < vocab)
    uncut = ~limited & (rows.top_p >= 1.0) & (rows.min_p <= 0.0)
    kth = values.gather(1, (rows.top_k - 1).clamp(0, width - 1))
    kept = ~limited | (values >= kth)
    reached = whole | ~limited | ((rows.top_k <= width) & (kth > floor))
    probabilities = values.double().exp()
    sums = (probabilities * kept).cumsum(1)
    mass = torch.where(limited, sums[:, -1:], 1.0)
    kept &= (rows.top_p >= 1.0) | (sums - probabilities < rows.top_p * mass)
    kept &= probabilities >= rows.min_p * probabilities[:, :1]
    kept[:, 0] = True
    probabilities = probabilities * kept
    cumulative = probabilities.cumsum(1)
    complete = (values > floor).sum(1, keepdim=True)
    ends = ~kept.gather(1, complete.clamp(max=width - 1))  # is the first token of unsure place cut?
    total = torch.where(uncut, 1.0, cumulative[:, -1:])
    return Truncated(ids, probabilities, cumulative, total, whole | (reached & ends), uncut, complete)


def _pick(cut: Truncated, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids `[rows]` at the uniform numbers' places, and whether a wider look cannot change them."""
    place = (cut.cumulative <= uniform * cut.total).sum(1, keepdim=True)
    decided = cut.known | (cut.uncut & (place < cut.complete))
    last = (cut.probabilities > 0).sum(1, keepdim=True) - 1
    return cut.ids.gather(1, torch.minimum(place, last.clamp(min=0))).squeeze(1), decided


def token_logprobs(
    logits: torch.Tensor, ids: torch.Tensor, top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities under the unprocessed logits `[rows, vocab]`: of `ids` `[rows]`, and the `top` best with their
    ids `[rows, top]`, best first."""
    logprobs = logits.float().log_softmax(-1)
    values, best = logprobs.topk(top, dim=-1)
    return logprobs.gather(1, ids[:, None]).squeeze(1), values, best


def _additive(masks: torch.Tensor, vocab: int) -> torch.Tensor:
    """The mask table as numbers to add, with a last row that allows everything."""
    if masks.dtype != torch.bool or masks.shape[1:] != (vocab,):
        raise ValueError(f"masks must be bool [phases, {vocab}], got {masks.dtype} {list(masks.shape)}")
    if not bool(masks.any(1).all()):
        raise ValueError("a phase must allow at least one token")
    table = torch.zeros(masks.shape[0] + 1, vocab)
    table[:-1].masked_fill_(~masks, float("-inf"))
    return table
