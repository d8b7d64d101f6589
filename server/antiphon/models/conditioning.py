"""A model's inputs in addition to audio and text: voices, conditions, guidance. Backends compute them.

**Voices**: embeddings of a recording, as Kyutai publishes them. A file holds ``speaker_wavs`` float ``[1,
width, T]``: T vectors of about ten seconds of one voice. Models were trained with up to five voices, all of
the same T (``make_condition_attributes`` in ``moshi/models/tts.py`` of kyutai-labs/moshi); a learnt embedding
replaces missing ones.

**Conditions** follow ``ConditionFuser`` and the conditioners of ``moshi/conditioners``: a voice is the source
of cross-attention, and a choice from a table is added to every input.

**Guidance**, classifier-free: the strength with which a tts model follows its text and voice. Ho and Salimans
2022, "Classifier-free diffusion guidance". Some models were trained with a coefficient as input. Others were
trained with text and voice omitted at random. They run twice, with and without text and voice, and the
difference guides the output (``cfg_coef`` of ``TTSModel``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from antiphon.arrays import FloatArray
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.spec import ModelSpec
from antiphon.models.strict import check_type

MAX_BYTES: Final = 1 << 28
"""Maximum number of bytes of a voice file: the largest voice of Pocket-TTS, half a minute, takes about 75 MB.
"""

_FLOATS: Final = ("F64", "F32", "F16")
_INTEGERS: Final = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


def read_voice_file(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file by name, as float32, or int64 for whole numbers.

    The format limits the number of elements by the size of the file; the memory for float32 and int64 is
    limited too.

    Raises:
        CheckpointFormatError: the file has another format, is too large, or holds tensors of another type.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointFormatError(f"{path.name} has {size} bytes, a voice has at most {MAX_BYTES}")
        with safe_open(path, framework="np") as file, np.errstate(over="ignore"):
            names = list(file.keys())
            parts = [file.get_slice(name) for name in names]
            taken_bytes = sum(
                math.prod(it.get_shape()) * (8 if it.get_dtype() in _INTEGERS else 4) for it in parts
            )
            if taken_bytes > MAX_BYTES:
                raise CheckpointFormatError(
                    f"the tensors of {path.name} take {taken_bytes} bytes, a voice's at most {MAX_BYTES}"
                )
            return {name: _read(file, name, path) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointFormatError(f"{path.name} is no file of a voice: {error}") from error


def _read(file: Any, name: str, path: Path) -> NDArray[Any]:
    kind = file.get_slice(name).get_dtype()
    if kind not in _FLOATS + _INTEGERS:
        raise CheckpointFormatError(
            f"{path.name} is no file of a voice: {name[:80]} is {kind}, "
            f"there are: {', '.join(_FLOATS + _INTEGERS)}"
        )
    values: NDArray[Any] = file.get_tensor(name)
    return values.astype(np.float32 if kind in _FLOATS else np.int64, copy=False)


CONDITION: Final = "speaker_wavs"
MAX_SPEAKERS: Final = 5
SPEAKER_FRAMES: Final = 125
"""Vectors of a voice: ten seconds at 12.5 Hz, as in all published voices; ``tts_config.speaker_frames`` is a
key of this project.
"""


@dataclass(frozen=True, slots=True)
class SpeakerShape:
    """The shape of a voice for a tts model: ``frames`` vectors of ``width`` numbers."""

    frames: int
    width: int

    @classmethod
    def of(cls, spec: ModelSpec) -> SpeakerShape | None:
        """The shape that a model needs; None for a model with a built-in voice.

        Raises:
            CheckpointFormatError: a configuration without the width.
        """
        if CONDITION not in spec.conditioners:
            return None
        width = spec.conditioners[CONDITION].get("tensor", {}).get("dim")
        frames = spec.generation.get("tts_config", {}).get("speaker_frames", SPEAKER_FRAMES)
        check_type(width, int, f"conditioners.{CONDITION}.tensor.dim")
        check_type(frames, int, "tts_config.speaker_frames")
        if frames < 1:
            raise CheckpointFormatError(f"tts_config.speaker_frames is {frames}, it must be at least 1")
        return cls(frames, width)

    @property
    def positions(self) -> int:
        """Length of the cross-attention source for any number of voices."""
        return MAX_SPEAKERS * self.frames

    def check(self, prompt: Prompt) -> FloatArray:
        """Check the voices of a prompt and return them, float32 ``[V, T, width]``.

        Raises:
            UnsupportedError: there is no voice, there are too many, or they have another shape.
        """
        speakers = prompt.speakers
        wanted = f"float32 [1 to {MAX_SPEAKERS}, {self.frames}, {self.width}]"
        if speakers is None or speakers.dtype != np.float32 or speakers.ndim != 3:
            raise UnsupportedError(f"a tts model takes voices, {wanted}, and no other prompt")
        if not 1 <= len(speakers) <= MAX_SPEAKERS or speakers.shape[1:] != (self.frames, self.width):
            raise UnsupportedError(f"voices {list(speakers.shape)}, but this model needs {wanted}")
        return speakers

    def prompt(self, embeddings: FloatArray) -> Prompt:
        """Make the prompt of one voice, ``[1, width, T]`` or ``[width, T]`` as published.

        Raises:
            UnsupportedError: another shape, or a number that is not finite.
        """
        shape = embeddings.shape[1:] if embeddings.ndim == 3 and len(embeddings) == 1 else embeddings.shape
        if shape != (self.width, self.frames):
            raise UnsupportedError(
                f"a voice of shape {list(embeddings.shape)}, this model needs "
                f"[1, {self.width}, {self.frames}]"
            )
        if not np.isfinite(embeddings).all():
            raise UnsupportedError("a voice holds numbers that are not finite")
        speaker = embeddings.astype(np.float32, copy=False).reshape(self.width, self.frames).T
        return Prompt(np.zeros((0, 0), np.int32), speakers=np.ascontiguousarray(speaker)[None])


def read_speaker(path: Path) -> FloatArray:
    """The embeddings in a voice's file, float32 as published.

    Raises:
        CheckpointFormatError: the file is not a safetensors file, has no voice, or is too large.
    """
    found = read_voice_file(path)
    if CONDITION not in found:
        raise CheckpointFormatError(f"{path.name} has {sorted(found)[:3]}, a voice has {CONDITION}")
    return found[CONDITION].astype(np.float32, copy=False)


GUIDANCE: Final = 2.0
"""The default guidance coefficient of models that take one as input (upstream's default)."""

PROVIDER: Final = "condition_provider.conditioners"
"""Prefix of the conditioners' tensors."""


def check_conditions(config: Mapping[str, Any]) -> None:
    """Check that a tts model's conditions are joined as in the published models.

    Raises:
        UnsupportedError: the conditions, or the way in which they are joined, occur in no published model.
    """
    fuser = config.get("fuser") or {}
    tables = {name for name, what in config["conditioners"].items() if what["type"] == "lut"}
    joined = {name: how for how in ("sum", "cross", "prepend") for name in fuser.get(how, [])}
    wanted = {**dict.fromkeys(tables, "sum"), CONDITION: "cross"}
    for name in config["conditioners"]:
        if wanted.get(name) != joined.get(name):
            raise UnsupportedError(
                f"the condition '{name}' is joined by {joined.get(name)!r}; only tables can be added, and "
                f"only {CONDITION} can be used by cross-attention"
            )


def chosen_entry(config: Mapping[str, Any], name: str) -> int | None:
    """The index of the entry that the server chooses in a tts model's lookup table; None if the table does
    not have this entry.
    """
    values = config["conditioners"][name]["lut"].get("possible_values") or []
    wanted = {"cfg": format(GUIDANCE, ".1f"), "control": "ok"}.get(name)
    return values.index(wanted) if wanted in values else None


def description_entry(config: Mapping[str, Any], family: str) -> int | None:
    """The index of "very_good" in the table of descriptions, an entry that Hibiki adds to every input.

    None for a model without conditioners, and for tts models, whose conditions are read separately.

    Raises:
        UnsupportedError: another family with conditioners.
    """
    conditioners = config.get("conditioners") or {}
    if not conditioners or family == "tts":
        return None
    if family != "hibiki" or set(conditioners) != {"description"}:
        raise UnsupportedError(f"a {family} model with the conditions {sorted(conditioners)} cannot be run")
    entry: int = conditioners["description"]["lut"]["possible_values"].index("very_good")
    return entry


def source_positions(config: Mapping[str, Any], count: int, dim: int) -> NDArray[np.float32]:
    """The positional term of a cross-attention source, ``[count, dim]``.

    It consists of cosines, then sines (Vaswani et al. 2017, in upstream's order); zeros if the configuration
    has no positional term.
    """
    if not config["fuser"].get("cross_attention_pos_emb"):
        return np.zeros((count, dim), np.float32)
    half, scale = dim // 2, config["fuser"].get("cross_attention_pos_emb_scale", 1)
    exponents = np.arange(half, dtype=np.float32) / np.float32(half - 1)
    phase = np.arange(count, dtype=np.float32)[:, None] / np.float32(10000.0) ** exponents
    sines: NDArray[np.float32] = np.float32(scale) * np.concatenate([np.cos(phase), np.sin(phase)], axis=-1)
    return sines


UNGUIDED: Final = 1.0
MAX_GUIDANCE: Final = 10.0
"""Largest guidance coefficient: useful values are 1.5 to 4."""

_TOLD: Final = "cfg"


def guidance_of(spec: ModelSpec, asked: float | None = None) -> float:
    """The guidance coefficient of a tts model: ``asked``, or else its ``tts_config.cfg_coef``, or else 1,
    which means no guidance.

    Raises:
        CheckpointFormatError: a coefficient out of range in the configuration. UnsupportedError: the
        requested coefficient is out of range, or the model takes its coefficient as an input.
    """
    published = spec.generation.get("tts_config", {}).get("cfg_coef", UNGUIDED)
    check_type(published, float, "tts_config.cfg_coef")
    if not UNGUIDED <= published <= MAX_GUIDANCE:
        raise CheckpointFormatError(
            f"tts_config.cfg_coef is {published:g}, it must be {UNGUIDED:g} to {MAX_GUIDANCE:g}"
        )
    guidance = float(published if asked is None else asked)
    if not UNGUIDED <= guidance <= MAX_GUIDANCE:
        raise UnsupportedError(f"guidance is {guidance:g}, it can be {UNGUIDED:g} to {MAX_GUIDANCE:g}")
    if guidance != UNGUIDED and spec.conditioners.get(_TOLD, {}).get("lut", {}).get("possible_values"):
        raise UnsupportedError(
            f"{spec.name} has its guidance as a trained input; guidance of {guidance:g} on top of "
            "that would be another model"
        )
    return guidance
