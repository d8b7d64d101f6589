"""A minimal fake backend, a fake clock, and an engine with both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

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
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind

FRAME = 8
"""Samples in a frame of the fake model: 100 samples a second, 12.5 frames a second."""

FRAME_S = 0.08
MODEL = "fake"


def fake_spec(kind: PipelineKind = PipelineKind.CODEC, *, max_delay: int = 2) -> ModelSpec:
    mimi = MimiSpec(sample_rate=100, frame_rate=12.5, codebooks=1, cardinality=4)
    delays = (0, max_delay)
    heads = 2 if kind is PipelineKind.STT else 0
    lm = LMSpec(
        dim=1,
        num_layers=1,
        num_heads=1,
        context=8,
        n_q=1,
        dep_q=1,
        card=4,
        text_card=100,
        delays=delays,
        extra_heads=heads,
    )
    return ModelSpec(
        name=MODEL, kind=kind, family="fake", mimi=mimi, lm=None if kind is PipelineKind.CODEC else lm
    )


class FakeClock:
    """Seconds, which pass only when told to."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Row:
    """State of a row: how many frames it took since its reset, the sum of them, and words to speak."""

    life: int = 0
    taken: int = 0
    primed: int = 0
    sum: float = 0.0
    words: list[TextEntry] = field(default_factory=list)
    spoken: int = 0
    parameters: SamplingParameters = field(default_factory=SamplingParameters)


