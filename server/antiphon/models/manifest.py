"""``antiphon.json``: one file that says everything about a model. Its schema is in docs/manifest.md.

Its graph table says what each ONNX file takes, gives, and remembers from frame to frame.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointDigestError, CheckpointFormatError, hint
from antiphon.models.published import FAMILIES, GENERATION_KEYS, check_lm_keys
from antiphon.models.strict import check_keys, check_type, read_json_object
from antiphon.values import Types

ROWS: Final = "rows"
"""The name of the first axis of every tensor: how many rows a tick runs over."""

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
    """An input or output of a graph: ``shape`` leaves out the row axis, which comes first."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of an array that holds it."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def row_bytes(self) -> int:
        """Bytes one row of it takes."""
        return self.numpy_dtype.itemsize * int(np.prod(self.shape))

    def allocate(self, rows: int) -> Array:
        """An array of zeros for ``rows`` rows."""
        return np.zeros((rows, *self.shape), self.numpy_dtype)

    def __str__(self) -> str:
        """Dtype and shape, for messages."""
        return f"{self.dtype} [{', '.join(map(str, (ROWS, *self.shape)))}]"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """A tensor that is handed from one run to the next.

    ``name`` is that of the input, ``output`` the output that holds its next value, ``fill`` what fresh
    rows hold. ``aliased`` promises that input and output may be the same memory: whatever else reads the
    input has read it before the output is written. Without ``output`` no run changes it: it is what a row
    was given before (a voice).
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
        """The input of this name. Raises CheckpointFormatError naming the nearest."""
        return _named(name, self.inputs, f"graph {self.file}: inputs")

    def output(self, name: str) -> TensorFormat:
        """The output of this name. Raises CheckpointFormatError naming the nearest."""
        return _named(name, self.outputs, f"graph {self.file}: outputs")


def _named(name: str, tensors: tuple[TensorFormat, ...], where: str) -> TensorFormat:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    names = [tensor.name for tensor in tensors]
    raise CheckpointFormatError(f"{where} lack '{name}'{hint(name, names)}, there are {', '.join(names)}")


def graph_to_json(graph: GraphFormat) -> dict[str, Any]:
    """The graph as JSON values."""
    return asdict(graph)


def graph_from_json(values: Any, where: str) -> GraphFormat:
    """The graph that JSON values describe. Raises CheckpointFormatError naming the faulty key."""
    read = check_keys(
        values,
        where,
        required={"file": str, "opset": int, "inputs": list, "outputs": list},
        optional={"state": list},
    )
    inputs, outputs = (
        tuple(_tensor(tensor, f"{where}.{part}") for tensor in read[part]) for part in ("inputs", "outputs")
    )
    state = tuple(_state(entry, f"{where}.state") for entry in read.get("state", []))
    graph = GraphFormat(read["file"], read["opset"], inputs, outputs, state)
    for entry in state:
        if entry.output is None:
            graph.input(entry.name)
            continue
        given, taken = graph.input(entry.name), graph.output(entry.output)
        if (given.dtype, given.shape) != (taken.dtype, taken.shape):
            raise CheckpointFormatError(
                f"{where}: state {entry.name} is {given}, but its next value {entry.output} is {taken}"
            )
    return graph


def _tensor(values: Any, where: str) -> TensorFormat:
    read = check_keys(values, where, required={"name": str, "dtype": str, "shape": list})
    if read["dtype"] not in DTYPES:
        raise CheckpointFormatError(
            f"{where}.{read['name']}: dtype is '{read['dtype']}', known: {', '.join(DTYPES)}"
        )
    if not all(type(size) is int and size >= 0 for size in read["shape"]):
        raise CheckpointFormatError(
            f"{where}.{read['name']}: shape is {read['shape']}, expected whole numbers"
        )
    return TensorFormat(read["name"], read["dtype"], tuple(read["shape"]))


def _state(values: Any, where: str) -> StateFormat:
    required: dict[str, Types] = {
        "name": str,
        "output": (str, type(None)),
        "fill": float,
        "aliased": bool,
    }
    return StateFormat(**check_keys(values, where, required=required))


T = TypeVar("T")

MANIFEST_NAME: Final = "antiphon.json"
SCHEMA: Final = 1
_CHUNK_BYTES: Final = 1 << 20

_TOP: Final[Mapping[str, Types]] = {
    "schema": int,
    "name": str,
    "family": str,
    "files": dict,
    "mimi": dict,
}
_TOP_OPTIONAL: Final[Mapping[str, Types]] = {
    "description": str,
    "license": str,
    "examples": list,
    "voices": dict,
    "lm": (dict, type(None)),
    "generation": dict,
    "parameters": (int, type(None)),
    "backends": dict,
    "graphs": dict,
    "quantization": (dict, type(None)),
}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its path relative to the manifest, the SHA-256 of its bytes in hex, and its size."""

    path: str
    sha256: str
    bytes: int

    def check_size(self, path: Path) -> None:
        """Raise CheckpointFormatError unless ``path`` has the promised number of bytes."""
        found = path.stat().st_size
        if found != self.bytes:
            raise CheckpointFormatError(f"{path} has {found} bytes, the manifest says {self.bytes}")

    def check_hash(self, path: Path, remedy: str) -> None:
        """Compare the content of ``path`` with the promised one; reads all of it.

        Raises:
            CheckpointFormatError: it has another size.
            CheckpointDigestError: it has another SHA-256; ``remedy`` is what the message says to do.
        """
        self.check_size(path)
        found = sha256(path)
        if found != self.sha256:
            raise CheckpointDigestError(str(path), found=found, promised=self.sha256, remedy=remedy)


