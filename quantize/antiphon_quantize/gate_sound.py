"""Recordings for the gate, and measures of how two codecs reproduce them.

The similarity of two recordings is measured by STOI (intelligibility), SI-SDR (waveform) and mel bands
(timbre). Taal, Hendriks, Heusdens and Jensen 2011, "An Algorithm for Intelligibility Prediction of
Time-Frequency Weighted Noisy Speech"; Le Roux, Wisdom, Erdogan and Hershey 2019, "SDR - half-baked or well
done?".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.files import read_audio
from antiphon.backends.base import FloatArray
from antiphon.errors import AudioError
from antiphon.models.spec import MimiSpec
from antiphon_quantize.gate_measures import Measure, not_measured
from antiphon_quantize.gate_subject import Codes

Samples = NDArray[Any]
Floats = NDArray[np.float64]

STOI_RATE = 10_000
"""The sample rate that the measure is defined for."""
_FRAME, _HOP, _FFT = 256, 128, 512
_BANDS, _LOWEST_HZ = 15, 150.0
_SEGMENT_FRAMES = 30
"""Frames correlated together: 384 ms."""
_RANGE_DB = 40.0
"""Level below that of the loudest frame at which a frame counts as silent and is left out."""
_CLIP_DB = 15.0
"""Largest excess of a band over the clean recording."""
_MEL_FFT, _MEL_HOP, _MEL_BANDS, _MEL_RANGE_DB = 1024, 256, 80, 80.0
_TINY = float(np.finfo(np.float64).eps)


def si_sdr(clean: Samples, other: Samples) -> float:
    """Scale-invariant signal-to-distortion ratio in dB of ``other [N]`` to ``clean [N]``; inf if they agree.

    Raises:
        ValueError: the lengths differ, or ``clean`` is silent.
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
    """Short-time objective intelligibility of ``other [N]``, with ``clean [N]`` as the reference.

    The result is from about 0 to 1; both recordings are aligned, at ``rate`` in Hz.

    Raises:
        ValueError: the lengths differ, or ``clean`` has less than 0.4 s of sound that is not silence.
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
    every 256. Levels more than 80 dB below the loudest of ``clean`` count as silence.

    Raises:
        ValueError: the lengths differ, the recordings are shorter than 1024 samples, or ``clean`` is silent.
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
    """``x [N]`` at another rate, ``[ceil(N * target / source)]``, by a Kaiser-windowed sinc.

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
    """Both recordings without the frames in which the clean one is silent, overlap-added again."""
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


PESQ_RATE: Final = 16_000
LEAST_STOI: Final = 0.5
"""STOI below which a baseline is unintelligible (a codec with random weights), in which case a loss does not
count.
"""
MOST_SI_SDR_DB: Final = 150.0
"""SI-SDR that recordings without distortion get: the resolution of float32, 24 bits."""


@dataclass(frozen=True, slots=True)
class Sound:
    """Recordings, each followed by silence: ``pcm [n, T * frame_samples]``, of which the first ``frames [n]``
    frames are speech.
    """

    pcm: FloatArray
    frames: NDArray[np.int64]
    frame_samples: int
    rate: int

    def joined(self, pcm: FloatArray) -> FloatArray:
        """Cut the rows of ``pcm``, which has the shape of the recordings, to the recordings' lengths, and
        concatenate them to ``[N]``.
        """
        lengths = self.frames * self.frame_samples
        return np.concatenate([row[:length] for row, length in zip(pcm, lengths, strict=True)])


def built_in_clips() -> list[Path]:
    """The recordings in the package ``antiphon_client``, sorted."""
    folder = Path(str(resources.files("antiphon_client"))) / "clips"
    return sorted(path for path in folder.iterdir() if path.suffix == ".ogg")


