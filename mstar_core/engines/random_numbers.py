"""Uniform numbers by counter: a pure function of (seed, stream, step, draw), the same on every machine.

Each argument is absorbed with the 64-bit finaliser of SplitMix (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014), whose output constants and golden-ratio increment are used here. No state is kept, so
the order in which requests are served cannot matter.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MANTISSA = 2.0**-53

Words = npt.NDArray[np.uint64]


def stream_id(*names: str) -> int:
    """A 64-bit number for a purpose, e.g. (node, sampler), so that two purposes with one seed are unrelated."""
    return int.from_bytes(hashlib.blake2b("/".join(names).encode(), digest_size=8).digest(), "little")


def uniforms(seeds: npt.ArrayLike, stream: int, steps: npt.ArrayLike, draws: int) -> npt.NDArray[np.float64]:
    """`[rows, draws]` numbers in [0, 1) with 53 bits, one row for each (seed, step); both are 0 to 2**64 - 1."""
    words = _absorb(np.full(np.shape(seeds), stream, np.uint64), np.asarray(seeds, np.uint64))
    words = _absorb(words, np.asarray(steps, np.uint64))
    words = _absorb(words[:, None], np.arange(draws, dtype=np.uint64)[None])
    return (words >> np.uint64(11)).astype(np.float64) * _MANTISSA


def _absorb(words: Words, more: Words) -> Words:
    """Mix `more` into `words`; every bit of both changes about half of the result's bits."""
    mixed: Words = words + (more + np.uint64(1)) * _INCREMENT  # modulo 2**64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