@dataclass(frozen=True, slots=True)
class BackendFormat:
    """What one backend reads: the roles of its files, the dtype it computes in, what else it needs.

    ``dtype`` None leaves it to the backend. ``requires`` maps Python modules to the least version ("" for
    any). ``options`` are handed to the backend as they are.
    """

    files: tuple[str, ...]
    dtype: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuantizationRecipe:
    """How the weights were made smaller, so that it can be judged and repeated.

    ``scheme`` names the method, ``bits`` and ``group_size`` (None: one scale per output channel) its
    shape, ``keep`` the glob patterns of the tensors left as they were, ``source_sha256`` the weights it
    started from, ``tool`` what did it, ``options`` whatever else the tool was given.
    """

    scheme: str
    bits: int
    group_size: int | None = None
    keep: tuple[str, ...] = ()
    source_sha256: str = ""
    tool: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an ``antiphon.json``.

    ``files`` maps roles ("lm", "mimi", "tokenizer", "lora", or a backend's own, such as
    "onnx.encoder") to entries. ``lm`` and ``mimi_config`` are the published arguments (``mimi_config``
    None: the full-size Mimi), ``codebooks`` the RVQ levels in use. ``parameters`` None: count them.
    ``examples`` are things to say to it, and ``voices`` names of its voices by their ids, for people.
    ``graphs`` are its ONNX files by what they do ("encode", "lm", "depformer", "decode").
    """

    name: str
    family: str
    files: Mapping[str, FileEntry]
    codebooks: int
    mimi_config: Mapping[str, Any] | None = None
    lm: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    backends: Mapping[str, BackendFormat] = field(default_factory=dict)
    graphs: Mapping[str, GraphFormat] = field(default_factory=dict)
    quantization: QuantizationRecipe | None = None
    description: str = ""
    license: str = ""
    examples: tuple[str, ...] = ()
    voices: Mapping[str, str] = field(default_factory=dict)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def file_entry(folder: Path, name: str) -> FileEntry:
    """The entry of a file that exists at ``name`` relative to the manifest's folder."""
    path = folder / name
    return FileEntry(name, sha256(path), path.stat().st_size)


def read_manifest(path: Path) -> Manifest:
    """Read and check an ``antiphon.json``. Raises CheckpointFormatError naming the faulty key."""
    return manifest_from_json(read_json_object(path), str(path))


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write an ``antiphon.json`` that :func:`read_manifest` reads back as an equal manifest."""
    text = json.dumps(manifest_to_json(manifest), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values, keys in the order of the documentation."""
    return {
        "schema": SCHEMA,
        "name": manifest.name,
        "description": manifest.description,
        "license": manifest.license,
        "examples": list(manifest.examples),
        "voices": dict(manifest.voices),
        "family": manifest.family,
        "files": {role: asdict(entry) for role, entry in manifest.files.items()},
        "mimi": {"codebooks": manifest.codebooks, "config": manifest.mimi_config},
        "lm": manifest.lm,
        "generation": manifest.generation,
        "parameters": manifest.parameters,
        "backends": {name: asdict(entry) for name, entry in manifest.backends.items()},
        "graphs": {name: graph_to_json(graph) for name, graph in manifest.graphs.items()},
        "quantization": None if manifest.quantization is None else asdict(manifest.quantization),
    }


