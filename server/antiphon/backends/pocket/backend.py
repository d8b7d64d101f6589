"""The Pocket-TTS backend: each row is one utterance, each tick a frame of every row."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Final

import numpy as np
import torch

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    IntArray,
    PrimeProgress,
    Progress,
    StepInputs,
    StepOutputs,
    TextEntry,
)
from antiphon.backends.chunks import Chunker
from antiphon.backends.host import RowHost, check_inputs, check_row
from antiphon.backends.pocket.model import PocketModel, State, state_bytes
from antiphon.backends.pocket.row import Frame, PocketRow
from antiphon.backends.snapshots import HostArrays, SnapshotCache
from antiphon.backends.speaker import SpokenRow
from antiphon.models.pocket_shape import LONGEST_CHUNK_TOKENS, PocketShape
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec


def make_workers(threads: int, name: str) -> ThreadPoolExecutor:
    """Start ``threads`` threads; each runs torch's operations on one core."""
    before = torch.get_num_threads()
    started = threading.Barrier(threads)
    pool = ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,))
    list(pool.map(lambda _: started.wait(), range(threads)))
    torch.set_num_threads(before)  # otherwise a new thread elsewhere would start with one
    return pool


def deal(costs: Sequence[float], threads: int) -> list[list[int]]:
    """Divide the indices of ``costs`` into at most ``threads`` non-empty groups of about equal cost.

    The most expensive index is assigned first; each goes to the cheapest group so far.
    """
    groups: list[list[int]] = [[] for _ in range(threads)]
    totals = [0.0] * threads
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        least = totals.index(min(totals))
        groups[least].append(place)
        totals[least] += costs[place]
    return [group for group in groups if group]


KEPT_BYTES: Final = 128 * 2**20
"""Limit on kept voices of recordings, about twenty of the full model; the least recently used is dropped
first."""

WAIT_S: Final = 0.005
"""Maximum seconds that a call waits for a recording between two ticks. The wait delays active callers."""


class Voices:
    """Makes the voices of rows. ``executor`` processes recordings, which takes a second or two."""

    def __init__(
        self, model: PocketModel, shape: PocketShape, frame_samples: int, executor: Executor
    ) -> None:
        """Start without voices."""
        self._model, self._shape, self._frame_samples = model, shape, frame_samples
        self._executor = executor
        self._kept = SnapshotCache(KEPT_BYTES, state_bytes)
        self._running: dict[str, Future[State]] = {}

    def get(self, prompt: Prompt) -> State | None:
        """The voice of a prompt, None while it is being made.

        Raises:
            UnsupportedError: the prompt is no voice of this model.
            RuntimeError: the model failed.
        """
        self._shape.check_voice(prompt, self._frame_samples)
        if prompt.keys_values is not None:
            return self._model.voice(prompt)
        if (kept := self._kept.get(prompt.key)) is not None:
            return kept
        running = self._running.get(prompt.key)
        if running is None:
            running = self._running[prompt.key] = self._executor.submit(self._hear, prompt)
        if running not in wait([running], WAIT_S).done:
            return None
        del self._running[prompt.key]
        heard = running.result()
        self._kept.put(prompt.key, heard)
        return heard

    def knows(self, prompt: Prompt) -> bool:
        """Whether the voice of a recording is cached."""
        return self._kept.get(prompt.key) is not None

    def _hear(self, prompt: Prompt) -> State:
        with torch.inference_mode():
            return self._model.voice(prompt)


TRIAL: Final = "One two three four five, six seven eight nine ten."
TRIAL_FRAMES: Final = 8
TRIAL_ROWS: Final = 4
TRIAL_SHARE: Final = 0.5
"""Fraction of a frame. Rows of a thread are timed together as long as they fit into it."""


