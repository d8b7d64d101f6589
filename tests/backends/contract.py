"""Requirements of the contract suite for a backend under test, and a driver that runs single ticks.

A frame of a text to speech session is a few words, different for each frame of a voice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.backends.base import (
    NO_TOKEN,
    Backend,
    BackendInfo,
    BoolArray,
    FloatArray,
    IntArray,
    StepInputs,
    StepOutputs,
    TextEntry,
)
from antiphon.backends.tts import TEXT_STEPS
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import ScriptRules
from antiphon.models.spec import PipelineKind

SLOTS = 5
"""Rows of every backend under test: above one, and no power of two."""

GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)
SAMPLED = SamplingParameters(
    text_temperature=1.0,
    text_topk=40,
    audio_temperature=1.0,
    audio_topk=40,
    pad_mult=-1.0,
    repetition_penalty=1.5,
    text_seed=5,
    audio_seed=6,
)
"""Every parameter has a part in what is said."""


SENTENCES = ("Seven", "Seventeen", "Ten", "Rain")


def as_it_is(pcm: FloatArray) -> FloatArray:
    return pcm


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test.

    ``make`` makes it with a number of slots. ``wrap_frames``: two thirds of them are more than its longest
    attention window holds. ``pcm_tolerance`` is the largest difference between the same session on different
    rows, or beside other rows (0: identical); on one row in fixed ticks there is none. ``comparable`` blanks
    what may lawfully differ between sessions. ``samples`` says that a model's logits are sampled, by every
    parameter there is for its pipeline but those it ``ignores``.
    ``grows``: a row takes memory only while it speaks, and at most what the facts say.
    """

    name: str
    make: Callable[[int], Backend]
    wrap_frames: int
    pcm_tolerance: float = 0.0
    comparable: Callable[[FloatArray], FloatArray] = as_it_is
    samples: bool = True
    grows: bool = False
    ignores: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What one row got from one tick; ``pcm`` and ``vad`` are None where it emitted none."""

    consumed: bool
    emitted: bool
    pcm: FloatArray | None
    text_token: int
    vad: FloatArray | None = None


@dataclass(slots=True)
class Driver:
    """Steps a backend; ``is_backward`` names each tick's rows from the highest down."""

    backend: Backend
    comparable: Callable[[FloatArray], FloatArray] = as_it_is
    is_backward: bool = False
    last: StepOutputs | None = field(default=None)

    @property
    def info(self) -> BackendInfo:
        return self.backend.info

    def tick(
        self, frames: Mapping[int, FloatArray], *, reset: Collection[int] = (), fixed: bool = False
    ) -> dict[int, Reply]:
        """Step the rows in ``frames``, of which ``reset`` are made fresh first."""
        assert set(reset) <= frames.keys()
        rows = np.array(sorted(frames, reverse=self.is_backward), np.int32)
        fresh = np.isin(rows, list(reset))
        pcm = np.stack([frames[row] for row in rows.tolist()])
        inputs = step_inputs(self.info, rows, fresh, pcm, fixed=fixed)
        outputs = self.backend.step(inputs)
        self.last = outputs
        pcm[:] = np.nan  # an input belongs to the caller again once the step is over
        fresh[:] = ~fresh
        named = rows.tolist()
        rows[:] = 0
        return {row: self._reply(outputs, place) for place, row in enumerate(named)}

    def run(self, row: int, frames: Sequence[FloatArray] | FloatArray, *, fixed: bool = False) -> list[Reply]:
        """Run a whole session on one row, from its reset, all other rows being idle."""
        return [
            self.tick({row: frame}, reset={row} if index == 0 else (), fixed=fixed)[row]
            for index, frame in enumerate(frames)
        ]

    def _reply(self, outputs: StepOutputs, row: int) -> Reply:
        """What stands in one place of the outputs."""
        emitted = bool(outputs.emitted[row])
        pcm = self.comparable(outputs.pcm[row].copy()) if emitted and outputs.pcm is not None else None
        token = NO_TOKEN if outputs.text_tokens is None else int(outputs.text_tokens[row])
        vad = outputs.vad[row].copy() if emitted and outputs.vad is not None else None
        return Reply(bool(outputs.consumed[row]), emitted, pcm, token, vad)


