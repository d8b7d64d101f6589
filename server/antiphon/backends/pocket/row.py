"""One row: its remaining text and its current utterance, with its own noise."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.base import NO_TOKEN, FloatArray, TextEntry
from antiphon.backends.pocket.chunks import Chunk, Chunker, ChunkWord
from antiphon.backends.pocket.model import PocketModel, State, state_bytes
from antiphon.backends.snapshots import Form, check_tensors
from antiphon.errors import UnsupportedError
from antiphon.models.philox import random_words
from antiphon.models.sampling import SamplingParameters

STREAM = 1
"""The stream of noise for the model's voice: see docs/sampling.md."""


def normal(seed: int, step: int, width: int) -> FloatArray:
    """Standard normal noise, float32 ``[width]``: Box and Muller (1958), two words of Philox per pair."""
    count = width + width % 2
    words = random_words(
        np.array([seed], np.uint64),
        np.array([step], np.int64),
        STREAM,
        np.arange(count, dtype=np.int64)[None],
    )
    uniform = (words[0].reshape(2, -1) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    pairs: FloatArray = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).astype(np.float32)
    return pairs[:width]


SPARE_CHUNKS: Final = 2
"""Chunks that a row buffers before it takes more words; the rest waits in the session."""


_STEPS: Final = ("max_frames", "tail_frames", "index", "step", "end_step")
_TEXT, _LATENT = "text", "latent"
_VOICE, _STATE, _CODEC = "voice/", "state/", "codec/"


class Frame(NamedTuple):
    """A frame of speech, and the index of the last entry that begins with it, or ``NO_TOKEN``."""

    pcm: FloatArray
    begun: int


class Pause(NamedTuple):
    """Frames of silence; ``last`` is the entry that requested them."""

    frames: int
    last: int


@dataclass(slots=True)
class Utterance:
    """``step`` is the number of its frames that were made.

    ``thought``: the language model's output for ``latent``, if several rows were computed together.
    """

    state: State
    codec: State
    latent: Tensor
    max_frames: int
    tail_frames: int
    index: int
    step: int = 0
    end_step: int | None = None
    thought: Tensor | None = None


