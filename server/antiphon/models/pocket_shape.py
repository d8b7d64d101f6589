"""A Pocket-TTS model from its configuration: its spec, the shape of its state, its rules for text.

A voice is the language model's keys and values for a recording, as ``pocket-tts export-voice`` writes them,
or the recording itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.conditioning import read_voice_file
from antiphon.models.prompt import Prompt
from antiphon.models.published import POCKET
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from antiphon.models.strict import check_type

MAX_VOICE_S: Final = 30.0
"""Maximum number of seconds of a recording that are used; the longest exported voice."""

MIN_FRAME_RATE: Final = 1.0
"""Lowest frame rate in frames a second; the published models have 12.5."""

LONGEST_CHUNK_TOKENS: Final = 272
"""Maximum number of tokens of a word. A word has at most 256, and gets quotes, a capital and a full stop."""

CHUNK_TOKENS: Final = 50
"""The package's chunk length, which gives the best speech."""
MAX_CHUNK_TOKENS: Final = 200

READ_POSITIONS: Final = 32
"""Positions of a text or a voice that one run of a graph reads."""
HEARD: Final = -1
"""Token in a graph's input that stands for a frame of a voice."""
BOS: Final = -2
"""Token in a graph's input that stands for the start of a voice."""

_KEY: Final = re.compile(r"transformer\.layers\.([0-9]{1,4})\.self_attn/(cache|offset|current_end|pad)")
_FLAGS: Final[Mapping[str, bool]] = {
    "pad_with_spaces_for_short_inputs": False,
    "remove_semicolons": False,
    "append_terminal_punctuation": True,
    "capitalize_first_letter": True,
}
"""Rules for text in a configuration, and their defaults."""
_EOS_THRESHOLD: Final = -4.0
_TOKENS_A_SECOND, _SPARE_S = 3.0, 2.0
_TAIL: Final = "model_recommended_frames_after_eos"


def pocket_spec(
    name: str, flow: Mapping[str, Any], mimi: Mapping[str, Any], told: Mapping[str, Any], parameters: int
) -> ModelSpec:
    """The spec of a model from the tables of its configuration; ``told`` has its other keys.

    Raises:
        CheckpointFormatError: a number is missing or out of range.
    """
    rate = _number(mimi, "sample_rate", f"{name}: mimi")
    check_type(mimi.get("frame_rate"), float, f"{name}: mimi.frame_rate")
    if not MIN_FRAME_RATE <= mimi["frame_rate"] <= rate:
        raise CheckpointFormatError(
            f"{name}: mimi.frame_rate is {mimi['frame_rate']}, expected {MIN_FRAME_RATE:g} to {rate}"
        )
    temperature = told.get("default_temperature", 0.3)
    check_type(temperature, float, f"{name}: default_temperature")
    kept = ("clones_voices", "replace_characters", "default_eos_threshold", _TAIL, *_FLAGS)
    table = {key: value for key, value in table_of(flow, "lookup_table", name).items() if "path" not in key}
    shaped = {key: value for key, value in flow.items() if key != "weights_path"} | {"lookup_table": table}
    codec = {key: value for key, value in mimi.items() if key != "weights_path"}
    spec = ModelSpec(
        name,
        PipelineKind.TTS,
        POCKET,
        MimiSpec(rate, float(mimi["frame_rate"]), codebooks=0, cardinality=0, config=codec),
        parameters=parameters,
        generation={
            "lm_gen_config": {"temp": temperature},
            "tts_config": {"flow_lm": shaped, **{key: told[key] for key in kept if key in told}},
        },
    )
    PocketShape.of(spec)
    return spec