def step_inputs(
    info: BackendInfo, rows: IntArray, reset: BoolArray, pcm: FloatArray, *, fixed: bool = False
) -> StepInputs:
    """A tick's input: PCM float32 ``[m, frame_samples]``, or the words that stand for it."""
    if info.spec.kind is not PipelineKind.TTS:
        return StepInputs(rows, reset, pcm, is_fixed=fixed)
    return StepInputs(rows, reset, None, tuple(words(info, frame) for frame in pcm), is_fixed=fixed)


def words(info: BackendInfo, frame: FloatArray) -> tuple[TextEntry, ...]:
    """Three words of one to four tokens that follow from a frame's bytes; for pocket a sentence each."""
    random = np.random.default_rng(zlib.crc32(frame.tobytes()))
    lengths = random.integers(1, 5, 3)
    if info.spec.lm is None:
        return tuple(TextEntry((5,) * n, f"{SENTENCES[n - 1]}.") for n in lengths.tolist())
    return tuple(TextEntry(tuple(random.integers(4, info.spec.lm.text_card, n).tolist())) for n in lengths)


def voice(seed: int, frames: int, info: BackendInfo, *, level: float = 0.3) -> FloatArray:
    """Synthesise a gliding, breathy tone, float32 ``[frames, frame_samples]``, different for each seed."""
    random = np.random.default_rng(seed)
    count = frames * info.spec.frame_samples
    time_s = np.arange(count) / info.spec.sample_rate
    pitch_hz = random.uniform(90, 400) * (1 + 0.3 * np.sin(2 * np.pi * random.uniform(0.5, 3) * time_s))
    tone = np.sin(2 * np.pi * np.cumsum(pitch_hz) / info.spec.sample_rate)
    envelope = 0.6 + 0.4 * np.sin(2 * np.pi * random.uniform(1, 5) * time_s + random.uniform(0, 6))
    pcm = level * envelope * (0.7 * tone + 0.3 * random.standard_normal(count))
    return pcm.astype(np.float32).reshape(frames, info.spec.frame_samples)


def assert_same(got: Sequence[Reply], wanted: Sequence[Reply], tolerance: float = 0.0) -> None:
    """Check that two sessions had the same replies: flags and tokens exactly, samples within a tolerance."""
    assert len(got) == len(wanted)
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        flags = (one.consumed, one.emitted, one.text_token)
        assert flags == (other.consumed, other.emitted, other.text_token), f"frame {index}"
        for what in ("pcm", "vad"):
            mine, theirs = getattr(one, what), getattr(other, what)
            assert (mine is None) == (theirs is None), f"{what} of frame {index}"
            if mine is not None:
                np.testing.assert_allclose(
                    mine, theirs, rtol=0, atol=tolerance, err_msg=f"{what} of frame {index}"
                )


def differ(got: Sequence[Reply], other: Sequence[Reply]) -> bool:
    """Say whether any token or sample of two sessions differs."""
    return any(
        one.text_token != two.text_token
        or (one.pcm is not None and two.pcm is not None and not np.array_equal(one.pcm, two.pcm))
        for one, two in zip(got, other, strict=True)
    )


def silent_ticks(info: BackendInfo) -> int:
    """How many of a session's first ticks have no reply; those of text to speech are worth several steps."""
    if info.spec.kind is not PipelineKind.TTS or info.spec.lm is None:
        return info.spec.delay_frames
    rules, steps, ticks = ScriptRules.of(info.spec), 0, 0
    while (steps := min(steps + TEXT_STEPS, max(steps, rules.audio_delay))) < rules.first_sound:
        steps, ticks = steps + 1, ticks + 1
    return ticks


def speaks(info: BackendInfo) -> bool:
    """Say whether a pipeline has PCM out."""
    return info.spec.kind is not PipelineKind.STT


def speaks_text(info: BackendInfo) -> bool:
    """Say whether a pipeline has text tokens of its own choice."""
    return info.spec.kind in (PipelineKind.DUPLEX, PipelineKind.STT)


def has_voice(info: BackendInfo) -> bool:
    """Say whether a pipeline chooses audio tokens."""
    return info.spec.kind in (PipelineKind.DUPLEX, PipelineKind.TTS)


def chooses(info: BackendInfo) -> bool:
    """Say whether a pipeline chooses any tokens."""
    return info.spec.kind is not PipelineKind.CODEC
