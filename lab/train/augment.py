"""Effects that change clean synthetic speech as the way to a microphone does: gain, room, band limits, noise,
babble."""

from __future__ import annotations

import numpy as np

from antiphon.arrays import FloatArray

SAMPLE_RATE = 24_000
LONGEST_DELAY_SAMPLES = 7200
"""Longest delay of the coders and resamplers used here, in samples."""


def in_time(heard: FloatArray, sent: FloatArray) -> FloatArray:
    """Return ``heard`` without its delay after ``sent``, at the shift where the two agree best, and as long
    as ``sent``."""
    size = 1 << int(np.ceil(np.log2(sent.size + heard.size)))
    agreement = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(sent, size)), size)
    kept = heard[int(np.argmax(agreement[:LONGEST_DELAY_SAMPLES])) :][: sent.size]
    return np.pad(kept, (0, sent.size - kept.size)).astype(np.float32)


def add_noise(pcm: FloatArray, noise: FloatArray, snr_db: float) -> FloatArray:
    """Return ``pcm`` plus ``noise`` scaled to the signal-to-noise ratio; both ``[samples]``."""
    signal, level = float(np.sqrt(np.mean(pcm**2))), float(np.sqrt(np.mean(noise**2)))
    if signal == 0.0 or level == 0.0:
        return pcm
    return (pcm + noise * (signal / level) * 10 ** (-snr_db / 20)).astype(np.float32)


def coloured_noise(rng: np.random.Generator, samples: int, exponent: float) -> FloatArray:
    """Return noise of unit variance whose power falls as frequency to the ``exponent`` (0 white, 1 pink,
    2 brown)."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    frequency = np.maximum(np.arange(spectrum.size), 1.0)
    noise = np.fft.irfft(spectrum * frequency ** (-exponent / 2), samples)
    unit: FloatArray = (noise / (noise.std() + 1e-9)).astype(np.float32)
    return unit


def add_room(
    rng: np.random.Generator, pcm: FloatArray, decays_s: tuple[float, float] = (0.1, 0.5)
) -> FloatArray:
    """Convolve with a random room: a direct path, then noise that decays by 60 dB in ``decays_s``."""
    decay_s = rng.uniform(*decays_s)
    tail = np.arange(int(decay_s * SAMPLE_RATE)) / SAMPLE_RATE
    response = rng.standard_normal(tail.size) * np.exp(-6.9 * tail / decay_s) * rng.uniform(0.01, 0.05)
    response[0] = 1.0
    size = 1 << int(np.ceil(np.log2(pcm.size + response.size)))
    wet = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(response, size), size)
    return wet[: pcm.size].astype(np.float32)


def limit_band(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Limit the band to between 60..250 Hz and 3.4..9 kHz, as small microphones and telephones do."""
    spectrum = np.fft.rfft(pcm)
    frequency = np.fft.rfftfreq(pcm.size, 1 / SAMPLE_RATE)
    low, high = rng.uniform(60, 250), rng.uniform(3400, 9000)
    gain = 1 / np.sqrt(1 + (low / np.maximum(frequency, 1.0)) ** 4) / np.sqrt(1 + (frequency / high) ** 8)
    return np.fft.irfft(spectrum * gain, pcm.size).astype(np.float32)


def equalise(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Raise and lower parts of the spectrum smoothly at constant loudness, like different microphones.

    Seven frequencies between 60 Hz and half of the sample rate change independently by up to 8 dB.
    """
    spectrum = np.fft.rfft(pcm)
    octaves = np.log2(np.maximum(np.fft.rfftfreq(pcm.size, 1 / SAMPLE_RATE), 60.0))
    knots = np.linspace(np.log2(60.0), np.log2(SAMPLE_RATE / 2), 7)
    gain_db = np.interp(octaves, knots, rng.uniform(-8, 8, knots.size))
    coloured = np.fft.irfft(spectrum * 10 ** (gain_db / 20), pcm.size)
    loudness = float(np.sqrt(np.mean(pcm**2) / (np.mean(coloured**2) + 1e-12)))
    return (coloured * loudness).astype(np.float32)


def disturb(rng: np.random.Generator, pcm: FloatArray, babble: FloatArray | None = None) -> FloatArray:
    """Apply one random path from mouth to microphone; ``babble`` is other speech of the same length."""
    if rng.random() < 0.3:
        pcm = add_room(rng, pcm)
    if rng.random() < 0.25:
        pcm = limit_band(rng, pcm)
    if rng.random() < 0.35:
        pcm = add_noise(pcm, coloured_noise(rng, pcm.size, rng.uniform(0, 2)), rng.uniform(12, 40))
    if babble is not None and rng.random() < 0.1:
        pcm = add_noise(pcm, babble, rng.uniform(10, 25))
    peak = float(np.abs(pcm).max(initial=1e-6))
    return (pcm * (rng.uniform(0.05, 0.95) / peak)).astype(np.float32)
