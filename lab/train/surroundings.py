"""The path from a mouth to the model: noise, other speakers, a room, a level, a line.

It has the kinds that training draws, and those of lab.train.held_out, which it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import sphn

from antiphon.arrays import FloatArray
from antiphon.audio.g711 import Law, decode, encode
from antiphon.audio.opus import OpusDecoder, OpusEncoder
from lab.train import held_out as kept
from lab.train.augment import LONGEST_DELAY_SAMPLES, SAMPLE_RATE, add_room, in_time, limit_band
from lab.train.coders import by_a_narrow_coder, by_a_wide_coder
from lab.train.noises import NOISES

Change = Callable[[np.random.Generator, FloatArray], FloatArray]
TELEPHONE_RATE: Final = 8_000
PACKET_SAMPLES: Final = 480
"""20 ms."""
SOUND_SPEED: Final = 343.0
MOST_IMAGES: Final = 15
"""Most image sources of a box in each direction along a side: for a side of 1.4 m half a second would take
62."""
CALM_SHARE: Final = 0.3
"""Share of training's scenes with no surroundings except for another level."""


def box_response(size_m: tuple[float, float, float], absorbed: float, rng: np.random.Generator) -> FloatArray:
    """Return the impulse response of a box by its image sources, the direct sound first, half a second at
    most.

    ``absorbed`` is the share of the sound's energy that a wall absorbs; mouth and microphone have random
    positions. Images cover half a second, but at most ``MOST_IMAGES`` boxes in each direction.
    """
    source, heard = (np.array([rng.uniform(0.15, 0.85) * side for side in size_m]) for _ in range(2))
    response = np.zeros(SAMPLE_RATE // 2, np.float32)
    direct_m = float(np.linalg.norm(source - heard))
    bounced = np.sqrt(1 - absorbed)
    axes = []
    for axis, side in enumerate(size_m):
        most = min(MOST_IMAGES, int(np.ceil(SOUND_SPEED / 4 / side)))
        reach = range(-most, most + 1)
        places = [(2 * n * side + sign * source[axis] - heard[axis]) for n in reach for sign in (1, -1)]
        bounces = [abs(2 * n - (sign < 0)) for n in reach for sign in (1, -1)]
        axes.append((np.array(places), np.array(bounces)))
    squares = [place**2 for place, _ in axes]
    distance = np.sqrt(squares[0][:, None, None] + squares[1][None, :, None] + squares[2][None, None, :])
    count = axes[0][1][:, None, None] + axes[1][1][None, :, None] + axes[2][1][None, None, :]
    delay = ((distance - direct_m) / SOUND_SPEED * SAMPLE_RATE).astype(np.int64)
    gain = bounced**count * (direct_m + 0.05) / (distance + 0.05)
    is_kept = (delay >= 0) & (delay < response.size)
    np.add.at(response, delay[is_kept], gain[is_kept].astype(np.float32))
    return response


def _in_box(low_m: tuple[float, float, float], high_m: tuple[float, float, float], absorbed: float) -> Change:
    def change(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
        sides = tuple(float(rng.uniform(low, high)) for low, high in zip(low_m, high_m, strict=True))
        response = box_response((sides[0], sides[1], sides[2]), absorbed * rng.uniform(0.7, 1.3), rng)
        size = 1 << int(np.ceil(np.log2(pcm.size + response.size)))
        wet = np.fft.irfft(np.fft.rfft(pcm, size) * np.fft.rfft(response, size), size)[: pcm.size]
        level = np.sqrt(np.mean(pcm**2) / (np.mean(wet**2) + 1e-12))
        heard: FloatArray = (wet * level).astype(np.float32)
        return heard

    return change


def by_telephone(_rng: np.random.Generator, pcm: FloatArray, law: Law = Law.MU) -> FloatArray:
    """Return a sound as a telephone transmits it: at 8 kHz, in a telephone's band, and coded with G.711."""
    longer = np.pad(pcm, (0, LONGEST_DELAY_SAMPLES))  # the delay's own end is cut off
    low = sphn.resample(longer[None], src_sample_rate=SAMPLE_RATE, dst_sample_rate=TELEPHONE_RATE)[0]
    spectrum = np.fft.rfft(low)
    frequency = np.fft.rfftfreq(low.size, 1 / TELEPHONE_RATE)
    spectrum /= np.sqrt(1 + (250 / np.maximum(frequency, 1.0)) ** 8)
    coded = decode(encode(np.fft.irfft(spectrum, low.size).clip(-1, 1).astype(np.float32), law), law)
    wide = sphn.resample(coded[None], src_sample_rate=TELEPHONE_RATE, dst_sample_rate=SAMPLE_RATE)[0]
    return in_time(wide, pcm)


def coarsely_coded(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Return a sound as a low-bitrate codec transmits it: in blocks of 20 ms, faint parts of a spectrum are
    rounded to zero."""
    blocks = _fitted(pcm, -(-pcm.size // PACKET_SAMPLES) * PACKET_SAMPLES).reshape(-1, PACKET_SAMPLES)
    spectrum = np.fft.rfft(blocks)
    step = rng.uniform(0.05, 0.3) * np.abs(spectrum).max(axis=1, keepdims=True) + 1e-6
    coded = np.fft.irfft(np.round(spectrum / step) * step, PACKET_SAMPLES)
    return _fitted(coded.reshape(-1).astype(np.float32), pcm.size)


def _by_opus(_rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Opus at 12 kbit/s."""
    packets = _fitted(pcm, -(-pcm.size // PACKET_SAMPLES) * PACKET_SAMPLES).reshape(-1, PACKET_SAMPLES)
    with OpusEncoder(bitrate=12_000) as encoder, OpusDecoder() as decoder:
        coded = np.concatenate([decoder.decode(encoder.encode(packet)) for packet in packets])
    return _fitted(coded, pcm.size)


def _with_lost_packets(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """A-law with three lost packets of 20 ms in a hundred."""
    heard = by_telephone(rng, pcm, Law.A)
    for start in np.flatnonzero(rng.random(pcm.size // PACKET_SAMPLES) < 0.03):
        heard[start * PACKET_SAMPLES : (start + 1) * PACKET_SAMPLES] = 0
    return heard


def _through_a_loose_contact(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Interrupted two to eight times a second for 3 to 30 ms, or weaker there by 6 dB and more."""
    heard, left = pcm.copy(), rng.uniform(0, 0.5) * (rng.random() < 0.5)
    for _ in range(int(rng.uniform(2, 8) * pcm.size / SAMPLE_RATE)):
        at = int(rng.integers(pcm.size))
        heard[at : at + int(rng.uniform(0.003, 0.03) * SAMPLE_RATE)] *= left
    return heard


def _too_loud(rng: np.random.Generator, pcm: FloatArray) -> FloatArray:
    """Clipped, or compressed where it is loud, as by an overdriven microphone.

    The limit is an absolute level: speech is about 0.1 loud here, and only faint noise passes unchanged.
    """
    top = rng.uniform(0.07, 0.3)
    bent = np.tanh(pcm / top) if rng.random() < 0.5 else (pcm / top).clip(-1, 1)
    heard: FloatArray = bent * np.float32(top)
    return heard


def _fitted(pcm: FloatArray, samples: int) -> FloatArray:
    return np.pad(pcm, (0, max(0, samples - pcm.size)))[:samples].astype(np.float32)


ROOMS: Final[Mapping[str, Change]] = MappingProxyType(
    {
        "tail": add_room,
        "long tail": lambda rng, pcm: add_room(rng, pcm, (0.5, 1.3)),
        "box": _in_box((2.5, 2.5, 2.2), (8.0, 6.0, 3.2), 0.45),
        "bathroom": _in_box((1.4, 1.5, 2.1), (3.0, 2.5, 2.6), 0.25),
        "corridor": _in_box((1.4, 5.0, 2.2), (2.4, 16.0, 3.0), 0.35),
        "large box": _in_box((7.0, 5.0, 3.0), (12.0, 9.0, 4.5), 0.4),
        "hall": _in_box((12.0, 9.0, 5.0), (20.0, 14.0, 8.0), 0.35),
        "stairwell": _in_box((2.2, 2.2, 7.0), (3.0, 3.0, 11.0), 0.25),
    }
)
LINES: Final[Mapping[str, Change]] = MappingProxyType(
    {
        "narrow": limit_band,
        "telephone": by_telephone,
        "coarse": coarsely_coded,
        "loose contact": _through_a_loose_contact,
        "too loud": _too_loud,
        "narrow coder": by_a_narrow_coder,
        "wide coder": by_a_wide_coder,
        "opus": _by_opus,
        "lost packets": _with_lost_packets,
    }
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a scene: the names of a noise, a room and a line of this module, "" for none; the
    noise's level below speech, and a gain.

    ``behind_db`` is the level of other speakers below the speaker, None for none.
    """

    noise: str
    snr_db: float
    room: str
    line: str
    gain: float
    behind_db: float | None

    @classmethod
    def drawn(cls, rng: np.random.Generator, *, held_out: bool = False) -> Surroundings:
        """Draw surroundings: in training three in ten have none; of the others six in ten have noise, 35 % a
        room, 35 % a line, and a fifth other speakers.

        Noise is 8 to 36 dB below speech, in the tests 12 to 30.
        """
        if not held_out and rng.random() < CALM_SHARE:
            return cls("", 0.0, "", "", float(10 ** (rng.uniform(-30, 0) / 20)), None)

        def one_of(kinds: Mapping[str, object], not_trained: tuple[str, ...], share: float) -> str:
            names = [name for name in kinds if (name in not_trained) == held_out]
            return str(rng.choice(names)) if rng.random() < share else ""

        return cls(
            noise=one_of(NOISES, kept.NOISES, 0.6),
            snr_db=float(rng.uniform(12, 30) if held_out else rng.uniform(8, 36)),
            room=one_of(ROOMS, kept.ROOMS, 0.35),
            line=one_of(LINES, kept.LINES, 0.35),
            gain=float(10 ** (rng.uniform(-30, 0) / 20)),
            behind_db=float(rng.uniform(10, 25)) if rng.random() < 0.2 else None,
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the noise, the room and the line, if there are any."""
        return tuple(name for name in (self.noise, self.room, self.line) if name)

    def heard(
        self, rng: np.random.Generator, pcm: FloatArray, loudness: float, behind: FloatArray | None = None
    ) -> FloatArray:
        """Return ``pcm [samples]`` at the microphone; ``loudness`` is the root mean square of its speech.

        ``behind`` is other speakers' simultaneous speech, as loud as the speaker.
        """
        if self.behind_db is not None and behind is not None:
            pcm = pcm + behind * 10 ** (-self.behind_db / 20)
        if self.room:
            pcm = ROOMS[self.room](rng, pcm)
        if self.noise:
            pcm = pcm + NOISES[self.noise](rng, pcm.size) * loudness * 10 ** (-self.snr_db / 20)
        if self.line:
            pcm = LINES[self.line](rng, pcm.astype(np.float32))
        return (pcm * self.gain).clip(-1, 1).astype(np.float32)
