"""``antiphon.json``: one file that describes a model completely. Its schema is in docs/manifest.md.

Its graph table lists the inputs, outputs and state of each ONNX file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointDigestError, CheckpointFormatError, hint
from antiphon.models.published import FAMILIES, GENERATION_KEYS, POCKET, check_lm_keys
from antiphon.models.strict import check_keys, read_json_object, read_record

ROWS: Final = "rows"
"""The name of the first axis of every tensor: the rows of a tick."""

DTYPES: Final[Mapping[str, type[np.generic]]] = {
    "bool": np.bool_,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
}

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """An input or output of a graph; ``shape`` excludes the row axis, which is first."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the tensor."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.numpy_dtype.itemsize * int(np.prod(self.shape))

    def allocate(self, rows: int) -> Array:
        """An array of zeros for ``rows`` rows."""
        return np.zeros((rows, *self.shape), self.numpy_dtype)

    def __str__(self) -> str:
        """Dtype and shape, for messages."""
        return f"{self.dtype} [{', '.join(map(str, (ROWS, *self.shape)))}]"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """A tensor that is passed from one run to the next.

    ``name`` is the name of the input, ``output`` the name of the output with the next value, ``fill`` the
    value of fresh rows. ``aliased`` guarantees that input and output may be the same memory: all reads of the
    input precede the write of the output. Without ``output`` no run changes the tensor: it is an input that
    is fixed for the row, such as a voice.
    """

    name: str
    output: str | None
    fill: float
    aliased: bool


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """One ONNX file: its role among the manifest's files, its opset, and all of its inputs and outputs."""

    file: str
    opset: int
    inputs: tuple[TensorFormat, ...]
    outputs: tuple[TensorFormat, ...]
    state: tuple[StateFormat, ...] = ()

    def input(self, name: str) -> TensorFormat:
        """The input of this name. Raises CheckpointFormatError with the nearest name."""
        return _named(name, self.inputs, f"graph {self.file}: inputs")

    def output(self, name: str) -> TensorFormat:
        """The output of this name. Raises CheckpointFormatError with the nearest name."""
        return _named(name, self.outputs, f"graph {self.file}: outputs")


def _named(name: str, tensors: tuple[TensorFormat, ...], where: str) -> TensorFormat:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    names = [tensor.name for tensor in tensors]
    raise CheckpointFormatError(f"{where} lack '{name}'{hint(name, names)}, there are {', '.join(names)}")


def graph_from_json(values: Any, where: str) -> GraphFormat:
    """The graph that JSON values describe. Raises CheckpointFormatError with the faulty key."""
    graph = read_record(GraphFormat, values, where)
    _check_graph(graph, where)
    return graph


def _check_graph(graph: GraphFormat, where: str) -> None:
    for part, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        for tensor in tensors:
            if tensor.dtype not in DTYPES:
                raise CheckpointFormatError(
                    f"{where}.{part}.{tensor.name}: dtype is '{tensor.dtype}', known: {', '.join(DTYPES)}"
                )
            if min(tensor.shape, default=0) < 0:
                raise CheckpointFormatError(
                    f"{where}.{part}.{tensor.name}: shape is {list(tensor.shape)}, expected whole numbers"
                )
    for entry in graph.state:
        given = graph.input(entry.name)
        taken = given if entry.output is None else graph.output(entry.output)
        if (given.dtype, given.shape) != (taken.dtype, taken.shape):
            raise CheckpointFormatError(
                f"{where}: state {entry.name} is {given}, but its next value {entry.output} is {taken}"
            )


MANIFEST_NAME: Final = "antiphon.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its path relative to the manifest, the SHA-256 of its bytes in hex, and its size."""

    path: str
    sha256: str
    bytes: int

    def check_size(self, path: Path) -> None:
        """Raise CheckpointFormatError if the size of ``path`` differs from the size in the entry."""
        found = path.stat().st_size
        if found != self.bytes:
            raise CheckpointFormatError(f"{path} has {found} bytes, the manifest says {self.bytes}")

    def check_hash(self, path: Path, remedy: str) -> None:
        """Compare the content of ``path`` with the recorded digest; reads the whole file.

        Raises:
            CheckpointFormatError: the size differs. CheckpointDigestError: the SHA-256 differs; the message
            ends with ``remedy``.
        """
        self.check_size(path)
        found = sha256(path)
        if found != self.sha256:
            raise CheckpointDigestError(str(path), found=found, promised=self.sha256, remedy=remedy)


