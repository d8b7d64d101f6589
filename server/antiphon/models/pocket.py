"""Pocket-TTS (Kyutai): a YAML configuration that names its weights and its tokenizer, and voices.

The configuration is that of the package ``pocket-tts``, which also loads the model; this module reads only
the description of the model and the paths of its files. A voice is the language model's keys and values for a
recording, as ``pocket-tts export-voice`` writes them, or the recording itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from antiphon.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    MissingExtraError,
    UnsupportedError,
    hint,
)
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.conditioning import read_voice_file
from antiphon.models.prompt import Prompt
from antiphon.models.source import HUB_PREFIX, Folder, get_reference
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from antiphon.models.strict import check_type
from antiphon.models.weights import count_parameters, read_header

FAMILY: Final = "pocket"
PREFIX: Final = "pocket://"
"""Prefix of a configuration's name in the package."""

MAX_VOICE_S: Final = 30.0
"""Most seconds of a recording that are used; the longest exported voice."""

MIN_FRAME_RATE: Final = 1.0
"""Lowest frame rate in frames a second; the published models have 12.5."""

_NO_CLONING: Final = "weights_path_without_voice_cloning"
_KEY: Final = re.compile(r"transformer\.layers\.([0-9]{1,4})\.self_attn/(cache|offset|current_end|pad)")


@dataclass(frozen=True, slots=True)
class PocketShape:
    """Properties of a Pocket-TTS model for other modules: the shape of its voices.

    ``layers``, ``heads`` and ``head_dim`` describe its keys and values; ``max_positions`` is the length of
    the longest voice. ``clones``: its weights can make a voice from a recording.
    """

    layers: int
    heads: int
    head_dim: int
    max_positions: int
    clones: bool

    @classmethod
    def of(cls, spec: ModelSpec) -> PocketShape | None:
        """The shape of a model; None for one of another family.

        Raises:
            CheckpointFormatError: a configuration without the numbers.
        """
        if spec.family != FAMILY:
            return None
        transformer = _table(spec.generation["flow_lm"], "transformer", f"{spec.name}: flow_lm")
        where = f"{spec.name}: flow_lm.transformer"
        layers, heads, dim = (
            _number(transformer, key, where) for key in ("num_layers", "num_heads", "d_model")
        )
        kv_heads, attention_dim = (
            _number(transformer, key, where) if transformer.get(key) else default
            for key, default in (("num_kv_heads", heads), ("attn_dim", dim))
        )
        return cls(
            layers,
            kv_heads,
            attention_dim // heads,
            round(MAX_VOICE_S * spec.mimi.frame_rate) + 1,  # plus one at its start
            bool(spec.generation["clones_voices"]),
        )

    def read_voice(self, path: Path) -> Prompt:
        """An exported voice.

        Raises:
            CheckpointFormatError: no such file, or one of another model.
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

    def recorded(self, pcm: FloatArray, spec: ModelSpec) -> Prompt:
        """The voice of a recording, float32 ``[N]`` at the model's rate, of which the first 30 s are used.

        Raises:
            UnsupportedError: the weights cannot make a voice, or the recording is shorter than a frame.
        """
        if not self.clones:
            raise UnsupportedError(f"{spec.name} has no weights for making a voice from a recording")
        frames = min(len(pcm), round(MAX_VOICE_S * spec.sample_rate)) // spec.frame_samples
        if not frames:
            raise UnsupportedError(f"a recording of {len(pcm)} samples, {spec.frame_samples} are needed")
        voice = pcm[: frames * spec.frame_samples].astype(np.float32).reshape(frames, spec.frame_samples)
        return Prompt(np.zeros((0, 0), np.int32), voice=voice)


def find_config(folder: Path) -> Path | None:
    """The one configuration in a folder, None if there is none.

    Raises:
        CheckpointFormatError: there are several.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointFormatError(f"{folder} holds {len(found)} configurations; name one of them: {names}")
    return found[0] if found else None


def packaged_config(ref: str) -> Path:
    """The configuration ``pocket://NAME`` of the package, which is not imported. Nothing of it is imported.

    Raises:
        MissingExtraError: the package is not installed.
        CheckpointNotFoundError: it has no such configuration.
    """
    package = find_spec("pocket_tts")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("a Pocket-TTS model", extra=FAMILY, module="pocket_tts")
    folder = Path(package.submodule_search_locations[0]) / "config"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    name = ref.removeprefix(PREFIX)
    if name not in names:
        raise CheckpointNotFoundError(
            f"pocket-tts has no model '{name}'{hint(name, names)}; there are: {', '.join(names)}"
        )
    return folder / f"{name}.yaml"


