"""One row: its remaining text, and its current utterance with the model's tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon.backends.base import FloatArray
from antiphon.backends.chunks import Chunk
from antiphon.backends.pocket.model import PocketModel, State, state_bytes
from antiphon.backends.snapshots import Form, check_tensors
from antiphon.backends.speaker import STEPS, Silence, Speech, SpokenRow
from antiphon.errors import UnsupportedError
from antiphon.models.sampling import SamplingParameters

_TEXT, _LATENT = "text", "latent"
_VOICE, _STATE, _CODEC = "voice/", "state/", "codec/"


class Frame(NamedTuple):
    """A frame of speech, and the index of the last entry that begins with it, or ``NO_TOKEN``."""

    pcm: FloatArray
    begun: int


@dataclass(slots=True, kw_only=True)
class Utterance(Speech):
    """An utterance in progress, with its tensors.

    ``thought``: the language model's output for ``latent``, if several rows were computed together.
    """

    state: State
    codec: State
    latent: Tensor
    thought: Tensor | None = None


@dataclass(slots=True)
class PocketRow:
    """The state of one row: its remaining text, its voice and its utterance. Its ``voice`` is never
    modified.
    """

    model: PocketModel
    speaker: SpokenRow
    voice: State
    frame_samples: int

    @property
    def utterance(self) -> Utterance | None:
        """The current utterance."""
        said = self.speaker.speech
        assert said is None or isinstance(said, Utterance)
        return said

    @property
    def current_speech(self) -> Utterance | None:
        """The utterance that the next frame belongs to."""
        return None if self.speaker.current_speech is None else self.utterance

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, for :meth:`from_arrays`; the arrays of a voice are shared, not
        copied.
        """
        arrays = _to_arrays(_VOICE, self.voice)
        said = self.utterance
        if said is not None:
            arrays |= {name: np.array(array) for name, array in _to_arrays(_STATE, said.state).items()}
            arrays |= {name: np.array(array) for name, array in _to_arrays(_CODEC, said.codec).items()}
            arrays[_LATENT] = np.array(said.latent.numpy())
        return arrays | {_TEXT: np.frombuffer(json.dumps(self.speaker.to_json()).encode(), np.uint8)}

    @classmethod
    def from_arrays(
        cls, fresh: PocketRow, arrays: Mapping[str, NDArray[Any]], longest_frames: int
    ) -> PocketRow:
        """A row that continues from :meth:`to_arrays`, with the model and the limits of a fresh row.

        Raises:
            UnsupportedError: the arrays are of another model, or damaged.
        """
        _check_state(_VOICE, fresh.voice, arrays)
        try:
            row = fresh._read(arrays)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            words = f"{type(error).__name__}: {error}"
            raise UnsupportedError(f"this snapshot is damaged: {words:.200}") from error
        row.speaker.check(longest_frames)
        row._check_utterance(arrays)
        return row

    def _read(self, arrays: Mapping[str, NDArray[Any]]) -> PocketRow:
        """The arrays' row, as far as its text can be parsed; this one is fresh, and becomes it."""
        speaker = self.speaker
        speaker.load(json.loads(arrays[_TEXT].tobytes()))
        if speaker.speech is not None:
            state, codec = (_to_state(which, arrays) for which in (_STATE, _CODEC))
            latent = torch.from_numpy(np.array(arrays[_LATENT]))
            steps = {name: getattr(speaker.speech, name) for name in STEPS}
            speaker.speech = Utterance(**steps, state=state, codec=codec, latent=latent)
        return replace(self, voice=_to_state(_VOICE, arrays))

    def _check_utterance(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise UnsupportedError unless the utterance has the shapes of this model."""
        said = self.utterance
        states = (_VOICE,) if said is None else (_VOICE, _STATE)
        wanted: dict[str, Form] = {_TEXT: (arrays[_TEXT].shape, np.dtype(np.uint8))}
        if said is not None:
            codec = _to_arrays(_CODEC, self.model.codec(said.max_frames))
            wanted |= {name: (array.shape, array.dtype) for name, array in codec.items()}
            wanted[_LATENT] = (1, 1, self.model.latent_width), np.dtype(np.float32)
            _check_state(_STATE, self.voice, arrays)
        check_tensors({name: it for name, it in arrays.items() if not name.startswith(states)}, wanted)

    @property
    def bytes(self) -> int:
        """Bytes of the row's utterance."""
        said = self.utterance
        return 0 if said is None else state_bytes(said.state) + state_bytes(said.codec)

    def speak(self, parameters: SamplingParameters) -> Frame | None:
        """The next frame, or None if there is none at the moment."""
        while (now := self.speaker.act(self._open)) is not None:
            if isinstance(now, Silence):
                return Frame(np.zeros(self.frame_samples, np.float32), now.begun)
            assert isinstance(now, Utterance)
            frame = self._say(now, parameters)
            if frame is not None:
                return frame
        return None

    def _open(self, chunk: Chunk) -> Speech | None:
        opening = self.model.open(self.voice, chunk.text)
        if opening is None:
            return None
        return Utterance(
            *(opening.max_frames, opening.tail_frames, chunk.last),
            state=opening.state,
            codec=self.model.codec(opening.max_frames),
            latent=self.model.first_latent(),
        )

    def _say(self, said: Utterance, parameters: SamplingParameters) -> Frame | None:
        """One frame; None when the model ended the speech before it."""
        noise = self.speaker.noise(parameters.audio_seed, self.model.latent_width)
        thought, said.thought = said.thought, None
        latent, is_over = self.model.next_latent(
            said.state, said.latent, noise * parameters.audio_temperature**0.5, thought
        )
        if said.ends(is_over=is_over):
            self.speaker.speech = None
            return None
        pcm = self.model.sound(said.codec, latent, is_first=said.step == 0)
        said.latent = latent
        return Frame(pcm, self.speaker.count_frame(said))


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
