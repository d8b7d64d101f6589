"""Speaks with hibari, Kokoro's voice "af_heart" in a graph of 8 MB, at a thirtieth of Kokoro's cost.

The graph returns spectra instead of sound: of a train of pulses at its pitch, of noise, and of the rest. So
another throat changes pitch, formants and breath before there is sound, and one voice becomes many. The files
are those of lab.train.material; the phonemes are Kokoro's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.backends.onnx.sessions import onnxruntime
from lab.train.kokoro import ENGLISH, Line, OutputFrame
from lab.train.material import HIBARI_DURATIONS
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.throats import Throat

PROGRAM: Final = "hibari"
"""The ``program`` of a :class:`Voice` of hibari; its name is espeak-ng's name of an accent."""
BINS, HOP = 601, 300
"""Bins of a spectrum, and samples between two."""
HIGHEST_HZ: Final = 11_000.0
"""Frequency of the highest harmonic of the pulses."""
VOICED_HZ: Final = 40.0
"""Pitch below which a frame is without pulses."""
LOUDEST: Final = 7.0
"""Limit of the spectra's logarithms."""
BREATH: Final = 0.7
"""Standard deviation of the noise's gain in another throat, as a logarithm."""
HEARD: Final[Mapping[str, str]] = MappingProxyType({"ɒ": "ɑ", "Q": "O", "a": "æ", "ɐ": "ə", "ː": ""})
"""British vowels by the American ones that the voice has."""

Spectra = NDArray[np.float32]
WINDOW: Final = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(4 * HOP) / (4 * HOP))).astype(np.float32)


def pulses(hz: FloatArray) -> FloatArray:
    """Return a train of pulses ``[frames * HOP]`` at the pitch of each frame: equal harmonics up to
    ``HIGHEST_HZ``."""
    at = (np.arange(hz.size * HOP) + 0.5) / HOP - 0.5
    each = np.interp(at, np.arange(hz.size), hz)
    is_voiced, each = each > VOICED_HZ, np.maximum(each, VOICED_HZ)
    half = np.pi * np.modf(np.cumsum(each) / SAMPLE_RATE)[0]
    count = np.floor(HIGHEST_HZ / each) + 0.5
    below, above = 2 * np.sin(half), np.sin(2 * count * half)
    is_peak = np.abs(below) <= 2e-3
    summed = np.where(is_peak, count, above / np.where(is_peak, 1, below)) - 0.5
    return np.where(is_voiced, summed, 0).astype(np.float32)


def analysed(pcm: FloatArray) -> NDArray[np.complex64]:
    """Return the spectra ``[frames, BINS]`` of ``pcm [frames * HOP]``; a unit cosine has a magnitude of
    one."""
    padded = np.pad(pcm, 2 * HOP, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 4 * HOP)[: pcm.size : HOP]
    return np.fft.rfft(frames * (WINDOW / HOP), axis=1).astype(np.complex64)


def synthesised(spectra: NDArray[np.complex64]) -> FloatArray:
    """Return the sound ``[frames * HOP]`` of spectra ``[frames, BINS]``: the inverse of a windowed
    analysis."""
    parts = np.fft.irfft(spectra, 4 * HOP, axis=1).astype(np.float32) * WINDOW
    pcm, weight = (np.zeros(((len(parts) + 3), HOP), np.float32) for _ in range(2))
    for place in range(4):
        span = slice(place * HOP, (place + 1) * HOP)
        pcm[place : place + len(parts)] += parts[:, span]
        weight[place : place + len(parts)] += WINDOW[span] ** 2
    whole: FloatArray = (pcm / np.maximum(weight, 1e-11)).reshape(-1)
    return whole[2 * HOP : (2 + len(parts)) * HOP]


def _stretched(some: Spectra, ratio: float) -> Spectra:
    """``[BINS, frames]`` with every formant at ``ratio`` times its frequency."""
    at = np.minimum(np.arange(BINS) / ratio, BINS - 1.001)
    first, share = at.astype(np.int64), (at % 1)[:, None].astype(np.float32)
    return some[first] * (1 - share) + some[first + 1] * share


def _pitch(throat: Throat, hz: FloatArray) -> FloatArray:
    voiced = hz[hz > VOICED_HZ]
    if not voiced.size:
        return hz
    swung = throat.median_hz * (np.maximum(hz, VOICED_HZ) / np.median(voiced)) ** throat.swing_ratio
    return np.where(hz > VOICED_HZ, np.clip(swung, 50, 600), hz).astype(np.float32)


class Hibari:
    """The synthesiser hibari in this process.

    Raises:
        SystemExit: its files are not in the folder.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        known: dict[str, int] = json.loads((folder / "symbols.json").read_text())
        self.symbols = {accent: known if accent == ENGLISH[0] else _translated(known) for accent in ENGLISH}

    def speak(self, voice: Voice, text: str, between: str = " ") -> OutputFrame:
        """Synthesise ``text`` in the accent of ``voice``, modified by the voice's throat, if any.

        ``between`` are the symbols between words. The same text and voice give the same sound.

        Raises:
            ValueError: the text is empty.
        """
        line = Line.of(text, voice.name, self.symbols[voice.name], between)
        throat = voice.throat
        speed = voice.of_its_own[0] / (throat.duration_ratio if throat else 1.0)
        inputs = {
            "ids": np.array([[0, *line.tokens, 0]], np.int64),
            "speed": np.array([speed], np.float32),
        }
        names = ["lh", "theta", "ln", "lr", "phi", "f0", HIBARI_DURATIONS]
        *parts, lasting = self._session.run(names, inputs)
        rng = np.random.default_rng(_seed(voice, text))
        pcm = sounding(rng, throat, *(part[0] for part in parts))
        return OutputFrame(pcm, line.starts_s(lasting.reshape(-1)))


def sounding(
    rng: np.random.Generator,
    throat: Throat | None,
    pulsed: Spectra,
    turned: Spectra,
    noisy: Spectra,
    rest: Spectra,
    phases: Spectra,
    hz: FloatArray,
) -> FloatArray:
    """Return the sound of the graph's spectra ``[BINS, frames]``, which are logarithms of gains and phases,
    and of its pitch ``[frames]``."""
    if throat is not None:
        pulsed, turned, noisy, rest = (
            _stretched(one, throat.formant_ratio) for one in (pulsed, turned, noisy, rest)
        )
        hz, noisy = _pitch(throat, hz), noisy + np.float32(rng.normal(0, BREATH))
    spectra = analysed(pulses(hz)).T * np.exp(np.minimum(pulsed, LOUDEST) + 1j * np.pi * np.tanh(turned))
    spectra += np.exp(np.minimum(noisy, LOUDEST)) * rng.standard_normal((2, *noisy.shape)).T.dot([1, 1j]).T
    spectra += np.exp(np.minimum(rest, LOUDEST) + 1j * phases)
    return synthesised(np.ascontiguousarray(spectra.T, np.complex64))


def _translated(known: Mapping[str, int]) -> dict[str, int]:
    """The symbols of British phonemes; those without a sound of their own are left out."""
    return {
        symbol: known[HEARD.get(symbol, symbol)] for symbol in known if HEARD.get(symbol, symbol) in known
    }


def _seed(voice: Voice, text: str) -> int:
    facts = f"{voice.name} {voice.words_per_minute} {voice.throat and astuple(voice.throat)} {text}"
    return int.from_bytes(hashlib.sha256(facts.encode()).digest()[:8])