def load_sound(paths: Sequence[Path], mimi: MimiSpec, frames: int) -> Sound:
    """Read recordings, at most ``frames`` of each, each followed by silence up to that length.

    Raises:
        AudioError: a recording cannot be read, or is shorter than a frame.
    """
    samples, pcm = mimi.frame_samples, np.zeros((len(paths), frames * mimi.frame_samples), np.float32)
    lengths = []
    for row, path in zip(pcm, paths, strict=True):
        recording = read_audio(path, mimi.sample_rate)[: len(row)]
        lengths.append(len(recording) // samples)
        if not lengths[-1]:
            raise AudioError(f"{path} has {len(recording)} samples, less than a frame of {samples}")
        row[: len(recording)] = recording
    return Sound(pcm, np.array(lengths), samples, mimi.sample_rate)


@dataclass(frozen=True, slots=True)
class CodecOutput:
    """A codec's output for the sound: its own ``codes [n, T, K]``, and PCM from them and from given codes.

    ``spoken`` is decoded from its own codes, ``repeated`` from the baseline's codes; both are None for a
    model without audio output.
    """

    codes: Codes
    spoken: FloatArray | None
    repeated: FloatArray | None


def measure_codec(sound: Sound, a: CodecOutput, b: CodecOutput) -> Iterator[Measure]:
    """Measure the share of equal codes, the difference of the two decoders on the same codes, and how far
    each codec's whole output differs from the sound.
    """
    inside = np.arange(a.codes.shape[1]) < sound.frames[:, None]
    equal = (a.codes == b.codes)[inside]
    yield Measure("codec semantic codes", float(equal[:, 0].mean()), detail="equal to the baseline's")
    yield Measure("codec codes", float(equal.mean()), detail="equal to the baseline's")
    if a.spoken is None or b.spoken is None or a.repeated is None or b.repeated is None:
        return
    broken = max(float(1 - np.isfinite(part).mean()) for part in (b.spoken, b.repeated))
    if broken:
        yield Measure("codec nonfinite", broken, detail="of the samples, silence included")
        return
    clean = sound.joined(sound.pcm)
    same = [sound.joined(part) for part in (a.repeated, b.repeated)]
    yield measure_distortion(*same)
    own = [sound.joined(part) for part in (a.spoken, b.spoken)]
    before, after = (stoi(clean, part, sound.rate) for part in own)
    if before < LEAST_STOI:
        why = f"the baseline's own speech is not intelligible: STOI {before:.2f}"
        yield not_measured("codec stoi loss", why)
    else:
        yield Measure("codec stoi loss", before - after, before, after)
    before, after = (mel_distance_db(clean, part, sound.rate) for part in own)
    yield Measure("codec mel loss", after - before, before, after, detail="dB")
    yield measure_pesq(clean, own[0], own[1], sound.rate)


def measure_distortion(a: FloatArray, b: FloatArray) -> Measure:
    """SI-SDR between the sound of the two decoders, at most :data:`MOST_SI_SDR_DB`."""
    ratio_db = si_sdr(a, b)
    same = f", no distortion at all, reported as {MOST_SI_SDR_DB:.0f}" if ratio_db == math.inf else ""
    return Measure("codec si-sdr", min(ratio_db, MOST_SI_SDR_DB), detail=f"dB, the decoder alone{same}")


def measure_pesq(clean: FloatArray, a: FloatArray, b: FloatArray, rate: int) -> Measure:
    """The loss of wide-band PESQ (ITU-T P.862.2) from ``a`` to ``b``; needs the package ``pesq``."""
    if find_spec("pesq") is None:
        return not_measured("codec pesq loss", "no module pesq: pip install pesq (it needs a C compiler)")
    package = import_module("pesq")
    parts = [resample(part, rate, PESQ_RATE).astype(np.float32) for part in (clean, a, b)]
    try:
        before, after = (float(package.pesq(PESQ_RATE, parts[0], part, "wb")) for part in parts[1:])
    except package.PesqError as error:  # no utterance found, as in the output of a codec with random weights
        return not_measured("codec pesq loss", f"pesq: {error}")
    return Measure("codec pesq loss", before - after, before, after)
