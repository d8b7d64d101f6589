"""Options: fields of a frozen dataclass, each with its default, its bounds and its help.

Read out of the classes that hold them, checked one by one, and filled in from the tables of a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from antiphon.errors import ConfigError, nearest

T = TypeVar("T")

AUTO = "auto"
"""What a file or the command line says for a number that the server may choose (None in the dataclass)."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ConfigErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError(message)


def option(default: Any, help_text: str, **metadata: Any) -> Any:
    """A dataclass field with a help text; ``metadata`` may hold ``choices``, ``minimum``,
    ``maximum``, ``metavar``."""
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One leaf of the configuration: the path to it, its type, default and help."""

    path: tuple[str, ...]
    hint: Any
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The option's own name, unique over the whole configuration."""
        return self.path[-1]

    @property
    def key(self) -> str:
        """The name as a TOML file has it: ``limits.idle_timeout_s``."""
        return ".".join(self.path)


def options(cls: type, prefix: tuple[str, ...] = ()) -> dict[str, OptionInfo]:
    """All leaves of a configuration dataclass, by name, in order."""
    hints = typing.get_type_hints(cls)
    found: dict[str, OptionInfo] = {}
    for item in dataclasses.fields(cls):
        if item.metadata.get("is_entries"):
            continue  # a list of tables, not a leaf: a file's alone
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            found.update(options(typing.cast("type", hint), (*prefix, item.name)))
            continue
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        info = OptionInfo(
            path=(*prefix, item.name),
            hint=hint,
            default=default,
            help=item.metadata.get("help", ""),
            choices=tuple(item.metadata.get("choices", ())),
            minimum=item.metadata.get("minimum"),
            maximum=item.metadata.get("maximum"),
            metavar=item.metadata.get("metavar"),
        )
        found[item.name] = info
    return found


def check_value(info: OptionInfo, value: Any) -> Any:
    """``value`` as the option's type: int to float is fine, anything else must fit exactly.

    Raises:
        ConfigError: wrong type, not finite, not one of the choices, below the minimum or above the maximum.
    """
    wanted, is_optional = _unwrap(info.hint)
    if is_optional and value == AUTO and wanted is not str:
        return None
    if wanted == tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            for item in items:
                if info.choices and item not in info.choices:
                    raise ConfigError(f"{info.key} = {item!r}: {nearest(item, info.choices)}")
            return tuple(items)
        raise _wrong(info, value, "a list of strings")
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        auto = f" or '{AUTO}'" if is_optional and wanted is not str else ""
        raise _wrong(info, value, _TYPE_NAMES[wanted] + auto)
    if wanted is float and not math.isfinite(value):
        raise _wrong(info, value, "a finite number")
    if info.choices and value not in info.choices:
        raise ConfigError(f"{info.key} = {value!r}: {nearest(value, info.choices)}")
    if info.minimum is not None and not value >= info.minimum:
        raise ConfigError(f"{info.key} = {value!r} is below {info.minimum:g}, the least it can be")
    if info.maximum is not None and not value <= info.maximum:
        raise ConfigError(f"{info.key} = {value!r} is above {info.maximum:g}, the most it can be")
    return value


_TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """``int | None`` to (int, True); ``int`` to (int, False)."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        return inner[0], True
    return hint, False


def _wrong(info: OptionInfo, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{info.key} = {value!r} is not {wanted}")


def apply(config: T, table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> T:
    """``config`` with the values of a nested table (as TOML parses it) in place.

    Raises:
        ConfigError: an unknown key, or a value that does not fit.
    """
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    hints = typing.get_type_hints(type(config))
    known = {key: info for key, info in options(type(config), prefix).items() if info.path[:-1] == prefix}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        dotted = ".".join((*prefix, key))
        if key not in hints:
            raise ConfigError(f"unknown key '{dotted}'; {nearest(key, hints)}")
        if key in known:
            changes[key] = check_value(known[key], value)
        elif isinstance(value, Mapping):
            changes[key] = apply(getattr(config, key), value, (*prefix, key))
        else:
            raise ConfigError(f"{dotted} = {value!r} is not a table; write [{dotted}]")
    return typing.cast("T", dataclasses.replace(config, **changes))
