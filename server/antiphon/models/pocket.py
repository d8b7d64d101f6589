"""Pocket-TTS (Kyutai): a YAML configuration that names its weights and its tokenizer.

The configuration is that of the package ``pocket-tts``; this module reads only the description of the model
and the paths of its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from antiphon.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    MissingExtraError,
    hint,
)
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.pocket_shape import pocket_spec, table_of
from antiphon.models.published import POCKET
from antiphon.models.source import HUB_PREFIX, Folder, get_reference
from antiphon.models.strict import check_type
from antiphon.models.weights import count_parameters, read_header

PREFIX: Final = "pocket://"
"""Prefix of a configuration's name in the package."""

_NO_CLONING: Final = "weights_path_without_voice_cloning"


def find_config(folder: Path) -> Path | None:
    """The one configuration in a folder, None if there is none.

    Raises:
        CheckpointFormatError: there are several configurations.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointFormatError(f"{folder} holds {len(found)} configurations; name one of them: {names}")
    return found[0] if found else None


def packaged_config(ref: str) -> Path:
    """The configuration ``pocket://NAME`` of the package ``pocket-tts``, which is not imported.

    Raises:
        MissingExtraError: the package is not installed.
        CheckpointNotFoundError: it has no such configuration.
    """
    package = find_spec("pocket_tts")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("a Pocket-TTS model", extra=POCKET, module="pocket_tts")
    folder = Path(package.submodule_search_locations[0]) / "config"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    name = ref.removeprefix(PREFIX)
    if name not in names:
        raise CheckpointNotFoundError(
            f"pocket-tts has no model '{name}'{hint(name, names)}; there are: {', '.join(names)}"
        )
    return folder / f"{name}.yaml"


def read_pocket(path: Path, ref: str, name: str) -> Checkpoint:
    """Read a configuration and find its files. Paths in it are relative to its folder, or on the hub
    (``hf://``).

    If the weights with voice cloning are not available, the weights without voice cloning are used.

    Raises:
        CheckpointNotFoundError, CheckpointFormatError: a file is missing or malformed.
        MissingExtraError: the YAML parser is not installed.
    """
    raw = _read_yaml(path)
    flow, mimi = (table_of(raw, key, str(path)) for key in ("flow_lm", "mimi"))
    table = table_of(flow, "lookup_table", f"{path}: flow_lm")
    clones = _choose_weights(raw, path)
    files = {role: _find(section["weights_path"], path) for role, section in _weights(raw)}
    if not files:
        raise CheckpointFormatError(f"{path} names no weights: weights_path is missing")
    for role, section in _weights(raw):
        section["weights_path"] = str(files[role])
    check_type(table.get("tokenizer_path"), str, f"{path}: flow_lm.lookup_table.tokenizer_path")
    files["tokenizer"] = _find(table["tokenizer_path"], path)
    table["tokenizer_path"] = str(files["tokenizer"])
    spec = pocket_spec(
        name,
        flow,
        mimi,
        {**raw, "clones_voices": clones},
        sum(count_parameters(read_header(files[role])) for role, _ in _weights(raw)),
    )
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
        raise MissingExtraError("a Pocket-TTS model", extra=POCKET, module="yaml") from error
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CheckpointFormatError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointFormatError(f"{path} holds a {type(values).__name__}, expected a mapping")
    return values
