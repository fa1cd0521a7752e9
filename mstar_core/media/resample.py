"""Mono samples at another rate."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

_TAPS = 128
"""Length of the low-pass filter in samples of the lower rate; libswresample's 32 lets 3 % of the band alias."""


def resample(samples: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """float32 [n] at `rate` Hz as float32 [round(n * target / rate)] at `target` Hz; the same array if they are equal.

    By libswresample's windowed sinc, whose delay is taken out: sample k of the result is the sound at k / target
    seconds. Processors call it for models that hear at one rate. Frontend only.
    """
    wanted = round(len(samples) * target / rate)
    if rate == target or not wanted:
        return samples[:wanted]
    graph = av.filter.Graph()
    graph.threads = 1  # otherwise each graph starts a thread per core
    source = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono", time_base=Fraction(1, rate))
    filters = [
        graph.add("aresample", f"{target}:filter_size={_TAPS}"),
        graph.add("aformat", f"sample_fmts=flt:sample_rates={target}:channel_layouts=mono"),
    ]
    graph.link_nodes(source, *filters, graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[np.newaxis]), format="flt", layout="mono")
    frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
    graph.push(frame)
    graph.push(None)
    made = _pulled(graph)[:wanted]
    return np.pad(made, (0, wanted - len(made)))


def _pulled(graph: av.filter.Graph) -> NDArray[np.float32]:
    """Everything that the filters give until their end."""
    ready = [np.zeros(0, np.float32)]
    while True:
        try:
            frame = graph.pull()
        except (av.BlockingIOError, av.EOFError):
            return np.concatenate(ready)
        assert isinstance(frame, av.AudioFrame)
        ready.append(frame.to_ndarray()[0])