def read_pocket(path: Path, ref: str, name: str) -> Checkpoint:
    """Read a configuration and find its files; paths in it are relative to it, ``hf://`` ones on the hub.

    If the weights with voice cloning are not available, those without are used.

    Raises:
        CheckpointNotFoundError, CheckpointFormatError: a file is missing or malformed.
        MissingExtraError: the YAML parser is not installed.
    """
    raw = _read_yaml(path)
    flow, mimi = (_table(raw, key, str(path)) for key in ("flow_lm", "mimi"))
    table = _table(flow, "lookup_table", f"{path}: flow_lm")
    clones = _choose_weights(raw, path)
    files = {role: _find(section["weights_path"], path) for role, section in _weights(raw)}
    if not files:
        raise CheckpointFormatError(f"{path} names no weights: weights_path is missing")
    for role, section in _weights(raw):
        section["weights_path"] = str(files[role])
    check_type(table.get("tokenizer_path"), str, f"{path}: flow_lm.lookup_table.tokenizer_path")
    files["tokenizer"] = _find(table["tokenizer_path"], path)
    table["tokenizer_path"] = str(files["tokenizer"])
    rate = _number(mimi, "sample_rate", f"{path}: mimi")
    check_type(mimi.get("frame_rate"), float, f"{path}: mimi.frame_rate")
    if not MIN_FRAME_RATE <= mimi["frame_rate"] <= rate:
        raise CheckpointFormatError(
            f"{path}: mimi.frame_rate is {mimi['frame_rate']}, expected {MIN_FRAME_RATE:g} to {rate}"
        )
    temperature = raw.get("default_temperature", 0.3)
    check_type(temperature, float, f"{path}: default_temperature")
    spec = ModelSpec(
        name,
        PipelineKind.TTS,
        FAMILY,
        MimiSpec(rate, float(mimi["frame_rate"]), codebooks=0, cardinality=0, config=mimi),
        parameters=sum(count_parameters(read_header(files[role])) for role, _ in _weights(raw)),
        generation={"lm_gen_config": {"temp": temperature}, "flow_lm": flow, "clones_voices": clones},
    )
    PocketShape.of(spec)
    return Checkpoint(spec, ref, path.parent, {**files, "config": path}, raw)


def _weights(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sections that name weights, by role: one for the whole model, or two for its parts."""
    for role, section in (("lm", raw), ("flow", raw["flow_lm"]), ("mimi", raw["mimi"])):
        if section.get("weights_path") is not None:
            yield role, section


def _choose_weights(raw: dict[str, Any], path: Path) -> bool:
    """Remove one of two ``weights_path``; returns whether the remaining one supports voice cloning."""
    full, bare = raw.get("weights_path"), raw.pop(_NO_CLONING, None)
    if full is None and bare is not None:
        raw["weights_path"] = bare
        return False
    if full is None or bare is None:
        return True
    try:
        _find(full, path)
    except CheckpointNotFoundError:  # on the hub its access is restricted
        raw["weights_path"] = bare
        return False
    return True


def _find(name: Any, path: Path) -> Path:
    check_type(name, str, f"{path}: a file's name")
    if name.startswith(HUB_PREFIX):
        return get_reference(name)
    if "://" in name:
        raise CheckpointFormatError(f"{path} names {name}; files and {HUB_PREFIX}owner/repo/file can be read")
    return Folder(path.parent).get(name)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("a Pocket-TTS model", extra=FAMILY, module="yaml") from error
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointFormatError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointFormatError(f"{path} holds a {type(values).__name__}, expected a mapping")
    return values


def _table(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = values.get(key)
    if not isinstance(found, dict):
        raise CheckpointFormatError(f"{where} lacks {key}: it is no configuration of Pocket-TTS")
    return found


def _number(values: Mapping[str, Any], key: str, where: str) -> int:
    check_type(values.get(key), int, f"{where}.{key}")
    if values[key] < 1:
        raise CheckpointFormatError(f"{where}.{key} is {values[key]}, expected at least 1")
    return int(values[key])