class PocketRows(HostArrays):
    """Rows of a model, each with its own utterance; see :class:`antiphon.backends.base.DeviceRows`."""

    def __init__(
        self,
        spec: ModelSpec,
        model: PocketModel,
        shape: PocketShape,
        *,
        chunk_tokens: int,
        threads: int,
        quantization: str = "none",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take ownership of a loaded model, and time the model on a few words."""
        self.model, self._chunk_tokens, self._frame_samples = model, chunk_tokens, spec.frame_samples
        self.clock, self.threads, self.opening_frames = clock, threads, 1.0
        self._longest_frames = model.longest_frames(LONGEST_CHUNK_TOKENS)
        self.workers, self.listener = make_workers(threads, "pocket"), make_workers(1, "pocket-voice")
        self.voices = Voices(model, shape, spec.frame_samples, self.listener)
        with torch.inference_mode():
            self._nobody = model.voice(None)
            row_bytes = self._longest_bytes(shape)
        self.facts = BackendInfo(
            name="pocket",
            device="cpu",
            spec=spec,
            quantization=quantization,
            versions=model.versions,
            memory={"weights": model.weight_bytes, "state_per_row": row_bytes, "caches": KEPT_BYTES},
            row_ms=self._row_ms(spec.frame_ms) / threads,
            cpu_threads=threads,
        )

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
        self.rows = [self._fresh() for _ in range(slots)]
        self.parameters = [SamplingParameters() for _ in range(slots)]
        self.failed: dict[int, Exception] = {}

    def _fresh(self, voice: State | None = None) -> PocketRow:
        speaker = SpokenRow(Chunker(self.model.count, self._chunk_tokens))
        return PocketRow(self.model, speaker, self._nobody if voice is None else voice, self._frame_samples)

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The number of named rows, or of all rows if ``is_fixed``; each row is computed separately."""
        return len(self.rows) if is_fixed else int(rows.size)

    def warm_up(self, progress: Progress) -> None:
        """No effect: the constructor has run a trial."""
        progress(1, 1, "pocket")

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones, without voices."""
        for row in rows:
            self.begin(row, None)

    def begin(self, row: int, voice: State | None) -> None:
        """Reset a row, with a voice or without."""
        self.failed.pop(row, None)
        self.rows[row] = self._fresh(voice)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Set the voice's temperature and seed; the other parameters have no effect."""
        self.parameters[row] = parameters

    def advance(
        self, rows: Sequence[int], offered: Sequence[tuple[TextEntry, ...]]
    ) -> list[tuple[bool, Frame | None]]:
        """Let rows take the offered words and compute a frame, on a worker thread.

        Rows within an utterance first run the language model together. If that fails, each row runs it
        separately, which identifies the failed row.
        """
        going = [said for row in rows if (said := self.rows[row].current_speech) is not None]
        if len(going) > 1:
            with torch.inference_mode(), contextlib.suppress(Exception):
                states, latents = [said.state for said in going], [said.latent for said in going]
                thoughts = self.model.run_language_model(states, latents)
                for said, thought in zip(going, thoughts, strict=True):
                    said.thought = thought
        return [self._speak(row, entries) for row, entries in zip(rows, offered, strict=True)]

    def _speak(self, row: int, offered: tuple[TextEntry, ...]) -> tuple[bool, Frame | None]:
        """Let one row take the offered words and compute a frame."""
        own = self.rows[row]
        speaker = own.speaker
        has_taken = bool(offered) and speaker.has_room
        try:
            with torch.inference_mode():
                if has_taken:
                    speaker.add(offered)
                return has_taken or (not offered and speaker.is_busy), own.speak(self.parameters[row])
        except Exception as error:  # any error concerns this row only: its neighbours have their frames
            self.failed[row] = error
            return has_taken, None

    def cost(self, row: int, offered: tuple[TextEntry, ...]) -> float:
        """The cost of a row's next frame, in frames of an utterance; silence costs next to nothing."""
        speaker = self.rows[row].speaker
        if speaker.current_speech is not None:
            return 1.0
        return self.opening_frames if speaker.may_begin(offered) else 0.0

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row: its words and its utterance; voices are immutable and shared."""
        return self.rows[row].to_arrays()

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""
        with torch.inference_mode():
            PocketRow.from_arrays(self._fresh(), tensors, self._longest_frames)

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked tensors into a row; its other tensors are as in a fresh row."""
        with torch.inference_mode():
            self.rows[row] = PocketRow.from_arrays(self._fresh(), tensors, self._longest_frames)

    def state_bytes(self) -> int:
        """Bytes of the utterances of all rows, which grow and shrink."""
        return sum(row.bytes for row in self.rows)

    def close(self) -> None:
        """End the threads."""
        for pool in (self.workers, self.listener):
            pool.shutdown(cancel_futures=True)

    def _row_ms(self, frame_ms: float) -> float:
        """The time that a row adds to a frame of a thread: its share of several if several fit well, or
        all."""
        rows = (1, 1, TRIAL_ROWS)  # the first run warms up; later rows need no warm-up
        _, alone_ms, together_ms = (self.workers.submit(self._trial_ms, n).result() for n in rows)
        return together_ms / TRIAL_ROWS if together_ms <= TRIAL_SHARE * frame_ms else alone_ms

    def _trial_ms(self, rows: int) -> float:
        """The shortest time of a frame of ``rows`` rows, of a short sentence that is not sent."""
        self.allocate(rows)
        for row in self.rows:
            row.speaker.add((TextEntry((1,), TRIAL, is_last=True),))
        times_s: list[float] = []
        while len(times_s) < TRIAL_FRAMES and not all(row.speaker.is_finished for row in self.rows):
            start_s = self.clock()
            self.advance(range(rows), [()] * rows)
            times_s.append(self.clock() - start_s)
        if self.failed:
            raise next(iter(self.failed.values()))
        if rows == 1:
            self.opening_frames = max(1.0, times_s[0] / min(times_s))
        return 1000.0 * min(times_s[1:] or times_s)  # the minimum: without disturbances

    def _longest_bytes(self, shape: PocketShape) -> int:
        """Bytes of the longest chunk after the longest voice: keys, values, and the codec's state."""
        model = self.model
        max_frames = self._longest_frames
        positions = shape.max_positions + LONGEST_CHUNK_TOKENS + max_frames
        kept = 4 * 2 * shape.layers * shape.heads * shape.head_dim * positions
        one, two = (state_bytes(model.codec(frames)) for frames in (1, 2))
        return kept + one + (max_frames - 1) * (two - one)


class PocketBackend(RowHost[PocketRows]):
    """The backend of a Pocket-TTS model with ``slots`` rows; see :class:`antiphon.backends.base.Backend`.

    Rows are assigned to threads by their cost, so that a row that begins an utterance delays few others. The
    rows of one thread read the language model's weights once for all of them. A failing row does not affect
    others: the next tick that names it raises its error, before any row is advanced.
    """

    def __init__(self, rows: PocketRows, *, slots: int) -> None:
        """Allocate fresh rows."""
        super().__init__(rows.facts.spec, rows, slots=slots, can_prime=True)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Compute a frame of every named row that has work; see the class for rows that fail."""
        check_inputs(self._info, inputs)
        executor, rows = self.executor, inputs.rows.tolist()
        executor.reset(inputs.rows[inputs.reset].tolist())
        failed = {row: executor.failed.pop(row) for row in rows if row in executor.failed}
        with self._errors.over(list(failed)):
            for error in failed.values():
                raise error
        n, start_s = inputs.count, executor.clock()
        consumed, emitted, finished = (np.zeros(n, np.bool_) for _ in range(3))
        pcm, words = np.zeros((n, self._spec.frame_samples), np.float32), np.full(n, NO_TOKEN, np.int32)
        costs = [executor.cost(row, entries) for row, entries in zip(rows, inputs.text, strict=True)]
        groups = deal(costs, executor.threads)
        named = [[rows[place] for place in group] for group in groups]
        offered = [[inputs.text[place] for place in group] for group in groups]
        places = itertools.chain.from_iterable(groups)
        frames = itertools.chain.from_iterable(executor.workers.map(executor.advance, named, offered))
        for place, (has_taken, frame) in zip(places, frames, strict=True):
            row = rows[place]
            consumed[place] = has_taken or row in executor.failed
            finished[place] = executor.rows[row].speaker.is_finished and row not in executor.failed
            if frame is not None:
                emitted[place], pcm[place], words[place] = True, frame.pcm, frame.begun
        stage_ms = {"speak": 1000.0 * (executor.clock() - start_s)}
        return StepOutputs(consumed, emitted, pcm, words, finished=finished, stage_ms=stage_ms)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Give a fresh row its voice. A recording takes several calls.

        Raises:
            UnsupportedError: the prompt is not a voice of this model.
            StepError, DeviceLostError: the model failed.
        """
        check_row(self._info, row)
        is_known = self.executor.voices.knows(prompt)
        with self._errors.over([row]), torch.inference_mode():
            voice = self.executor.voices.get(prompt)
        if voice is None:
            return PrimeProgress(0, 1)
        self.executor.begin(row, voice)
        return PrimeProgress(1, 1, is_copied=is_known)
