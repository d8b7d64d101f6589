"""The files of a model, located and checked, so that a backend can load it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError, hint
from antiphon.install import antiphon_command
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    CodecEntry,
    FileEntry,
    GraphFormat,
    Manifest,
    QuantizationRecipe,
    file_entry,
    read_manifest,
    sha256,
)
from antiphon.models.pocket_shape import pocket_spec, table_of
from antiphon.models.published import POCKET, PublishedConfig, parse_config
from antiphon.models.shapes import build_spec
from antiphon.models.source import BUILTIN, HUB_PREFIX, FileSource, resolve
from antiphon.models.spec import ModelSpec
from antiphon.models.strict import read_json_object
from antiphon.models.tokenizer import Tokenizer, open_tokenizer
from antiphon.models.weights import MLX_NAMES, TensorInfo, read_header


@contextmanager
def as_checkpoint_error(name: str, *unless: type[Exception]) -> Iterator[None]:
    """Convert exceptions from building and loading modules to an error about the model called ``name``.

    It converts many types of exceptions, because a configuration has too many arguments to check each one
    beforehand. Exceptions of the types ``unless`` are not converted.

    Raises:
        CheckpointFormatError: with the text of the exception.
    """
    try:
        yield
    except unless:
        raise
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise CheckpointFormatError(
            f"{name} cannot be loaded: its weights and configuration do not fit each other, or the program: "
            f"{type(error).__name__}: {words:.500}"
        ) from error


SAMPLED_BYTES: Final = 1 << 20
"""Number of bytes that are hashed at the start and at the end of a large file, in addition to its size.
Hashing all of 15 GB of weights would take longer than loading them. Files that differ only in the middle
have the same hash.
"""


def fingerprint(files: Mapping[str, Path]) -> str:
    """SHA-256 of a model's files by role, as hexadecimal digits: names, sizes and samples of the contents."""
    digest = hashlib.sha256()
    for role, path in sorted(files.items()):
        size = path.stat().st_size
        digest.update(f"{role}\n{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            if size > 2 * SAMPLED_BYTES:
                file.seek(size - SAMPLED_BYTES)
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()


CONFIG_NAME: Final = "config.json"
PLAIN_MIMI: Final[Mapping[str, Any]] = {
    "model_type": "mimi",
    "mimi_name": "mimi.safetensors",
    "mimi_config_name": "mimi_config.json",
}
"""The configuration of a folder that contains only a Mimi."""
WEIGHT_ROLES: Final = ("lm", "mimi", "mimi_config", "lora")
"""The files of published weights, with the codec's shape. A model with ONNX graphs runs without them."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's spec, and the paths of its files.

    ``ref`` is the requested name, ``root`` the folder of its configuration, ``revision`` its commit (hub
    only). ``files`` maps roles to paths: "lm", "mimi", "tokenizer", "lora", "config", "mimi_config", and
    further roles of a manifest. ``raw_config`` is ``config.json`` unchanged. ``absent`` maps the roles of
    missing published weights to their file names; ONNX graphs run without these weights. ``mimi_config`` None
    means the full-size Mimi. ``digest`` is the SHA-256 of the manifest, which contains the digests of all
    files; it is "" without a manifest.
    """

    spec: ModelSpec
    ref: str
    root: Path
    files: Mapping[str, Path]
    raw_config: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    manifest: Manifest | None = None
    digest: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def generation(self) -> Mapping[str, Any]:
        """The published ``lm_gen_config``, ``stt_config``, ``tts_config`` and ``model_id``, if present."""
        return self.spec.generation

    @property
    def backends(self) -> Mapping[str, BackendFormat]:
        """The manifest's entry for each backend, by its name; empty for the published layout."""
        return {} if self.manifest is None else self.manifest.backends

    @property
    def graphs(self) -> Mapping[str, GraphFormat]:
        """The ONNX graphs of this model by purpose; empty if it has none."""
        return {} if self.manifest is None else self.manifest.graphs

    def quantization_for(self, backend: str) -> QuantizationRecipe | None:
        """The recipe by which the weights that a backend reads were rounded; None if they were not rounded.

        The manifest's rounding applies to the backends that it lists, or to all backends if it lists none. A
        model may have rounded graphs and unrounded published weights.
        """
        if self.manifest is None or (self.backends and backend not in self.backends):
            return None
        return self.manifest.quantization

    def file(self, role: str) -> Path:
        """The path of the file with this role.

        Raises:
            CheckpointNotFoundError: published weights are missing; the message says how to get them.
            CheckpointFormatError: the role does not exist; the message lists the roles.
        """
        if role in self.absent:
            raise CheckpointNotFoundError(
                f"{self.spec.name} is here as ONNX graphs only, without its published weights "
                f"'{self.absent[role]}': {self._remedy(role, self.absent[role])}"
            )
        if role not in self.files:
            raise CheckpointFormatError(
                f"{self.spec.name} has no file for '{role}'{hint(role, self.files)}, "
                f"it has {', '.join(sorted(self.files))}"
            )
        return self.files[role]

    def text_tokenizer(self) -> Tokenizer | None:
        """The text tokenizer, or None for a model without text."""
        if "tokenizer" not in self.files:
            return None
        padding_id = 3 if self.spec.lm is None else self.spec.lm.text_padding_id
        return open_tokenizer(self.files["tokenizer"], padding_id=padding_id)

    def verify(self, progress: Callable[[int, int, str], None] | None = None) -> int:
        """Read every listed file that is present, and compare its SHA-256.

        Returns the number of compared files.

        Without a manifest there is nothing to compare, and the result is 0. Raises CheckpointDigestError with
        both digests for the first file that differs.
        """
        listed = {} if self.manifest is None else self.manifest.files
        entries = {role: entry for role, entry in listed.items() if role in self.files}
        for done, (role, entry) in enumerate(entries.items()):
            if progress is not None:
                progress(done, len(entries), entry.path)
            entry.check_hash(self.files[role], self._remedy(role, entry.path))
        return len(entries)

    def _remedy(self, role: str, name: str) -> str:
        """Advice for getting the right file of this role and name."""
        if self.ref.startswith(HUB_PREFIX):
            repo = self.ref.removeprefix(HUB_PREFIX).partition("@")[0]
            return f"fetch it again: hf download {repo} {name} --force-download"
        if self.ref in BUILTIN and role in WEIGHT_ROLES:
            return "install the package antiphon-weights (in a checkout: pip install ./weights)"
        if self.ref in BUILTIN:
            return "install the same wheel again, with --force-reinstall (in a checkout: git restore .)"
        copied = "copy it again from its source"
        if role in self.absent:
            return copied
        return f"{copied}, or, if you changed it: {antiphon_command('serve --skip-digests')}"


def read_checkpoint(source: FileSource, ref: str) -> Checkpoint:
    """Read a checkpoint from its ``antiphon.json``, or in the published layout if it has none.

    File sizes and the headers of the weights are checked, contents are not (:meth:`Checkpoint.verify`).
    Raises CheckpointNotFoundError and CheckpointFormatError.
    """
    manifest_path = source.find(MANIFEST_NAME)
    if manifest_path is not None:
        return _from_manifest(source, ref, manifest_path)
    return _from_published(source, ref)


def _from_manifest(source: FileSource, ref: str, path: Path) -> Checkpoint:
    manifest = read_manifest(path)
    files, absent = _find_files(source, manifest)
    spec = _spec_of(manifest, files)
    raw_config = read_json_object(files["config"]) if "config" in files else {}
    digest = sha256(path)
    return Checkpoint(spec, ref, path.parent, files, raw_config, source.revision, manifest, digest, absent)


def _spec_of(manifest: Manifest, files: Mapping[str, Path]) -> ModelSpec:
    if manifest.family == POCKET:
        told = {**manifest.generation.get("tts_config", {})}
        if "temp" in (sampling := manifest.generation.get("lm_gen_config", {})):
            told["default_temperature"] = sampling["temp"]
        mimi = manifest.mimi.config or {}
        flow = table_of(told, "flow_lm", f"{manifest.name}: generation.tts_config")
        return pocket_spec(manifest.name, flow, mimi, told, manifest.parameters or 0)
    config = PublishedConfig(
        {role: entry.path for role, entry in manifest.files.items()},
        manifest.family,
        manifest.lm,
        manifest.generation,
    )
    return build_spec(
        manifest.name,
        config,
        manifest.mimi.config,
        _headers(files),
        codebooks=manifest.mimi.codebooks,
        parameters=manifest.parameters,
    )


def _find_files(source: FileSource, manifest: Manifest) -> tuple[dict[str, Path], dict[str, str]]:
    """The files of a manifest by role, each of the stated size, and the names of absent weights by role."""
    files, absent = {}, {}
    for role, entry in manifest.files.items():
        try:
            files[role] = resolve(source, entry.path)
        except CheckpointNotFoundError:
            if not manifest.graphs or role not in WEIGHT_ROLES:
                raise
            absent[role] = entry.path
        else:
            entry.check_size(files[role])
    return files, absent


def _from_published(source: FileSource, ref: str) -> Checkpoint:
    config_path = source.find(CONFIG_NAME)
    if config_path is None:
        raw_config: Mapping[str, Any] = {}
        config = _guess(source, ref)
    else:
        raw_config = read_json_object(config_path)
        config = parse_config(raw_config, str(config_path))
    files = {role: resolve(source, name) for role, name in config.names.items()}
    if config_path is not None:
        files["config"] = config_path
    mimi_config = read_json_object(files["mimi_config"]) if "mimi_config" in files else None
    spec = build_spec(source.name, config, mimi_config, _headers(files))
    root = files["config" if config_path else "mimi"].parent
    return Checkpoint(spec, ref, root, files, raw_config, source.revision)


def _guess(source: FileSource, ref: str) -> PublishedConfig:
    """The kind of a folder without ``config.json``, by the names of its files: Moshi 7B, or only a Mimi."""
    moshi, mimi = parse_config({}, ref), parse_config(PLAIN_MIMI, ref)
    for name in (moshi.names["lm"], *MLX_NAMES):
        if source.find(name) is not None:
            return replace(moshi, names={**moshi.names, "lm": name})
    if source.find(mimi.names["mimi"]) is not None:
        return mimi
    raise CheckpointNotFoundError(
        f"{ref} holds no model: none of {MANIFEST_NAME}, {CONFIG_NAME}, {moshi.names['lm']}, "
        f"{mimi.names['mimi']} is there"
    )


def describe(
    checkpoint: Checkpoint,
    *,
    name: str | None = None,
    description: str = "",
    license_name: str | None = None,
    examples: tuple[str, ...] = (),
    files: Mapping[str, FileEntry] | None = None,
    graphs: Mapping[str, GraphFormat] | None = None,
    backends: Mapping[str, BackendFormat] | None = None,
    quantization: QuantizationRecipe | None = None,
) -> Manifest:
    """The manifest of a checkpoint or, with ``files`` and ``graphs``, of a new checkpoint made from it.

    Without ``files`` every file of the checkpoint is read and hashed. The default license is the checkpoint's
    license.
    """
    spec = checkpoint.spec
    if license_name is None:
        license_name = "" if checkpoint.manifest is None else checkpoint.manifest.license
    if files is None:
        files = {
            role: file_entry(checkpoint.root, Path(os.path.relpath(path, checkpoint.root)).as_posix())
            for role, path in checkpoint.files.items()
        }
    return Manifest(
        name=name or spec.name,
        family=spec.family,
        files=files,
        mimi=CodecEntry(spec.mimi.codebooks, spec.mimi.config),
        lm=None if spec.lm is None else spec.lm.config,
        generation=spec.generation,
        parameters=spec.parameters,
        backends=backends or {},
        graphs=checkpoint.graphs if graphs is None else graphs,
        quantization=quantization,
        description=description,
        license=license_name,
        examples=examples,
    )


def _headers(files: Mapping[str, Path]) -> dict[str, dict[str, TensorInfo]]:
    return {role: read_header(files[role]) for role in ("lm", "mimi", "lora") if role in files}
