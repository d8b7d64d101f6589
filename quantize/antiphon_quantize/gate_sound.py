"""The sound a gate listens to, and what two codecs make of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon.audio.files import read_audio
from antiphon.backends.base import FloatArray
from antiphon.errors import AudioError
from antiphon.models.spec import MimiSpec
from antiphon_quantize.gate_measures import Measure, not_measured
from antiphon_quantize.gate_subject import Codes
from antiphon_quantize.quality import mel_distance_db, resample, si_sdr, stoi

PESQ_RATE: Final = 16_000
LEAST_STOI: Final = 0.5
"""Below this a baseline is not understood (a codec with random weights), and has nothing to lose."""
MOST_SI_SDR_DB: Final = 150.0
"""What float32 resolves, 24 bits: the ratio that is given where there is no distortion to divide by."""


@dataclass(frozen=True, slots=True)
class Sound:
    """Recordings, each followed by silence: ``pcm [n, T * frame_samples]``, ``frames [n]`` of them speech."""

    pcm: FloatArray
    frames: NDArray[np.int64]
    frame_samples: int
    rate: int

    def joined(self, pcm: FloatArray) -> FloatArray:
        """Of ``pcm``, shaped as the recordings, what is heard while they last, in one: ``[N]``."""
        lengths = self.frames * self.frame_samples
        return np.concatenate([row[:length] for row, length in zip(pcm, lengths, strict=True)])


def built_in_clips() -> list[Path]:
    """The recordings that come with the package."""
    folder = Path(str(resources.files("antiphon_client"))) / "clips"
    return sorted(path for path in folder.iterdir() if path.suffix == ".ogg")


def load_sound(paths: Sequence[Path], mimi: MimiSpec, frames: int) -> Sound:
    """Read recordings, at most ``frames`` of each, and let each be followed by silence up to as many.

    Raises:
        AudioError: one cannot be read, or is shorter than a frame.
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
    """What a codec makes of the sound: its own ``codes [n, T, K]``, and PCM of them and of given codes.

    ``spoken`` is from its own codes, ``repeated`` from the baseline's; None for a model that does not speak.
    """

    codes: Codes
    spoken: FloatArray | None
    repeated: FloatArray | None


def measure_codec(sound: Sound, a: CodecOutput, b: CodecOutput) -> Iterator[Measure]:
    """Codes that are the baseline's too; the decoder only, on the same codes; both, against the sound."""
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
    """SI-SDR of one decoder's sound compared with the other's, at most :data:`MOST_SI_SDR_DB`."""
    ratio_db = si_sdr(a, b)
    same = f", no distortion at all, reported as {MOST_SI_SDR_DB:.0f}" if ratio_db == math.inf else ""
    return Measure("codec si-sdr", min(ratio_db, MOST_SI_SDR_DB), detail=f"dB, the decoder alone{same}")


def measure_pesq(clean: FloatArray, a: FloatArray, b: FloatArray, rate: int) -> Measure:
    """Wide-band PESQ (ITU-T P.862.2) by the package ``pesq``, where that is installed."""
    if find_spec("pesq") is None:
        return not_measured("codec pesq loss", "no module pesq: pip install pesq (it needs a C compiler)")
    package = import_module("pesq")
    parts = [resample(part, rate, PESQ_RATE).astype(np.float32) for part in (clean, a, b)]
    try:
        before, after = (float(package.pesq(PESQ_RATE, parts[0], part, "wb")) for part in parts[1:])
    except package.PesqError as error:  # no utterance found, as in what a seeded codec says
        return not_measured("codec pesq loss", f"pesq: {error}")
    return Measure("codec pesq loss", before - after, before, after)