def manifest_from_json(values: Any, where: str) -> Manifest:
    """The manifest that JSON values describe. Raises CheckpointFormatError naming the faulty key."""
    if isinstance(values, Mapping) and values.get("schema") not in (None, SCHEMA):
        raise CheckpointFormatError(f"{where} has schema {values['schema']}, this version reads {SCHEMA}")
    top = check_keys(values, where, required=_TOP, optional=_TOP_OPTIONAL)
    if top["family"] not in FAMILIES:
        raise CheckpointFormatError(
            f"{where}: unknown family '{top['family']}'{hint(top['family'], FAMILIES)}, "
            f"known: {', '.join(FAMILIES)}"
        )
    lm = top.get("lm")
    if (lm is None) != (top["family"] == "mimi"):
        raise CheckpointFormatError(
            f"{where}: family '{top['family']}' with{'out' if lm is None else ''} the arguments of an LM"
        )
    check_lm_keys(lm or {}, f"{where}: lm")
    generation = check_keys(
        top.get("generation", {}),
        f"{where}: generation",
        required={},
        optional=dict.fromkeys(GENERATION_KEYS, dict),
    )
    files = _each(top["files"], f"{where}: files", _file_entry)
    if "mimi" not in files:
        raise CheckpointFormatError(f"{where}: files lacks the role mimi")
    mimi = check_keys(
        top["mimi"],
        f"{where}: mimi",
        required={"codebooks": int},
        optional={"config": (dict, type(None))},
    )
    backends = _each(top.get("backends", {}), f"{where}: backends", _backend_format)
    graphs = _each(top.get("graphs", {}), f"{where}: graphs", graph_from_json)
    roles = [(f"backends.{name}", role) for name, backend in backends.items() for role in backend.files]
    roles += [(f"graphs.{name}", graph.file) for name, graph in graphs.items()]
    for asking, role in roles:
        if role not in files:
            raise CheckpointFormatError(
                f"{where}: {asking} wants the file '{role}'{hint(role, files)}, files has {', '.join(files)}"
            )
    recipe = top.get("quantization")
    return Manifest(
        name=top["name"],
        family=top["family"],
        files=files,
        codebooks=mimi["codebooks"],
        mimi_config=mimi.get("config"),
        lm=lm,
        generation=generation,
        parameters=top.get("parameters"),
        backends=backends,
        graphs=graphs,
        quantization=None if recipe is None else _recipe(recipe, f"{where}: quantization"),
        description=top.get("description", ""),
        license=top.get("license", ""),
        examples=_strings(top.get("examples", []), f"{where}: examples"),
        voices=_names(top.get("voices", {}), f"{where}: voices"),
    )


def _each(values: Mapping[str, Any], where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
    return {name: read(value, f"{where}.{name}") for name, value in values.items()}


def _file_entry(values: Any, where: str) -> FileEntry:
    entry = FileEntry(**check_keys(values, where, required={"path": str, "sha256": str, "bytes": int}))
    if len(entry.sha256) != 64 or set(entry.sha256) - set("0123456789abcdef"):
        raise CheckpointFormatError(f"{where}.sha256 is '{entry.sha256}', expected 64 lower-case hex digits")
    if entry.bytes < 0:
        raise CheckpointFormatError(f"{where}.bytes is {entry.bytes}")
    if Path(entry.path).is_absolute():
        raise CheckpointFormatError(f"{where}.path is '{entry.path}', expected one relative to the manifest")
    return entry


def _strings(values: list[Any], where: str) -> tuple[str, ...]:
    for value in values:
        check_type(value, str, where)
    return tuple(values)


def _names(values: dict[str, Any], where: str) -> dict[str, str]:
    _strings(list(values.values()), where)
    return values


def _backend_format(values: Any, where: str) -> BackendFormat:
    optional: dict[str, Types] = {"dtype": (str, type(None)), "requires": dict, "options": dict}
    read = check_keys(values, where, required={"files": list}, optional=optional)
    _strings(list(read.get("requires", {}).values()), f"{where}.requires")
    return BackendFormat(**read | {"files": _strings(read["files"], f"{where}.files")})


def _recipe(values: Any, where: str) -> QuantizationRecipe:
    optional: dict[str, Types] = {
        "group_size": (int, type(None)),
        "keep": list,
        "source_sha256": str,
        "tool": str,
        "options": dict,
    }
    read = check_keys(values, where, required={"scheme": str, "bits": int}, optional=optional)
    return QuantizationRecipe(**read | {"keep": _strings(read.get("keep", []), f"{where}.keep")})