@dataclass(frozen=True, slots=True)
class BackendFormat:
    """A backend's entry: the roles of its files, its compute dtype, and its requirements.

    If ``dtype`` is None, the backend chooses. ``requires`` maps Python modules to the minimum version ("" for
    any). ``options`` are passed to the backend unchanged.
    """

    files: tuple[str, ...]
    dtype: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuantizationRecipe:
    """How weights were rounded, with all data that are needed to judge and repeat the rounding.

    ``scheme`` names the method; ``bits`` and ``group_size`` (None: one scale per output channel) are its
    parameters. ``keep`` has the glob patterns of unchanged tensors, ``source_sha256`` identifies the original
    weights, ``tool`` is the program that rounded them, and ``options`` are its other options.
    """

    scheme: str
    bits: int
    group_size: int | None = None
    keep: tuple[str, ...] = ()
    source_sha256: str = ""
    tool: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodecEntry:
    """The Mimi of a model: the RVQ levels in use, and its published arguments (None: the full-size Mimi)."""

    codebooks: int
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of an ``antiphon.json``; the fields are in the order of the documentation.

    ``files`` maps roles ("lm", "mimi", "tokenizer", "lora", or a backend's own, such as "onnx.encoder") to
    entries. ``lm`` is the published arguments. If ``parameters`` is None, the parameters are counted.
    ``examples`` are sample questions. ``voices`` maps the ids of voices to names that a page can show.
    ``graphs`` maps stages ("encode", "lm", "depformer", "decode") to the ONNX files.
    """

    schema: int = SCHEMA
    name: str
    description: str = ""
    license: str = ""
    examples: tuple[str, ...] = ()
    voices: Mapping[str, str] = field(default_factory=dict)
    family: str
    files: Mapping[str, FileEntry]
    mimi: CodecEntry
    lm: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    backends: Mapping[str, BackendFormat] = field(default_factory=dict)
    graphs: Mapping[str, GraphFormat] = field(default_factory=dict)
    quantization: QuantizationRecipe | None = None


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(folder: Path, name: str) -> FileEntry:
    """The entry of a file that exists at ``name`` relative to the manifest's folder."""
    path = folder / name
    return FileEntry(name, sha256(path), path.stat().st_size)


def read_manifest(path: Path) -> Manifest:
    """Read and check an ``antiphon.json``. Raises CheckpointFormatError with the faulty key."""
    return manifest_from_json(read_json_object(path), str(path))


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write an ``antiphon.json`` that :func:`read_manifest` reads back as an equal manifest."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def manifest_from_json(values: Any, where: str) -> Manifest:
    """The manifest that JSON values describe. Raises CheckpointFormatError with the faulty key."""
    if isinstance(values, Mapping):
        if "schema" not in values:
            raise CheckpointFormatError(f"{where} lacks schema")
        if values["schema"] != SCHEMA:
            raise CheckpointFormatError(f"{where} has schema {values['schema']}, this version reads {SCHEMA}")
    found = read_record(Manifest, values, where, ": ")
    family, lm, files = found.family, found.lm, found.files
    families = (*FAMILIES, POCKET)
    if family not in families:
        raise CheckpointFormatError(
            f"{where}: unknown family '{family}'{hint(family, families)}, known: {', '.join(families)}"
        )
    if (lm is None) != (family in ("mimi", POCKET)):
        raise CheckpointFormatError(
            f"{where}: family '{family}' with{'out' if lm is None else ''} the arguments of an LM"
        )
    check_lm_keys(lm or {}, f"{where}: lm")
    kinds = dict.fromkeys(GENERATION_KEYS, dict)
    check_keys(found.generation, f"{where}: generation", required={}, optional=kinds)
    for role, entry in files.items():
        at = f"{where}: files.{role}"
        if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
            raise CheckpointFormatError(f"{at}.sha256 is '{entry.sha256}', expected 64 lower-case hex digits")
        if entry.bytes < 0:
            raise CheckpointFormatError(f"{at}.bytes is {entry.bytes}")
        if Path(entry.path).is_absolute():
            raise CheckpointFormatError(f"{at}.path is '{entry.path}', expected one relative to the manifest")
    if "mimi" not in files and family != POCKET:
        raise CheckpointFormatError(f"{where}: files lacks the role mimi")
    roles = [(f"backends.{name}", role) for name, it in found.backends.items() for role in it.files]
    for name, graph in found.graphs.items():
        _check_graph(graph, f"{where}: graphs.{name}")
        roles.append((f"graphs.{name}", graph.file))
    for asking, role in roles:
        if role not in files:
            raise CheckpointFormatError(
                f"{where}: {asking} wants the file '{role}'{hint(role, files)}, files has {', '.join(files)}"
            )
    return found