class FakeBackend:
    """A backend whose replies say where they come from.

    PCM out is ``[input sample 0, frames taken since the reset, sum of sample 0 since the reset, text seed,
    life, 0...]``; a text token is ``frames taken % 90``. A tts word is spoken for ``1 + padding_frames``
    frames, the row takes words only when it has none, and its PCM begins with the word's first token.
    A prompt is read one frame a piece, and each frame's text token is added to the row's sum.
    ``warm_up`` has room for ``most_warm_rows``. ``during_step`` is called while a step "runs"; ``failures``
    are raised, one a step, after it was done.
    """

    def __init__(
        self,
        spec: ModelSpec | None = None,
        slots: int = 4,
        *,
        is_packed: bool = True,
        step_s: Callable[[int], float] = lambda rows: 0.0,
        clock: FakeClock | None = None,
        memory: dict[str, int] | None = None,
        device: str = "cpu",
        device_name: str = "",
        work: dict[str, int] | None = None,
        chooses_threads: bool = False,
        cpu_threads: int = 0,
        row_ms: float | None = None,
        most_warm_rows: int | None = None,
    ) -> None:
        self.most_warm_rows = most_warm_rows
        self.spec = spec or fake_spec()
        self._info = BackendInfo(
            name="fake",
            device=device,
            spec=self.spec,
            slots=slots,
            can_prime=self.spec.kind in (PipelineKind.DUPLEX, PipelineKind.TTS),
            memory=memory if memory is not None else {"weights": 0, "state_per_row": 1},
            device_name=device_name,
            work=work or {},
            chooses_threads=chooses_threads,
            cpu_threads=cpu_threads,
            row_ms=row_ms,
        )
        self.rows = [Row() for _ in range(slots)]
        self.clock = clock
        self.step_s = step_s
        self.during_step: Callable[[], None] = lambda: None
        self.failures: list[Exception | None] = []
        self.steps: list[StepInputs] = []
        self.is_packed = is_packed
        self.pieces: list[tuple[int, int]] = []  # row and frame
        self.reading: dict[int, Prompt] = {}
        self.refused_seed: int | None = None
        self.warmed = self.closed = False

    @property
    def info(self) -> BackendInfo:
        return self._info

    def warm_up(self, progress: Progress) -> None:
        if self.most_warm_rows is not None and self.info.slots > self.most_warm_rows:
            raise MemoryError(f"no room for {self.info.slots}")
        progress(1, 1, "fake")
        self.warmed = True

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        if parameters.text_seed == self.refused_seed:
            raise UnsupportedError(f"seed {parameters.text_seed} is refused")
        self.rows[row].parameters = parameters

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        return len(rows) if self.is_packed and not is_fixed else self.info.slots

    def step(self, inputs: StepInputs) -> StepOutputs:
        assert len(set(inputs.rows.tolist())) == inputs.count > 0
        self.steps.append(replace(inputs, rows=inputs.rows.copy(), reset=inputs.reset.copy(), pcm=None))
        if self.clock is not None:
            self.clock.advance(self.step_s(self.plan(inputs.rows, is_fixed=inputs.is_fixed)))
        self.during_step()
        outputs = self._speak(inputs) if self.spec.kind is PipelineKind.TTS else self._hear(inputs)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return outputs

    def _reset(self, row: int) -> None:
        old = self.rows[row]
        self.reading.pop(row, None)
        self.rows[row] = Row(life=old.life + 1, parameters=old.parameters)

    def _hear(self, inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is not None
        n = inputs.count
        emitted = np.zeros(n, np.bool_)
        pcm = np.zeros((n, FRAME), np.float32)
        tokens = np.full(n, NO_TOKEN, np.int32)
        for place, row in enumerate(inputs.rows.tolist()):
            if inputs.reset[place]:
                self._reset(row)
            state = self.rows[row]
            heard = float(inputs.pcm[place, 0])
            state.taken += 1
            state.sum += heard
            emitted[place] = state.taken > self.spec.delay_frames
            pcm[place, :5] = (heard, state.taken, state.sum, state.parameters.text_seed, state.life)
            tokens[place] = state.taken % 90
        is_text = self.spec.kind is not PipelineKind.CODEC
        is_stt = self.spec.kind is PipelineKind.STT
        return StepOutputs(
            consumed=np.ones(n, np.bool_),
            emitted=emitted,
            pcm=None if is_stt else pcm,
            text_tokens=tokens if is_text else None,
            vad=np.tile(np.array([0.25, 0.5], np.float32), (n, 1)) if is_stt else None,
            stage_ms={"fake": 0.5, "rest": 0.25},
        )

    def _speak(self, inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is None
        n = inputs.count
        consumed, emitted, finished = (np.zeros(n, np.bool_) for _ in range(3))
        pcm = np.full((n, FRAME), np.nan, np.float32)
        for place, row in enumerate(inputs.rows.tolist()):
            if inputs.reset[place]:
                self._reset(row)
            state = self.rows[row]
            if not state.words and inputs.text[place]:
                state.words = list(inputs.text[place])
                state.spoken = 0
                consumed[place] = True
            if not state.words:
                continue
            word = state.words[0]
            if word.tokens:
                pcm[place] = word.tokens[0]
                emitted[place] = True
            state.spoken += 1
            if state.spoken > word.padding_frames:
                state.words, state.spoken = state.words[1:], 0
                finished[place] = word.is_last
        return StepOutputs(consumed=consumed, emitted=emitted, pcm=pcm, finished=finished)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        self.during_step()
        if prompt.frames.shape[0] == 1:
            raise UnsupportedError("one frame says nothing")
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        reading = self.reading.get(row)
        if reading is None or reading.key != prompt.key:
            self._reset(row)
        self.reading[row] = prompt
        state = self.rows[row]
        self.pieces.append((row, state.primed))
        state.sum += float(prompt.frames[state.primed, 0])
        state.primed += 1
        if state.primed == prompt.count:
            del self.reading[row]
            state.taken = self.spec.delay_frames
        return PrimeProgress(state.primed, prompt.count)

    def snapshot(self, row: int) -> RowSnapshot:
        return RowSnapshot("fake", {"row": replace(self.rows[row])}, 1)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        self.rows[row] = replace(snapshot.tensors["row"])

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        row: Row = snapshot.tensors["row"]
        return {"row": np.array([row.life, row.taken, row.primed, row.sum])}

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        life, taken, primed, total = arrays["row"].tolist()
        return RowSnapshot("fake", {"row": Row(int(life), int(taken), int(primed), total)}, 1)

    def state_bytes(self) -> int:
        return len(self.rows)

    def close(self) -> None:
        self.closed = True
