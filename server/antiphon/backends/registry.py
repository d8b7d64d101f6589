"""The table of backends: the name of each, its factory, and the packages it needs.

Choosing a backend imports it; listing the backends imports none. A factory is called as ``factory(checkpoint,
slots=..., device=..., **options)`` and returns a :class:`Backend`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon.backends.base import Backend
from antiphon.backends.host import check_slots
from antiphon.backends.machine import Machine, detect_machine
from antiphon.errors import ConfigError, MissingExtraError, UnsupportedError, nearest
from antiphon.install import antiphon_command, install_command
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon.values import ValueRule, read_number

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

ModuleFinder = Callable[[str], object | None]


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One backend in the table :data:`BACKENDS`.

    ``factory`` is "module:function". ``modules`` are the Python modules it needs, which the pip extra
    ``extra`` installs. ``gpu`` is its default device on a machine with a GPU. ``options`` maps the factory's
    own options to their types. ``kinds`` are the pipelines it runs; ``family``, if given, is the only family
    it runs; a model of another family needs the backend's name in its ``also``. ``needs_graphs``: it runs
    checkpoints with ONNX graphs. ``is_automatic``: ``auto`` may choose it.
    """

    factory: str
    extra: str | None = None
    modules: tuple[str, ...] = ()
    gpu: str | None = None
    options: Mapping[str, type] = field(default_factory=dict)
    kinds: tuple[PipelineKind, ...] = tuple(PipelineKind)
    family: str | None = None
    also: str | None = None
    needs_graphs: bool = False
    is_automatic: bool = True

    def runs(self, spec: ModelSpec) -> bool:
        """Whether the backend runs a model of this spec."""
        apart = {entry.family for entry in BACKENDS.values()}
        wanted = spec.family if spec.family in apart else None
        return spec.kind in self.kinds and wanted in (self.family, self.also or self.family)


FIRST_GPU: Final = "cuda:0"
"""The full name of "cuda"."""

BACKENDS: Mapping[str, BackendEntry] = MappingProxyType(
    {
        "torch": BackendEntry(
            "antiphon.backends.torch.loading:make",
            extra="torch",
            modules=("torch",),
            gpu=FIRST_GPU,
            options={
                "dtype": str,
                "threads": int,
                "weights": str,
                "activations": str,
                "kv": str,
                "attention": str,
                "guidance": float,
                "overcommit": float,
            },
        ),
        "mlx": BackendEntry(
            "antiphon.backends.mlx.loading:make",
            extra="mlx",
            modules=("mlx",),
            gpu="gpu",
            options={"dtype": str, "kv": str, "compile": str},
        ),
        "onnx": BackendEntry(
            "antiphon.backends.onnx.loading:make",
            modules=("onnxruntime",),
            options={"threads": int, "spin": bool, "chunk_tokens": int},
            also="pocket",
            needs_graphs=True,
        ),
        "pocket": BackendEntry(
            "antiphon.backends.pocket.factory:make",
            extra="pocket",
            modules=("pocket_tts",),
            options={"threads": int, "weights": str, "chunk_tokens": int, "sampler_steps": int},
            kinds=(PipelineKind.TTS,),
            family="pocket",
        ),
        "reference": BackendEntry(
            "antiphon_quantize.reference.backend:make",
            extra="reference",
            modules=("torch", "moshi"),
            gpu=FIRST_GPU,
            options={"dtype": str, "threads": int},
            kinds=(PipelineKind.CODEC, PipelineKind.DUPLEX),
        ),
        "null": BackendEntry(
            "antiphon.backends.null:make",
            options={"step_ms": float, "hold_gil": bool},
            is_automatic=False,
        ),
    }
)

AUTO = "auto"
"""The name that selects the best installed backend among those that may be chosen automatically."""


