"""Pocket-TTS on ONNX Runtime: each row is one utterance, and each tick computes a frame of every row in one
batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    FloatArray,
    IntArray,
    PrimeProgress,
    Progress,
    StepInputs,
    StepOutputs,
    TextEntry,
)
from antiphon.backends.chunks import Chunk, Chunker
from antiphon.backends.host import RowHost, check_inputs, check_row
from antiphon.backends.onnx.executor import OnnxRows
from antiphon.backends.onnx.pocket_language import POSITION, PocketLanguage
from antiphon.backends.onnx.pocket_voices import KEPT_BYTES, PocketVoices
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.snapshots import HostArrays, TensorSpec, check_state
from antiphon.backends.speaker import Silence, Speech, SpokenRow, fade_in
from antiphon.backends.stopwatch import Stopwatch
from antiphon.errors import UnsupportedError
from antiphon.models.pocket_shape import LONGEST_CHUNK_TOKENS, READ_POSITIONS, PocketShape, PocketText
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

TEXT, LATENT = "text", "latent"
SPOKEN: Final = ("lm", "decode")
"""Stages whose state is in a snapshot; the encoder of a voice keeps no state after the voice."""
TICK_READS: Final = 2
"""Maximum runs of "read" in a tick, of 32 positions each. Other rows wait for them, so chunks that begin at
once are read over several ticks."""


class Frames(NamedTuple):
    """The result of a tick, in the order of its rows: see :class:`antiphon.backends.base.StepOutputs`."""

    consumed: BoolArray
    emitted: BoolArray
    pcm: FloatArray
    begun: IntArray
    stage_ms: Mapping[str, float]


class OnnxUtterances(OnnxRows, HostArrays):
    """S rows of the stages "encode" (if the model accepts recordings), "lm" and "decode", and the rows'
    texts.
    """

    def __init__(
        self,
        stages: Mapping[str, Stage],
        read: Stage,
        facts: BackendInfo,
        text: PocketText,
        *,
        chunk_tokens: int,
    ) -> None:
        """Use the stages of loaded graphs; ``read`` shares the state of "lm"."""
        spec, shape = facts.spec, PocketShape.of(facts.spec)
        assert shape is not None
        self._read, self._text, self.chunk_tokens = read, text, chunk_tokens
        self.shape, self.lm = shape, PocketLanguage(read, stages["lm"], shape)
        begins = bool(spec.generation["tts_config"]["flow_lm"].get("insert_bos_before_voice"))
        self.voices = PocketVoices(self.lm, stages.get("encode"), begins=begins)
        self._width = stages["lm"].graph.inputs[LATENT].shape[1]
        super().__init__(spec, stages, facts)
        self.facts = replace(
            facts, row_ms=self.time_row(self._frame), memory={**facts.memory, "caches": KEPT_BYTES}
        )

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
        super().allocate(slots)
        self.lm.allocate(slots)
        self.speakers = [self._fresh() for _ in range(slots)]
        self.parameters = [SamplingParameters() for _ in range(slots)]
        self.latents: FloatArray = np.full((slots, self._width), np.nan, np.float32)
        self._unread: list[list[int]] = [[] for _ in range(slots)]  # tokens of each row's chunk

    def _fresh(self) -> SpokenRow:
        return SpokenRow(Chunker(self._text.count, self.chunk_tokens))

    def _frame(self, rows: IntArray) -> None:
        """Compute a frame of all rows, for its time."""
        silence = np.zeros_like(self.latents)
        self.lm.say(rows, self.latents, silence, is_fixed=True)
        self._decode_latents(rows, silence, is_fixed=True)

    def warm_up(self, progress: Progress) -> None:
        """Run each stage at several sizes; the graph "read" runs one row at a time."""
        self.lm.read(0, [0])
        super().warm_up(progress)

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Reset rows bit for bit: rings are erased too."""
        named = [int(row) for row in rows]
        self.lm.reset(named)
        super().reset(named)
        for row in named:
            self.voices.forget(row)
            self.speakers[row] = self._fresh()
            self.latents[row] = np.nan
            self._unread[row] = []

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Set the voice's temperature and seed; the other parameters have no effect."""
        self.parameters[row] = parameters

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Process one piece of a voice; a recording takes several pieces."""
        self.shape.check_voice(prompt, self._spec.frame_samples)
        if not self.voices.is_encoding(row, prompt):
            self.reset([row])
        return self.voices.give(row, prompt, self._spec.sample_rate)

    def advance(self, rows: IntArray, offered: Sequence[tuple[TextEntry, ...]], *, is_fixed: bool) -> Frames:
        """Let rows take the offered words, and compute a frame of each row that has work."""
        m, watch = rows.size, Stopwatch()
        consumed, emitted = (np.zeros(m, np.bool_) for _ in range(2))
        pcm = np.zeros((m, self._spec.frame_samples), np.float32)
        begun = np.full(m, NO_TOKEN, np.int32)
        for place, entries in enumerate(offered):
            speaker = self.speakers[rows[place]]
            if entries and speaker.has_room:
                speaker.add(entries)
                consumed[place] = True
            elif not entries:
                consumed[place] = speaker.is_busy
        places, self._reads = list(range(m)), TICK_READS
        while places:  # a row whose speech ends before a frame starts its next one in this tick
            said = self._open(rows, places, emitted, begun)
            watch.lap("read")
            places = self._say(rows, said, emitted, begun, pcm, watch, is_fixed=is_fixed)
        return Frames(consumed, emitted, pcm, begun, watch.stage_ms)

    def _open(self, rows: IntArray, places: Sequence[int], emitted: BoolArray, begun: IntArray) -> list[int]:
        """The places with speech, after their chunks are read; those in a pause get a frame of silence."""
        said: list[int] = []
        for place in places:
            row = int(rows[place])
            now = self.speakers[row].act(partial(self._begin, row))
            if isinstance(now, Silence):
                emitted[place], begun[place] = True, now.begun
            elif now is not None and self._is_read(row):
                said.append(place)
        return said

    def _is_read(self, row: int) -> bool:
        """Read a row's chunk as far as this tick allows; whether it is complete."""
        unread = self._unread[row]
        while unread and self._reads:
            self._reads -= 1
            self.lm.read(row, unread[:READ_POSITIONS])
            del unread[:READ_POSITIONS]
        return not unread

    def _begin(self, row: int, chunk: Chunk) -> Speech | None:
        """Begin to read a chunk into a row after its voice."""
        prepared = self._text.prepare(chunk.text)
        if prepared is None:
            return None
        self.lm.rewind(row)
        self._unread[row] = list(prepared.tokens)
        self.stages["decode"].state.reset([row])
        self.latents[row] = np.nan
        longest = min(
            self._text.longest_frames(len(prepared.tokens)), self.lm.room(row) - len(prepared.tokens)
        )
        return Speech(longest, prepared.tail_frames, chunk.last)

    def _say(
        self,
        rows: IntArray,
        places: list[int],
        emitted: BoolArray,
        begun: IntArray,
        pcm: FloatArray,
        watch: Stopwatch,
        *,
        is_fixed: bool,
    ) -> list[int]:
        """Compute a frame of every place; returns those whose speech ended before it."""
        if not places:
            return []
        named = rows[places]
        speakers = [self.speakers[row] for row in named]
        noise = np.stack([self._noise(row) for row in named])
        watch.lap("sample")
        latents, signs = self.lm.say(named, self.latents[named], noise, is_fixed=is_fixed)
        watch.lap("lm")
        self.latents[named] = latents
        continues_elsewhere = np.ones(len(places), np.bool_)
        for at, (speaker, sign) in enumerate(zip(speakers, signs, strict=True)):
            assert speaker.speech is not None
            if speaker.speech.ends(is_over=bool(sign > self._text.eos_threshold)):
                self._end(named[at])
                continues_elsewhere[at] = False
        going = np.flatnonzero(continues_elsewhere)
        if going.size:
            sounds = self._decode_latents(named[going], latents[going], is_fixed=is_fixed)
            for at, sound in zip(going.tolist(), sounds, strict=True):
                emitted[places[at]] = True
                begun[places[at]] = self._count(named[at], sound)
                pcm[places[at]] = sound
        watch.lap("decode")
        return [places[at] for at in np.flatnonzero(~continues_elsewhere).tolist()]

    def _noise(self, row: int) -> FloatArray:
        parameters = self.parameters[row]
        noise = self.speakers[row].noise(parameters.audio_seed, self._width)
        return noise * np.float32(parameters.audio_temperature**0.5)

    def _count(self, row: int, sound: FloatArray) -> int:
        """Count a frame of a row; its first one is faded in."""
        speaker = self.speakers[row]
        assert speaker.speech is not None
        if speaker.speech.step == 0:
            fade_in(sound, self._spec.sample_rate)
        begun = speaker.count_frame(speaker.speech)
        if speaker.speech is None:
            self._end(row)
        return begun

    def _end(self, row: int) -> None:
        """End a row's speech: its next one starts after the voice."""
        self.speakers[row].speech = None
        self.lm.rewind(row)

    def _decode_latents(self, rows: IntArray, latents: FloatArray, *, is_fixed: bool) -> FloatArray:
        return self.stages["decode"].run(rows, {LATENT: latents}, is_fixed=is_fixed)["pcm"]

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row; a chunk that was begun is read first."""
        self._reads = len(self._unread[row])
        self._is_read(row)
        values = {**self.speakers[row].to_json(), "voice": int(self.lm.voice[row])}
        tensors: dict[str, Any] = {TEXT: np.frombuffer(json.dumps(values).encode(), np.uint8)}
        tensors[LATENT] = self.latents[row].copy()
        for name in SPOKEN:
            tensors |= self.stages[name].state.snapshot(row)
        return tensors

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""
        specs = [TensorSpec(LATENT, (self._width,), np.dtype(np.float32))]
        for name in SPOKEN:
            specs += self.stages[name].state.specs.values()
        text = tensors.get(TEXT)
        if isinstance(text, np.ndarray) and text.ndim == 1:
            specs.append(TensorSpec(TEXT, text.shape, np.dtype(np.uint8)))
        check_state(tensors, specs)
        speaker, voice = self._load(tensors)
        speaker.check(self._text.longest_frames(LONGEST_CHUNK_TOKENS))
        position, bound = int(tensors[POSITION]), self.shape.max_positions + 1
        if not (0 <= voice <= min(bound, position) and position <= self.shape.capacity):
            raise UnsupportedError(
                f"this snapshot is damaged: {position} positions, {voice} of them a voice's, of at most "
                f"{self.shape.capacity} and {bound}"
            )

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked tensors into a row; its other tensors are as in a fresh row."""
        for name in SPOKEN:
            self.stages[name].state.restore(row, tensors)
        self.speakers[row], voice = self._load(tensors)
        self.latents[row], self._unread[row] = tensors[LATENT], []
        self.lm.recall(row, voice)

    def _load(self, tensors: Mapping[str, NDArray[Any]]) -> tuple[SpokenRow, int]:
        """The speaker of a snapshot, and the length of its voice in positions. Raises UnsupportedError."""
        speaker = self._fresh()
        try:
            values = json.loads(tensors[TEXT].tobytes())
            speaker.load(values)
            return speaker, int(values["voice"])
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            words = f"{type(error).__name__}: {error}"
            raise UnsupportedError(f"this snapshot is damaged: {words:.200}") from error

    def close(self) -> None:
        """Free the ONNX sessions, their threads and their state."""
        self._read.close()
        super().close()


class UtteranceBackend(RowHost[OnnxUtterances]):
    """The backend of a Pocket-TTS model with ``slots`` rows; see :class:`antiphon.backends.base.Backend`."""

    def __init__(self, rows: OnnxUtterances, *, slots: int) -> None:
        """Start with fresh rows."""
        super().__init__(rows.facts.spec, rows, slots=slots, can_prime=True)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Compute a frame of every named row that has work; see
        :meth:`antiphon.backends.base.Backend.step`.
        """
        check_inputs(self._info, inputs)
        executor, rows = self.executor, inputs.rows.copy()
        with self._errors.over(rows):
            executor.reset(rows[inputs.reset])
            made = executor.advance(rows, inputs.text, is_fixed=inputs.is_fixed)
        finished = np.array([executor.speakers[row].is_finished for row in rows])
        return StepOutputs(
            made.consumed, made.emitted, made.pcm, made.begun, finished=finished, stage_ms=made.stage_ms
        )

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Process one piece of a voice; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        with self._errors.over([row]):
            return self.executor.prime(row, prompt)
