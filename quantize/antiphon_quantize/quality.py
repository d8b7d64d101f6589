"""Similarity of two recordings: STOI for intelligibility, SI-SDR for the waveform, mel bands for its sound.

Taal, Hendriks, Heusdens and Jensen 2011, "An Algorithm for Intelligibility Prediction of Time-Frequency
Weighted Noisy Speech"; Le Roux, Wisdom, Erdogan and Hershey 2019, "SDR - half-baked or well done?".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]
Floats = NDArray[np.float64]

STOI_RATE = 10_000
"""The rate the measure is defined at."""
_FRAME, _HOP, _FFT = 256, 128, 512
_BANDS, _LOWEST_HZ = 15, 150.0
_SEGMENT_FRAMES = 30
"""Frames that are correlated together: 384 ms."""
_RANGE_DB = 40.0
"""Frames this far below the loudest are silence, and do not count."""
_CLIP_DB = 15.0
"""The most by which a band of the other recording may exceed the clean one."""
_MEL_FFT, _MEL_HOP, _MEL_BANDS, _MEL_RANGE_DB = 1024, 256, 80, 80.0
_TINY = float(np.finfo(np.float64).eps)


def si_sdr(clean: Samples, other: Samples) -> float:
    """Scale-invariant signal-to-distortion ratio in dB of ``other [N]`` to ``clean [N]``; inf if they agree.

    Raises:
        ValueError: they differ in length, or ``clean`` is silent.
    """
    clean, other = _paired(clean, other)
    energy = float(clean @ clean)
    if energy == 0:
        raise ValueError("the clean recording is silent: there is no ratio to it")
    target = clean * (float(clean @ other) / energy)
    noise = float(np.square(other - target).sum())
    signal = float(target @ target)
    return 10 * math.log10(signal / noise) if noise and signal else (math.inf if signal else -math.inf)


def stoi(clean: Samples, other: Samples, rate: int) -> float:
    """Short-time objective intelligibility of ``other [N]``, with ``clean [N]`` as what should be heard.

    From about 0 to 1; both at ``rate`` in Hz, in line with each other.

    Raises:
        ValueError: they differ in length, or hold less than 0.4 s that is not silence.
    """
    pair = [resample(part, rate, STOI_RATE) for part in _paired(clean, other)]
    bands = [_bands(part) for part in _without_silence(*pair)]
    count = bands[0].shape[1] - _SEGMENT_FRAMES + 1
    if count < 1:
        raise ValueError(f"{bands[0].shape[1]} frames that are not silent; {_SEGMENT_FRAMES} are needed")
    x, y = (np.lib.stride_tricks.sliding_window_view(part, _SEGMENT_FRAMES, axis=1) for part in bands)
    level = _norm(x) / (_norm(y) + _TINY)
    y = np.minimum(y * level, x * (1 + 10 ** (_CLIP_DB / 20)))
    return float((_normalised(x) * _normalised(y)).sum() / (_BANDS * count))


def mel_distance_db(clean: Samples, other: Samples, rate: int) -> float:
    """Mean difference in dB of the mel spectrograms of two recordings ``[N]`` at ``rate`` in Hz.

    80 triangles (Davis and Mermelstein 1980, mel = 2595 log10(1 + f / 700)) over magnitudes of 1024 samples
    every 256. What is more than 80 dB below the loudest of ``clean`` counts as silence.

    Raises:
        ValueError: they differ in length, are shorter than 1024 samples, or ``clean`` is silent.
    """
    pair = _paired(clean, other)
    if len(pair[0]) < _MEL_FFT:
        raise ValueError(f"{len(pair[0])} samples are less than a frame of {_MEL_FFT}")
    if not pair[0].any():
        raise ValueError("the clean recording is silent: there is no distance to it")
    one, two = (_mel(part, rate) for part in pair)
    floor = one.max() * 10 ** (-_MEL_RANGE_DB / 20)
    logs = [20 * np.log10(np.maximum(part, floor)) for part in (one, two)]
    return float(np.abs(logs[0] - logs[1]).mean())


def _mel(x: Floats, rate: int) -> Floats:
    """Magnitudes ``[bands, frames]``."""
    frames = np.lib.stride_tricks.sliding_window_view(x, _MEL_FFT)[::_MEL_HOP]
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(_MEL_FFT), axis=1))
    edges = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), _MEL_BANDS + 2)
    low, middle, high = ((700 * (10 ** (edges[i : i + _MEL_BANDS] / 2595) - 1))[:, None] for i in range(3))
    hertz = np.fft.rfftfreq(_MEL_FFT, 1 / rate)
    triangles = np.clip(np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)), 0, None)
    mel: Floats = triangles @ spectrum.T
    return mel


def _paired(clean: Samples, other: Samples) -> tuple[Floats, Floats]:
    if clean.shape != other.shape or clean.ndim != 1:
        raise ValueError(f"recordings of shapes {clean.shape} and {other.shape}; both have to be [N]")
    return clean.astype(np.float64), other.astype(np.float64)


def _norm(x: Floats) -> Floats:
    norm: Floats = np.linalg.norm(x, axis=-1, keepdims=True)
    return norm


def _normalised(x: Floats) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    normalised: Floats = centred / (_norm(centred) + _TINY)
    return normalised


def resample(x: Samples, source_rate: int, target_rate: int) -> Floats:
    """``x [N]`` at another rate, ``[ceil(N * target / source)]``: a Kaiser-windowed sinc, 60 dB down.

    The filter is the one of the published evaluations of STOI (Octave's ``resample``).
    """
    divisor = math.gcd(source_rate, target_rate)
    up, down = target_rate // divisor, source_rate // divisor
    if up == down:
        return x.astype(np.float64)
    cutoff = 1 / (2 * max(up, down))
    half = math.ceil((60 - 8) / (28.714 * cutoff / 10))
    taps = np.sinc(2 * cutoff * np.arange(-half, half + 1)) * np.kaiser(2 * half + 1, 0.1102 * (60 - 8.7))
    stuffed = np.zeros(len(x) * up)
    stuffed[::up] = x
    size = 1 << (len(stuffed) + len(taps)).bit_length()
    spectrum = np.fft.rfft(stuffed, size) * np.fft.rfft(taps * up / taps.sum(), size)
    found: Floats = np.fft.irfft(spectrum, size)[half : half + len(stuffed) : down]
    return found


def _frames(x: Floats) -> Floats:
    window = np.hanning(_FRAME + 2)[1:-1]
    return (
        np.lib.stride_tricks.sliding_window_view(x, _FRAME)[: -1 if len(x) > _FRAME else None : _HOP] * window
    )


def _without_silence(clean: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Both recordings without the frames in which the clean one is silent, overlapped and added anew."""
    if len(clean) <= _FRAME:
        raise ValueError(f"{len(clean)} samples at {STOI_RATE} Hz are less than a frame of {_FRAME}")
    frames = [_frames(part) for part in (clean, other)]
    level = 20 * np.log10(np.linalg.norm(frames[0], axis=1) + _TINY)
    heard = level > level.max() - _RANGE_DB
    return _overlap_add(frames[0][heard]), _overlap_add(frames[1][heard])


def _overlap_add(frames: Floats) -> Floats:
    joined = np.zeros((len(frames) + 1, _HOP))
    joined[:-1] += frames[:, :_HOP]
    joined[1:] += frames[:, _HOP:]
    return joined.reshape(-1)


def _bands(x: Floats) -> Floats:
    """Magnitudes in third-octave bands: ``[bands, frames]``."""
    power = (
        np.square(np.abs(np.fft.rfft(_frames(x), _FFT))) if len(x) > _FRAME else np.zeros((0, _FFT // 2 + 1))
    )
    hertz = np.arange(_FFT // 2 + 1) * (STOI_RATE / _FFT)
    centre = _LOWEST_HZ * 2.0 ** (np.arange(_BANDS) / 3)
    edges = np.stack([centre * 2 ** (-1 / 6), centre * 2 ** (1 / 6)])
    low, high = np.abs(hertz - edges[..., None]).argmin(axis=-1)[..., None]
    bins = np.arange(len(hertz))
    inside = (bins >= low) & (bins < high)
    bands: Floats = np.sqrt(inside @ power.T)
    return bands