def make_backend(
    name: str,
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Backend:
    """Make the backend called ``name`` (or ``auto``) with ``slots`` rows for a checkpoint.

    Options of the checkpoint's manifest for that backend apply, unless ``options`` overrides them.

    Raises:
        ConfigError: the backend, or an option of it, does not exist. MissingExtraError: a package it needs is
        not installed. UnsupportedError: it cannot run this checkpoint, or cannot with the installed packages.
    """
    check_slots(slots)
    name = resolve_auto(checkpoint) if name == AUTO else name
    entry = backend_entry(name)
    wanted = checkpoint.backends.get(name)
    given = dict(options or {})
    if wanted is not None:  # its dtype is an option if the backend has a choice
        dtype = {"dtype": wanted.dtype} if wanted.dtype and "dtype" in entry.options else {}
        given = {**dtype, **wanted.options, **given}
    check_options(name, given)
    missing = _first_missing(entry, find_spec)
    if missing is not None:
        raise MissingExtraError(f"the {name} backend", extra=entry.extra or "", module=missing)
    _check_kind(name, entry, checkpoint.spec)
    if entry.needs_graphs and not checkpoint.graphs:
        raise UnsupportedError(
            f"{checkpoint.spec.name} has no ONNX graphs; make them with: {graphs_command(checkpoint)} "
            f"(which needs: {install_command('quantize')})"
        )
    if wanted is not None:
        check_requires(name, wanted.requires)
    module, _, function = entry.factory.partition(":")
    factory = cast("Callable[..., Backend]", getattr(import_module(module), function))
    return factory(checkpoint, slots=slots, device=FIRST_GPU if device == "cuda" else device, **given)


def device_of(backend: str, device: str | None, machine: Machine | None = None) -> str:
    """The full name of the device that a backend runs on, as its ``info`` reports it.

    "cuda" is the first GPU, None the backend's default device. If ``machine`` is None, this machine is used.
    """
    if device is not None:
        return FIRST_GPU if device == "cuda" else device
    gpu = backend_entry(backend).gpu
    found = Machine() if gpu is None else machine or detect_machine()
    is_there = found.has_cuda or (gpu != FIRST_GPU and found.is_apple_silicon)
    return gpu if gpu is not None and is_there else "cpu"


def auto_order(checkpoint: Checkpoint, machine: Machine) -> list[str]:
    """The backends for a checkpoint on a machine, best first.

    The order is torch on CUDA, MLX on Apple silicon, else ONNX if the checkpoint has graphs, else torch on a
    CPU. A checkpoint that was quantised for one backend, and whose manifest names no other, runs only on that
    backend. A checkpoint without its published weights runs only from its graphs.
    """
    made_for = list(checkpoint.backends)
    order = made_for if len(made_for) == 1 and not checkpoint.graphs else []
    order += ["torch"] if machine.has_cuda else []
    order += ["mlx"] if machine.is_apple_silicon else []
    order += [name for name, entry in BACKENDS.items() if entry.needs_graphs and checkpoint.graphs]
    order += ["torch", "pocket", "reference"]
    if checkpoint.absent:
        order = [name for name in order if BACKENDS[name].needs_graphs]
    return [name for name in dict.fromkeys(order) if BACKENDS[name].runs(checkpoint.spec)]


def resolve_auto(
    checkpoint: Checkpoint, *, find: ModuleFinder = find_spec, machine: Machine | None = None
) -> str:
    """Name the best installed backend that runs a checkpoint's pipeline; if ``machine`` is None, this machine
    is used.

    Raises:
        UnsupportedError: no backend runs it, or no installed backend does and exporting graphs would help.
        MissingExtraError: no installed backend runs it.
    """
    spec = checkpoint.spec
    able = auto_order(checkpoint, detect_machine() if machine is None else machine)
    if not able:
        raise UnsupportedError(f"no backend runs {spec.kind} models, and {spec.name} is one")
    missing = {name: _first_missing(BACKENDS[name], find) for name in able}
    for name, module in missing.items():
        if module is None:
            return name
    if not checkpoint.graphs and any(it.needs_graphs and it.runs(spec) for it in BACKENDS.values()):
        extra = BACKENDS[able[0]].extra or ""
        raise UnsupportedError(
            f"nothing installed runs {spec.name}: it has no ONNX graphs, and the {able[0]} backend lacks the "
            f"Python module '{missing[able[0]]}'. To make the graphs: {install_command('quantize')} and "
            f"{graphs_command(checkpoint)}. To run it as it is: {install_command(extra)}"
        )
    name, module = next(iter(missing.items()))
    raise MissingExtraError(f"the {name} backend", extra=BACKENDS[name].extra or "", module=module or "")


def graphs_command(checkpoint: Checkpoint) -> str:
    """The command that exports the ONNX graphs of a checkpoint as a new checkpoint."""
    out = "./" + re.sub(r"[^\w.-]+", "-", f"{checkpoint.spec.name}-onnx")
    model = shlex.quote(checkpoint.ref)
    return antiphon_command(f"quantize --target onnx --recipe float32 --model {model} {out}")


def backend_entry(name: str) -> BackendEntry:
    """Look up the backend called ``name`` in the table. Raises ConfigError with the nearest name."""
    if name not in BACKENDS:
        raise ConfigError(f"no backend is called '{name}'; {nearest(name, (AUTO, *BACKENDS))}")
    return BACKENDS[name]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check a backend's options by name and type. Raises ConfigError with the nearest name."""
    known = backend_entry(name).options
    for key, value in options.items():
        if key not in known:
            raise ConfigError(f"backend {name} has no option '{key}'; {nearest(key, known)}")
        if fault := ValueRule(known[key]).fault(value):
            raise ConfigError(f"option {key} of backend {name} {fault.words}")


def options_of(backend: str, given: Sequence[str]) -> dict[str, Any]:
    """A backend's options among the given ones; ``onnx.spin=false`` applies only to the onnx backend.

    An option with a backend's name overrides the same option without one, and is always checked.

    Raises:
        ConfigError: an option is not NAME=VALUE, or names an unknown backend or option.
    """
    found: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name, value in map(parse_backend_option, given):
        owner, _, option = name.rpartition(".")
        if owner:
            check_options(owner, {option: value})
        if owner in ("", backend):
            (named if owner else found)[option] = value
    return found | named


def parse_backend_option(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``, where the value is a number, true, false, or another word.

    Raises:
        ConfigError: no '='.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"backend_option = {text!r} is not NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    whole, decimal = (read_number(value, is_whole=is_whole) for is_whole in (True, False))
    return name, next((number for number in (whole, decimal) if number is not None), value)


def _check_kind(name: str, entry: BackendEntry, spec: ModelSpec) -> None:
    if entry.runs(spec):
        return
    able = [other for other, it in BACKENDS.items() if it.is_automatic and it.runs(spec)]
    others = f"the backend for it is {' or '.join(able)}" if able else "no backend does"
    kinds = " and ".join(entry.kinds)
    kind = f"{spec.kind} of the family {spec.family}" if spec.kind in entry.kinds else spec.kind
    raise UnsupportedError(f"the {name} backend runs {kinds} models, {spec.name} is {kind}; {others}")


def _first_missing(entry: BackendEntry, find: ModuleFinder) -> str | None:
    return next((module for module in entry.modules if find(module) is None), None)


def check_requires(
    backend: str, requires: Mapping[str, str], find_version: Callable[[str], str] = version
) -> None:
    """Check the modules that a manifest requires for a backend, by minimum version ("" for any).

    Raises:
        UnsupportedError: a module is missing or too old; the message has both versions.
    """
    for module, least in requires.items():
        try:
            found = find_version(module)
        except PackageNotFoundError:
            wanted = f"{module} {least}".rstrip()
            raise UnsupportedError(
                f"this model on the {backend} backend needs {wanted}, which is not installed"
            ) from None
        if _release(found) < _release(least):
            raise UnsupportedError(
                f"this model on the {backend} backend needs {module} {least}, but {found} is installed"
            )


def _release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) of "2.13.0rc1+cpu"."""
    numbers = re.match(r"[0-9.]*", text)
    return tuple(int(number) for number in numbers[0].split(".") if number) if numbers else ()