@dataclass(frozen=True, slots=True)
class PocketShape:
    """The shape of a Pocket-TTS model's keys and values, and of the voices that consist of them.

    ``layers``, ``heads`` and ``head_dim`` describe its keys and values; ``max_positions`` is the length of
    the longest voice. ``clones``: its weights can make a voice from a recording. ``query_heads`` query heads
    share the heads of keys. ``capacity`` is the number of positions of the longest voice, the longest text
    and its speech together.
    """

    layers: int
    heads: int
    head_dim: int
    max_positions: int
    clones: bool
    query_heads: int
    capacity: int

    @classmethod
    def of(cls, spec: ModelSpec) -> PocketShape | None:
        """The shape of a model; None for a model of another family.

        Raises:
            CheckpointFormatError: the configuration lacks one of the numbers.
        """
        if spec.family != POCKET:
            return None
        told = spec.generation["tts_config"]
        flow = table_of(told, "flow_lm", spec.name)
        transformer = table_of(flow, "transformer", f"{spec.name}: flow_lm")
        where = f"{spec.name}: flow_lm.transformer"
        layers, heads, dim = (
            _number(transformer, key, where) for key in ("num_layers", "num_heads", "d_model")
        )
        kv_heads, attention_dim = (
            _number(transformer, key, where) if transformer.get(key) else default
            for key, default in (("num_kv_heads", heads), ("attn_dim", dim))
        )
        longest = round(MAX_VOICE_S * spec.mimi.frame_rate) + 1  # one more for the start token
        frames = longest_frames(LONGEST_CHUNK_TOKENS, spec.mimi.frame_rate)
        clones = bool(told.get("clones_voices"))
        capacity = longest + 1 + LONGEST_CHUNK_TOKENS + frames  # a recording ends with a frame of silence
        return cls(layers, kv_heads, attention_dim // heads, longest, clones, heads, capacity)

    def read_voice(self, path: Path) -> Prompt:
        """Read an exported voice.

        Raises:
            CheckpointFormatError: the file does not exist, or belongs to another model.
        """
        parts = read_voice_file(path)
        caches = [self._cache(parts, layer, path.name) for layer in range(self.layers)]
        others = [key for key in parts if not (match := _KEY.fullmatch(key)) or int(match[1]) >= self.layers]
        if others or len({cache.shape[1] for cache in caches}) > 1:
            raise CheckpointFormatError(
                f"{path.name} is a voice of another model: this one has {self.layers} layers of one length"
            )
        return Prompt(np.zeros((0, 0), np.int32), keys_values=np.stack(caches))

    def _cache(self, parts: Mapping[str, NDArray[Any]], layer: int, name: str) -> FloatArray:
        """Keys and values of one layer, ``[2, T, heads, head_dim]``."""
        stem = f"transformer.layers.{layer}.self_attn"
        cache, offset, end = (parts.get(f"{stem}/{key}") for key in ("cache", "offset", "current_end"))
        if cache is None or (offset is None and end is None):
            raise CheckpointFormatError(f"{name} lacks {stem}/cache or offset; it has {sorted(parts)[:3]}")
        if offset is not None:  # either of the two tensors may contain the length of the voice
            count = int(offset.flat[0]) if offset.size and offset.dtype == np.int64 else 0
        else:
            count = len(end) if end is not None and end.ndim else 0
        wanted = (2, 1, self.heads, self.head_dim)
        is_float = cache.dtype == np.float32
        if not is_float or cache.ndim != 5 or (*cache.shape[:2], *cache.shape[3:]) != wanted:
            raise CheckpointFormatError(
                f"{name} has keys and values {list(cache.shape)}, this model needs "
                f"[2, 1, T, {self.heads}, {self.head_dim}]"
            )
        if not 1 <= count <= min(cache.shape[2], self.max_positions):
            raise CheckpointFormatError(
                f"{name} is a voice of {count} positions, {cache.shape[2]} are in the file and "
                f"{self.max_positions} are the most"
            )
        kept = cache[:, 0, :count]
        if not np.isfinite(kept).all():
            raise CheckpointFormatError(f"{name} holds numbers that are not finite")
        return kept

    def check_voice(self, prompt: Prompt, frame_samples: int) -> None:
        """Raise UnsupportedError unless a prompt is a voice of this model, exported or recorded."""
        if prompt.keys_values is not None:
            found, wanted = prompt.keys_values.shape, (self.layers, 2, self.heads, self.head_dim)
            is_like = len(found) == 5 and (*found[:2], *found[3:]) == wanted
            if not is_like or not 1 <= found[2] <= self.max_positions:
                raise UnsupportedError(
                    f"keys and values {list(found)}, but this model needs [{self.layers}, 2, 1 to "
                    f"{self.max_positions}, {self.heads}, {self.head_dim}]"
                )
            return
        if prompt.voice is None:
            raise UnsupportedError("this model takes a voice, exported or recorded, and no other prompt")
        if not self.clones:
            raise UnsupportedError("this model has no weights for making a voice from a recording")
        frames, samples = prompt.voice.shape
        if not 1 <= frames < self.max_positions or samples != frame_samples:
            raise UnsupportedError(
                f"a recording [{frames}, {samples}], but this model needs "
                f"[1 to {self.max_positions - 1}, {frame_samples}]"
            )

    def recorded(self, pcm: FloatArray, spec: ModelSpec) -> Prompt:
        """The prompt of the voice in a recording, float32 ``[N]`` at the model's rate; only the first 30 s
        are used.

        Raises:
            UnsupportedError: the weights cannot encode a voice, or the recording is shorter than a frame.
        """
        if not self.clones:
            raise UnsupportedError(f"{spec.name} has no weights for making a voice from a recording")
        frames = min(len(pcm), round(MAX_VOICE_S * spec.sample_rate)) // spec.frame_samples
        if not frames:
            raise UnsupportedError(f"a recording of {len(pcm)} samples, {spec.frame_samples} are needed")
        voice = pcm[: frames * spec.frame_samples].astype(np.float32).reshape(frames, spec.frame_samples)
        return Prompt(np.zeros((0, 0), np.int32), voice=voice)


class Prepared(NamedTuple):
    """A chunk of text for the model: its tokens, and the frames that follow the end of its speech."""

    tokens: list[int]
    tail_frames: int


@dataclass(frozen=True, slots=True)
class PocketText:
    """The rules by which a Pocket-TTS model's text is prepared, like ``prepare_text_prompt`` of the package
    ``pocket-tts``.
    """

    encode: Callable[[str], list[int]]
    frame_rate: float
    flags: Mapping[str, bool]
    replaced: Mapping[str, str] = field(default_factory=dict)
    tail_frames: int | None = None
    eos_threshold: float = _EOS_THRESHOLD

    @classmethod
    def of(cls, spec: ModelSpec, encode: Callable[[str], list[int]]) -> PocketText:
        """The rules of a model, with its tokenizer."""
        told = spec.generation["tts_config"]
        return cls(
            encode,
            spec.mimi.frame_rate,
            {key: bool(told.get(key, default)) for key, default in _FLAGS.items()},
            told.get("replace_characters") or {},
            told.get(_TAIL),
            float(told.get("default_eos_threshold", _EOS_THRESHOLD)),
        )

    def count(self, text: str) -> int:
        """The number of tokens of a sentence, as counted by the package when it joins sentences."""
        written = self._write(text, is_capital=False)
        return 0 if written is None else len(self.encode(written[0].strip()))

    def prepare(self, text: str) -> Prepared | None:
        """A text in the form that the model was trained with; None if there is no text."""
        written = self._write(text, is_capital=self.flags["capitalize_first_letter"])
        if written is None:
            return None
        whole, words = written
        own = 3 if words <= _FEW_WORDS else 1
        tail_frames = own + 2 if self.tail_frames is None else self.tail_frames
        return Prepared(self.encode(whole)[:LONGEST_CHUNK_TOKENS], tail_frames)

    def longest_frames(self, tokens: int) -> int:
        """The maximum number of frames of a chunk of ``tokens`` tokens; the chunk ends there even if the
        model continues.
        """
        return longest_frames(tokens, self.frame_rate)

    def _write(self, text: str, *, is_capital: bool) -> tuple[str, int] | None:
        """The text after the rules, and its number of words; None for no text."""
        text = text.strip()
        if self.replaced:
            text = " ".join(
                text.translate({ord(letter): new for letter, new in self.replaced.items()}).split()
            )
            text = _MARK_AFTER_END.sub(r"\1", text)
        if not text:
            return None
        text = text.replace("\n", " ").replace("\r", " ").replace("  ", " ")
        if self.flags["remove_semicolons"]:
            text = text.replace(";", ",")
        words = len(text.split())
        if is_capital:
            text = text[0].upper() + text[1:]
        if self.flags["append_terminal_punctuation"]:
            text = _end(text)
        if self.flags["pad_with_spaces_for_short_inputs"] and len(text.split()) <= _FEW_WORDS:
            text = " " * 8 + text
        return text, words


_FEW_WORDS: Final = 4
_MARK_AFTER_END: Final = re.compile(r"([.!?\u2026])\s*[,;:]")
_ENDS: Final = (".", "!", "?", "\u2026")
_WEAK: Final = ",;:-\u2013\u2014"
_CLOSERS: Final = "\"'\u201d\u2019)]\u00bb"


def _end(text: str) -> str:
    """Add a full stop to a text without one at its end."""
    core = text.rstrip(_CLOSERS + " ")
    if not core or core.endswith(_ENDS):
        return text
    if core[-1] in _WEAK:
        return core.rstrip(_WEAK + " ") + "." + text[len(core) :].strip()
    return text + "."


def longest_frames(tokens: int, frame_rate: float) -> int:
    """The number of frames in the longest speech of this number of tokens."""
    return math.ceil((tokens / _TOKENS_A_SECOND + _SPARE_S) * frame_rate)


def table_of(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The table ``key`` of ``values``. Raises CheckpointFormatError if it is missing."""
    found = values.get(key)
    if not isinstance(found, dict):
        raise CheckpointFormatError(f"{where} lacks {key}: it is no configuration of Pocket-TTS")
    return found


def _number(values: Mapping[str, Any], key: str, where: str) -> int:
    check_type(values.get(key), int, f"{where}.{key}")
    if values[key] < 1:
        raise CheckpointFormatError(f"{where}.{key} is {values[key]}, expected at least 1")
    return int(values[key])
