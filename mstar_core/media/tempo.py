"""Faster or slower speech at the same pitch, while it is being made."""

from fractions import Fraction

import av
import numpy as np
from av.filter import Graph
from numpy.typing import NDArray

MIN_SPEED = 0.25
MAX_SPEED = 4.0
"""The range of the `speed` field of OpenAI's speech endpoint."""

_MIN_STAGE = 0.5
_MAX_STAGE = 2.0
"""One `atempo` refuses less than 0.5, and above 2.0 it drops samples instead of blending them (FFmpeg's filter manual,
section atempo, which advises a chain)."""

_BLOCKS_PER_SECOND = 50


def check_speed(speed: float) -> None:
    """Raise `ValueError` unless the speed lies in 0.25..4.0."""
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise ValueError(f"speed {speed} is outside {MIN_SPEED}..{MAX_SPEED}")


class Tempo:
    """Changes the tempo of a mono stream by libavfilter's `atempo` (overlap-add of similar waveforms).

    n samples in give exactly round(n / speed) out, whatever the chunks they came in: `atempo` is fed blocks of one
    size, because the seams it finds depend on how its input is cut, and then silence until it has given everything
    back, because at its own end of stream it loses up to 100 ms. Used by `AudioEncoder`; one stream, then done.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        check_speed(speed)
        self._sample_rate = sample_rate
        self._speed = speed
        self._block = sample_rate // _BLOCKS_PER_SECOND
        self._waiting = np.zeros(0, np.float32)  # less than one block
        self._taken = 0
        self._fed = 0
        self._given = 0
        self._graph = _graph(sample_rate, _stages(speed))

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take float32 [n]; return what is ready, float32 [m] (m may be 0)."""
        self._taken += len(samples)
        waiting = np.concatenate((self._waiting, samples))
        whole = len(waiting) - len(waiting) % self._block
        self._waiting = waiting[whole:]
        return self._feed(waiting[:whole])

    def finish(self) -> NDArray[np.float32]:
        """The rest, so that all that was given is round(n / speed) samples."""
        missing = round(self._taken / self._speed) - self._given
        assert missing >= 0, "atempo gives each sample only after it has read past it"
        silence = np.zeros(self._block, np.float32)
        rest = [self._feed(np.concatenate((self._waiting, silence))[: self._block])]
        while sum(map(len, rest)) < missing:
            rest.append(self._feed(silence))
        return np.concatenate(rest)[:missing]

    def _feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Push whole blocks through the filters."""
        for block in samples.reshape(-1, self._block):
            frame = av.AudioFrame.from_ndarray(block[np.newaxis], format="flt", layout="mono")
            frame.sample_rate = self._sample_rate
            frame.time_base = Fraction(1, self._sample_rate)
            frame.pts = self._fed
            self._fed += len(block)
            self._graph.push(frame)
        ready = self._pull()
        self._given += len(ready)
        return ready

    def _pull(self) -> NDArray[np.float32]:
        ready = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except av.BlockingIOError:  # the filters want more input
                return np.concatenate(ready)
            assert isinstance(frame, av.AudioFrame)
            ready.append(frame.to_ndarray()[0])


def _stages(speed: float) -> list[float]:
    """The fewest equal factors within one filter's range whose product is `speed`."""
    count = 1
    while not _MIN_STAGE <= speed ** (1 / count) <= _MAX_STAGE:
        count += 1
    return [speed ** (1 / count)] * count


def _graph(sample_rate: int, stages: list[float]) -> Graph:
    graph = Graph()
    graph.threads = 1  # otherwise each graph starts a thread per core, and no filter here uses them
    source = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate))
    filters = [graph.add("atempo", tempo=repr(stage)) for stage in stages]
    graph.link_nodes(source, *filters, graph.add("abuffersink")).configure()
    return graph
