"""The Pocket-TTS backend: each row an utterance of its own, each tick a frame of every row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    HostArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
    TextEntry,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.devices import device_probe
from antiphon.backends.faults import FaultJudge
from antiphon.backends.pocket.chunks import Chunker
from antiphon.backends.pocket.model import PocketModel, State, state_bytes
from antiphon.backends.pocket.speaker import Frame, Speaker
from antiphon.backends.pocket.voices import Voices
from antiphon.backends.pocket.workers import make_workers
from antiphon.errors import CheckpointFormatError
from antiphon.models.pocket import PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec

NAME: Final = "pocket"
TRIAL: Final = "One two three four five, six seven eight nine ten."
TRIAL_FRAMES: Final = 8
LONGEST_CHUNK_TOKENS: Final = 272
"""A word may have 256 tokens; quotes, a capital and a full stop come on top."""


class PocketBackend:
    """``slots`` rows of one model; see :class:`antiphon.backends.base.Backend`.

    Rows are stepped one by one, on as many threads as there are; a row that fails does so alone: it is told
    of in the next tick, before anybody is advanced.
    """

    def __init__(
        self,
        spec: ModelSpec,
        model: PocketModel,
        *,
        slots: int,
        chunk_tokens: int,
        threads: int,
        quantization: str = "none",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take over a loaded model, say a few words with it to know how long they take, and have fresh rows.

        Raises:
            CheckpointFormatError: its configuration is of another model.
        """
        shape = PocketShape.of(spec)
        if shape is None:
            raise CheckpointFormatError(f"{spec.name} is no Pocket-TTS model")
        self._spec, self._model, self._chunk_tokens = spec, model, chunk_tokens
        self._workers, self._listener = make_workers(threads, "pocket"), make_workers(1, "pocket-voice")
        self._clock = clock
        self._voices = Voices(model, shape, spec.frame_samples, self._listener)
        self._judge = FaultJudge(device_probe(torch.device("cpu")))
        with torch.inference_mode():
            self._nobody = model.voice(None)
            row_bytes = self._longest_bytes(shape)
        self._info = BackendInfo(
            name=NAME,
            device="cpu",
            spec=spec,
            slots=slots,
            quantization=quantization,
            can_prime=True,
            versions=model.versions,
            memory={"weights": model.weight_bytes, "state_per_row": row_bytes},
            row_ms=self._workers.submit(self._trial_ms).result() / threads,
        )
        self._allocate(slots)

    @property
    def info(self) -> BackendInfo:
        """Facts about this backend."""
        return self._info

    def resize(self, slots: int) -> None:
        """Have so many fresh rows."""
        check_slots(slots)
        self._info = replace(self._info, slots=slots)
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        self._speakers = [self._fresh() for _ in range(slots)]
        self._parameters = [SamplingParameters() for _ in range(slots)]
        self._failed: dict[int, Exception] = {}

    def _fresh(self, voice: State | None = None) -> Speaker:
        chunker = Chunker(self._model.count, self._chunk_tokens)
        return Speaker(
            self._model, chunker, self._nobody if voice is None else voice, self._spec.frame_samples
        )

    def warm_up(self, progress: Progress) -> None:
        """Nothing is left to do: a trial was spoken when it was made."""
        progress(1, 1, "pocket")

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Only the voice's temperature and seed mean something here."""
        check_row(self._info, row)
        self._parameters[row] = parameters

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:  # noqa: ARG002  (rows never meet)
        """As many as are named."""
        return int(rows.size)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """A frame of every named row that has something to say; see the class for rows that fail."""
        check_inputs(self._info, inputs)
        for row in inputs.rows[inputs.reset].tolist():
            self._begin(row, self._fresh())
        rows: list[int] = inputs.rows.tolist()
        failed = {row: self._failed.pop(row) for row in rows if row in self._failed}
        if failed:
            raise self._judge.judge(next(iter(failed.values())), tuple(failed))
        n, start_s = inputs.count, self._clock()
        consumed, emitted, finished = (np.zeros(n, np.bool_) for _ in range(3))
        pcm, words = np.zeros((n, self._spec.frame_samples), np.float32), np.full(n, NO_TOKEN, np.int32)
        frames = self._workers.map(self._advance, rows, inputs.text)
        for place, (row, (has_taken, frame)) in enumerate(zip(rows, frames, strict=True)):
            consumed[place] = has_taken or row in self._failed
            finished[place] = self._speakers[row].is_finished and row not in self._failed
            if frame is not None:
                emitted[place], pcm[place], words[place] = True, frame.pcm, frame.begun
        self._judge.note_success()
        stage_ms = {"speak": 1000.0 * (self._clock() - start_s)}
        return StepOutputs(consumed, emitted, pcm, words, finished=finished, stage_ms=stage_ms)

    def _advance(self, row: int, offered: tuple[TextEntry, ...]) -> tuple[bool, Frame | None]:
        """Let one row take what it is offered and say a frame, on a worker's thread."""
        speaker = self._speakers[row]
        has_taken = bool(offered) and speaker.has_room
        try:
            with torch.inference_mode():
                if has_taken:
                    speaker.add(offered)
                return has_taken or (not offered and speaker.is_busy), speaker.speak(self._parameters[row])
        except Exception as error:  # whatever it was, it is this row's: its neighbours have their frames
            self._failed[row] = error
            return has_taken, None

    def _begin(self, row: int, speaker: Speaker) -> None:
        self._failed.pop(row, None)
        self._speakers[row] = speaker

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice; a recording takes some calls until it was heard.

        Raises:
            UnsupportedError: a prompt that is no voice of this model.
            StepError: the model failed.
        """
        check_row(self._info, row)
        is_known = self._voices.knows(prompt)
        try:
            with torch.inference_mode():
                voice = self._voices.get(prompt)
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._judge.judge(error, (row,)) from error
        if voice is None:
            return PrimeProgress(0, 1)
        self._begin(row, self._fresh(voice))
        return PrimeProgress(1, 1, is_copied=is_known)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row: its words, its utterance; voices are shared, since nothing changes them."""
        check_row(self._info, row)
        return self.from_host(self._speakers[row].to_arrays())

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a snapshot back.

        Raises:
            UnsupportedError: it is of another backend or model.
        """
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        with torch.inference_mode():
            self._begin(row, Speaker.from_arrays(self._fresh(), snapshot.tensors))

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        """What a snapshot consists of already."""
        return dict(snapshot.tensors)

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        """The reverse."""
        return RowSnapshot(NAME, dict(arrays), sum(array.nbytes for array in arrays.values()))

    def state_bytes(self) -> int:
        """What the utterances of all rows take now; it grows and shrinks with them."""
        return sum(speaker.bytes for speaker in self._speakers)

    def close(self) -> None:
        """End the threads."""
        for pool in (self._workers, self._listener):
            pool.shutdown(cancel_futures=True)

    def _trial_ms(self) -> float:
        """The least time of a frame, of a short sentence that nobody hears."""
        times_s: list[float] = []
        with torch.inference_mode():
            speaker = self._fresh()
            speaker.add((TextEntry((1,), TRIAL, is_last=True),))
            while len(times_s) < TRIAL_FRAMES and not speaker.is_finished:
                start_s = self._clock()
                speaker.speak(SamplingParameters())
                times_s.append(self._clock() - start_s)
        return 1000.0 * min(times_s[1:] or times_s)  # what disturbed the start-up must not shrink the server

    def _longest_bytes(self, shape: PocketShape) -> int:
        """What the longest chunk takes after the longest voice: keys, values, and the codec's own."""
        model = self._model
        max_frames = model.longest_frames(LONGEST_CHUNK_TOKENS)
        positions = shape.max_positions + LONGEST_CHUNK_TOKENS + max_frames
        kept = 4 * 2 * shape.layers * shape.heads * shape.head_dim * positions
        one, two = (state_bytes(model.codec(frames)) for frames in (1, 2))
        return kept + one + (max_frames - 1) * (two - one)
