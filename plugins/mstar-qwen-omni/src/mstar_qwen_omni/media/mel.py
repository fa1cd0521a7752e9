"""Log-mel features of a sound, as Whisper's (Radford et al., 2022, arXiv:2212.04356): NumPy alone.

The features are those of transformers' `WhisperFeatureExtractor`, which hears all sounds of a request padded to the
longest. Here each is heard by itself unless `padded` says otherwise: what lies behind its end, and therefore its last
two frames, would else depend on the sounds beside it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mstar_qwen_omni.media.settings import SoundSettings

Samples = NDArray[np.float32]
Features = NDArray[np.float32]

_FLOOR = 1e-10
_RANGE = 8.0
"""Decades below the loudest value of the sound that are kept; the rest is clamped."""

_BLOCK = 4096
"""Frames that are transformed together, so that a long sound does not need its windows all at once."""

_LINEAR_HZ, _BREAK_HZ = 200 / 3, 1000.0
_LOG_STEP = math.log(6.4) / 27
"""The mel scale of Slaney's Auditory Toolbox (1998): linear up to 1000 Hz, then 27 steps to 6400 Hz."""


def frame_count(samples: int, settings: SoundSettings, padded: int | None = None) -> int:
    """Frames of a sound of so many samples.

    Heard with silence up to `padded` samples, it has one for the part of a hop at its end, too, if there is room: so
    the reference counts, by every hop-th entry of its mask of samples.
    """
    if padded is None or padded == samples:
        return samples // settings.hop
    return min(-(-samples // settings.hop), padded // settings.hop)


def mel_features(samples: Samples, settings: SoundSettings, padded: int | None = None) -> Features:
    """float32 [samples] at the settings' rate to float32 [bands, frames], `frame_count` of them (at least one).

    With `padded` the sound is followed by silence up to so many samples.
    """
    frames = frame_count(len(samples), settings, padded)
    if padded is not None:
        samples = np.pad(samples, (0, padded - len(samples)))
    half = settings.window // 2
    reflected = np.pad(samples.astype(np.float64), half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(reflected, settings.window)[:: settings.hop]
    power = [_power(windows[start : start + _BLOCK], settings) for start in range(0, frames, _BLOCK)]
    features = np.log10(np.maximum(np.concatenate(power)[:frames].T, _FLOOR))  # [bands, frames]
    features = np.maximum(features, features.max() - _RANGE)
    return np.ascontiguousarray((features + 4.0) / 4.0, np.float32)


def mel_filters(settings: SoundSettings) -> NDArray[np.float64]:
    """Triangles of equal area, equally wide on the mel scale from 0 to half the rate: [bands, window // 2 + 1]."""
    top = settings.rate / 2
    corners = _hertz(np.linspace(0, _mel(top), settings.bands + 2))  # [bands + 2]
    bins = np.linspace(0, top, settings.window // 2 + 1)
    widths = np.diff(corners)
    slopes = corners[:, None] - bins[None]  # [bands + 2, bins]
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))  # [bands, bins]
    filters: NDArray[np.float64] = triangles * (2 / (corners[2:] - corners[:-2]))[:, None]
    return filters


@lru_cache(4)
def _tables(settings: SoundSettings) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The periodic Hann window, [window], and the filters, [bins, bands]."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(settings.window) / settings.window)
    return hann, np.ascontiguousarray(mel_filters(settings).T)


def _power(windows: NDArray[np.float64], settings: SoundSettings) -> NDArray[np.float64]:
    """[frames, window] to the power in each band, [frames, bands]."""
    hann, filters = _tables(settings)
    spectrum = np.fft.rfft(windows * hann, axis=-1)
    power: NDArray[np.float64] = (spectrum.real**2 + spectrum.imag**2) @ filters
    return power


def _mel(hertz: float) -> float:
    return hertz / _LINEAR_HZ if hertz < _BREAK_HZ else _BREAK_HZ / _LINEAR_HZ + math.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    start = _BREAK_HZ / _LINEAR_HZ
    hertz: NDArray[np.float64] = np.where(
        mels < start, mels * _LINEAR_HZ, _BREAK_HZ * np.exp(_LOG_STEP * np.maximum(mels - start, 0))
    )
    return hertz
