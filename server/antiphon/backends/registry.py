"""The table of backends: a name, the factory that makes it, and what it needs installed.

Nothing is imported before it is asked for, so listing the backends costs nothing. A factory is called as
``factory(checkpoint, slots=..., device=..., **options)`` and returns a :class:`Backend`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from antiphon.backends.base import Backend
from antiphon.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

ModuleFinder = Callable[[str], object | None]


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One line of the table.

    ``factory`` is "module:function". ``modules`` are the Python modules it needs, which the pip extra
    ``extra`` installs. ``options`` maps the factory's own options to their types.
    """

    factory: str
    extra: str | None = None
    modules: tuple[str, ...] = ()
    options: Mapping[str, type] = field(default_factory=dict)


BACKENDS: Mapping[str, BackendEntry] = MappingProxyType(
    {
        "reference": BackendEntry(
            "antiphon.backends.reference.backend:make",
            extra="reference",
            modules=("torch", "moshi"),
            options={"dtype": str, "threads": int},
        ),
        "torch": BackendEntry(
            "antiphon.backends.torch.backend:make",
            extra="torch",
            modules=("torch",),
            options={"dtype": str, "threads": int, "weights": str, "kv": str},
        ),
        "null": BackendEntry("antiphon.backends.null:make", options={"step_ms": float, "hold_gil": bool}),
    }
)

AUTO = "auto"
AUTO_ORDER = ("torch", "reference")
"""The backends ``auto`` may choose, best first. The null backend is only ever chosen by name."""


def make_backend(
    name: str,
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Backend:
    """Make the backend called ``name`` (or ``auto``) with ``slots`` rows for a checkpoint.

    Raises:
        ConfigError: no such backend, or no such option of it.
        MissingExtraError: something it needs is not installed.
        BackendError: it cannot run this checkpoint.
    """
    name = resolve_auto(checkpoint) if name == AUTO else name
    entry = backend_entry(name)
    given = dict(options or {})
    check_options(name, given)
    missing = _first_missing(entry, find_spec)
    if missing is not None:
        raise MissingExtraError(f"the {name} backend", extra=entry.extra or "", module=missing)
    module, _, function = entry.factory.partition(":")
    factory = cast("Callable[..., Backend]", getattr(import_module(module), function))
    return factory(checkpoint, slots=slots, device=device, **given)


def resolve_auto(checkpoint: Checkpoint, *, find: ModuleFinder = find_spec) -> str:
    """Name the best installed backend for a checkpoint. Raises MissingExtraError when there is none."""
    del checkpoint  # what torch cannot run, no backend of AUTO_ORDER can
    missing = {name: _first_missing(BACKENDS[name], find) for name in AUTO_ORDER}
    for name, module in missing.items():
        if module is None:
            return name
    name, module = next(iter(missing.items()))
    raise MissingExtraError(f"the {name} backend", extra=BACKENDS[name].extra or "", module=module or "")


def backend_entry(name: str) -> BackendEntry:
    """Look a backend up. Raises ConfigError that names the nearest one."""
    if name not in BACKENDS:
        raise ConfigError(f"no backend is called '{name}'; {_nearest(name, (AUTO, *BACKENDS))}")
    return BACKENDS[name]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check a backend's options by name and type. Raises ConfigError that names the nearest one."""
    known = backend_entry(name).options
    for key, value in options.items():
        if key not in known:
            raise ConfigError(f"backend {name} has no option '{key}'; {_nearest(key, known)}")
        wanted = known[key]
        accepted = (int, float) if wanted is float else wanted
        if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigError(f"option {key} of backend {name} is {value!r}, but must be {wanted.__name__}")


def _nearest(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(names)}"


def _first_missing(entry: BackendEntry, find: ModuleFinder) -> str | None:
    return next((module for module in entry.modules if find(module) is None), None)