@dataclass(slots=True)
class PocketRow:
    """A row's session. ``voice`` is never changed; ``draws`` counts the frames with noise."""

    model: PocketModel
    chunker: Chunker
    voice: State
    frame_samples: int
    draws: int = 0
    is_complete: bool = False
    _taken: int = 0
    _waiting: deque[Chunk | Pause] = field(default_factory=deque)
    _utterance: Utterance | None = None
    _pause: Pause | None = None

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, for :meth:`from_arrays`; a voice's are shared, not copied."""
        values: dict[str, Any] = {"draws": self.draws, "is_complete": self.is_complete, "taken": self._taken}
        values["chunker"] = self.chunker.to_json()
        values["waiting"] = [[isinstance(it, Pause), *it] for it in self._waiting]
        values["pause"] = self._pause
        arrays = _to_arrays(_VOICE, self.voice)
        said = self._utterance
        if said is not None:
            values["utterance"] = {name: getattr(said, name) for name in _STEPS}
            arrays |= {name: np.array(array) for name, array in _to_arrays(_STATE, said.state).items()}
            arrays |= {name: np.array(array) for name, array in _to_arrays(_CODEC, said.codec).items()}
            arrays[_LATENT] = np.array(said.latent.numpy())
        return arrays | {_TEXT: np.frombuffer(json.dumps(values).encode(), np.uint8)}

    @classmethod
    def from_arrays(
        cls, fresh: PocketRow, arrays: Mapping[str, NDArray[Any]], longest_frames: int
    ) -> PocketRow:
        """A row that continues from :meth:`to_arrays`, with the model and the limits of a fresh one.

        Raises:
            UnsupportedError: the arrays are of another model, or damaged.
        """
        _check_state(_VOICE, fresh.voice, arrays)
        try:
            speaker = fresh._read(arrays)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            words = f"{type(error).__name__}: {error}"
            raise UnsupportedError(f"this snapshot is damaged: {words:.200}") from error
        speaker._check_utterance(arrays, longest_frames)
        return speaker

    def _read(self, arrays: Mapping[str, NDArray[Any]]) -> PocketRow:
        """The row of the arrays, if its text can be parsed."""
        values = json.loads(arrays[_TEXT].tobytes())
        said = None
        if "utterance" in values:
            state, codec = (_to_state(which, arrays) for which in (_STATE, _CODEC))
            latent = torch.from_numpy(np.array(arrays[_LATENT]))
            steps = {name: values["utterance"][name] for name in _STEPS}
            steps = {name: None if value is None else int(value) for name, value in steps.items()}
            said = Utterance(state, codec, latent, **steps)
        counter = self.chunker
        return replace(
            self,
            chunker=Chunker.from_json(counter.count, counter.chunk_tokens, values["chunker"]),
            voice=_to_state(_VOICE, arrays),
            _waiting=deque(Pause(*it) if is_pause else Chunk(*it) for is_pause, *it in values["waiting"]),
            _utterance=said,
            _pause=Pause(*values["pause"]) if values["pause"] else None,
            draws=int(values["draws"]),
            is_complete=bool(values["is_complete"]),
            _taken=int(values["taken"]),
        )

    def _check_utterance(self, arrays: Mapping[str, NDArray[Any]], longest_frames: int) -> None:
        """Raise UnsupportedError if the utterance's shapes differ from this model's."""
        said = self._utterance
        states = (_VOICE,) if said is None else (_VOICE, _STATE)
        wanted: dict[str, Form] = {_TEXT: (arrays[_TEXT].shape, np.dtype(np.uint8))}
        if said is not None:
            if not 0 <= said.step < said.max_frames <= longest_frames:
                raise UnsupportedError(
                    f"this snapshot is damaged: frame {said.step} of {said.max_frames}, of at most "
                    f"{longest_frames}"
                )
            codec = _to_arrays(_CODEC, self.model.codec(said.max_frames))
            wanted |= {name: (array.shape, array.dtype) for name, array in codec.items()}
            wanted[_LATENT] = (1, 1, self.model.latent_width), np.dtype(np.float32)
            _check_state(_STATE, self.voice, arrays)
        check_tensors({name: it for name, it in arrays.items() if not name.startswith(states)}, wanted)

    @property
    def has_room(self) -> bool:
        """Whether the row takes more words."""
        return len(self._waiting) < SPARE_CHUNKS

    @property
    def is_busy(self) -> bool:
        """Whether the row has work without another word."""
        return bool(self._waiting) or self._utterance is not None or self._pause is not None

    @property
    def is_finished(self) -> bool:
        """Whether everything has been spoken."""
        return self.is_complete and not self.is_busy

    @property
    def bytes(self) -> int:
        """Bytes of its utterance."""
        said = self._utterance
        return 0 if said is None else state_bytes(said.state) + state_bytes(said.codec)

    @property
    def going_on(self) -> Utterance | None:
        """The utterance that the next frame belongs to."""
        return self._utterance if self._pause is None else None

    def may_begin(self, offered: tuple[TextEntry, ...]) -> bool:
        """Whether the next frame may begin an utterance: a chunk is next, or words may form one."""
        if self._utterance is not None or self._pause is not None:
            return False
        return isinstance(self._waiting[0], Chunk) if self._waiting else bool(offered)

    def add(self, entries: tuple[TextEntry, ...]) -> None:
        """Add words, pauses and the end. Input after the end is ignored."""
        for entry in entries:
            if self.is_complete:
                return
            if entry.tokens:
                self._waiting += self.chunker.add(ChunkWord(entry.text, len(entry.tokens), self._taken))
            elif entry.padding_frames:
                self._waiting += [*self.chunker.end(), Pause(entry.padding_frames, self._taken)]
            self._taken += bool(entry.tokens or entry.padding_frames)
            if entry.is_last:
                self._waiting += self.chunker.end()
                self.is_complete = True

    def speak(self, parameters: SamplingParameters) -> Frame | None:
        """The next frame, None if there is none now."""
        while self.is_busy:
            frame = self._go_on(parameters)
            if frame is not None:
                return frame
        return None

    def _go_on(self, parameters: SamplingParameters) -> Frame | None:
        """One frame of the current utterance, or the beginning of the next one."""
        if self._pause is not None:
            pause, left = self._pause, self._pause.frames - 1
            self._pause = Pause(left, NO_TOKEN) if left else None
            return Frame(np.zeros(self.frame_samples, np.float32), pause.last)
        if self._utterance is not None:
            return self._say(self._utterance, parameters)
        self._begin(self._waiting.popleft())
        return None

    def _begin(self, what: Chunk | Pause) -> None:
        if isinstance(what, Pause):
            self._pause = what
            return
        opening = self.model.open(self.voice, what.text)
        if opening is not None:
            self._utterance = Utterance(
                *(opening.state, self.model.codec(opening.max_frames), self.model.first_latent()),
                *(opening.max_frames, opening.tail_frames, what.last),
            )

    def _say(self, said: Utterance, parameters: SamplingParameters) -> Frame | None:
        """One frame; None when the model ended the speech before it."""
        noise = normal(parameters.audio_seed, self.draws, self.model.latent_width)
        self.draws += 1
        thought, said.thought = said.thought, None
        latent, is_over = self.model.next_latent(
            said.state, said.latent, noise * parameters.audio_temperature**0.5, thought
        )
        if is_over and said.end_step is None and said.step >= self.model.first_end:
            said.end_step = said.step
        if said.end_step is not None and said.step >= said.end_step + said.tail_frames:
            self._utterance = None
            return None
        pcm = self.model.sound(said.codec, latent, is_first=said.step == 0)
        index = said.index if said.step == 0 else NO_TOKEN
        said.latent = latent
        said.step += 1
        if said.step == said.max_frames:
            self._utterance = None
        return Frame(pcm, index)


def _check_state(prefix: str, own: State, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise UnsupportedError if the arrays' shapes differ from those of a language model's state, of any
    length.

    A voice may lack tensors that the model does not need, but no keys and values of a layer.
    """
    wanted = _to_arrays(prefix, own)
    caches = {name for name in wanted if name.endswith("/cache")}
    for name in sorted(caches | {name for name in arrays if name.startswith(prefix)}):
        found, model = arrays.get(name), wanted.get(name)
        if found is None or model is None or _form(found) != _form(model):
            here, there = ("nothing" if it is None else _form(it) for it in (found, model))
            raise UnsupportedError(
                f"a snapshot of another model cannot go into this one: {name} is {here}, not {there}"
            )


def _form(array: NDArray[Any]) -> str:
    """Dtype and shape, without the length of keys and values."""
    shape = [*array.shape[:2], "T", *array.shape[3:]] if array.ndim == 5 else [*array.shape]
    return f"{array.dtype} {shape}"


def _to_arrays(prefix: str, state: State) -> dict[str, NDArray[Any]]:
    """A state's tensors by names that begin with ``prefix``, without copies."""
    return {
        f"{prefix}{module}/{key}": tensor.numpy()
        for module, part in state.items()
        for key, tensor in part.items()
    }


def _to_state(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Reverse :func:`_to_arrays`, with copies."""
    state: State = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            module, _, key = name.removeprefix(prefix).rpartition("/")
            state.setdefault(module, {})[key] = torch.from_numpy(np.array(array))
    return state
