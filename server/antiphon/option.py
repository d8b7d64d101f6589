"""The table of options: each a field of a frozen dataclass with its default, range, unit and help.

A field is an :func:`option`, which a file and the command line may set, or a :func:`constant`, which only
``--tune NAME=VALUE`` changes, for experiments. Both are read from their classes, and each is checked by one
:class:`~antiphon.values.ValueRule`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from antiphon.errors import ConfigError, nearest
from antiphon.values import ValueRule, plain, read_number

T = TypeVar("T")

AUTO: Final = "auto"
"""The word in a file or on the command line for a number that the server chooses (None in the dataclass)."""

UNITS: Final[Mapping[str, str]] = {
    "s": "SECONDS",
    "ms": "MS",
    "bytes": "BYTES",
    "days": "DAYS",
    "frames": "FRAMES",
    "fraction": "FRACTION",
    "share": "FRACTION",
    "port": "PORT",
}
"""The unit of a number, by the ending of its option's name; a number without such an ending is a count."""


RENAMED: Final = {"agent_port": "free_rows_port", "--agent-port": "--free-rows-port"}
"""Retired names of options, in a file and on the command line."""


class Group(StrEnum):
    """The groups of options in the help, by title, in order."""

    MODELS = "models"
    NETWORK = "network"
    ACCESS = "access and limits"
    LIFE = "life of a call"
    PROCESSES = "processes"
    LOGS = "log and traces"
    RECORDINGS = "recordings"
    WORKERS = "several workers"
    TRIAL = "a model on trial"
    AGENT = "a voice agent"
    TESTS = "tests"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are ConfigErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise a ConfigError with this message."""
        raise ConfigError(message)


def option(default: Any, help_text: str, **metadata: Any) -> Any:
    """A dataclass field that is an option.

    ``metadata`` may contain ``choices``, ``minimum``, ``maximum``; ``metavar``, the meaning of a value;
    ``group``, its :class:`Group` in the help; ``is_basic``, whether the short help shows it.
    """
    return field(default=default, metadata={"help": help_text, **metadata})


def constant(default: Any, reason: str, **metadata: Any) -> Any:
    """A dataclass field that is a constant, with the reason for its value; ``metadata`` may contain
    ``minimum`` and ``maximum``.
    """
    return field(default=default, metadata={"help": reason, "is_constant": True, **metadata})


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One row of the table of options. ``path`` leads to the field; ``kind`` is the type of its value, or of
    each value of a list.
    """

    path: tuple[str, ...]
    kind: type
    default: Any
    help: str
    rule: ValueRule
    unit: str
    is_list: bool = False
    is_constant: bool = False
    is_basic: bool = False
    group: Group = Group.TESTS

    @property
    def name(self) -> str:
        """The option's name, unique over the whole configuration."""
        return self.path[-1]

    @property
    def key(self) -> str:
        """The option's name in a TOML file, such as ``limits.idle_timeout_s``."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """The option's name on the command line, such as ``--idle-timeout-s``."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_automatic(self) -> bool:
        """Whether the server may choose the value: ``auto``."""
        return AUTO in self.rule.also

    @property
    def shown_default(self) -> str:
        """The default as in a file, without quotes; "" if there is none."""
        if self.default is None or self.default == ():
            return AUTO if self.is_automatic else ""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, float):
            return plain(self.default)
        return ", ".join(self.default) if self.is_list else str(self.default)

    def check(self, value: Any) -> Any:
        """Check ``value`` and return it as the option's type: an int is accepted as a float, any other type
        must be exact.

        Raises:
            ConfigError: wrong type, not finite, not one of the choices, or out of range.
        """
        if self.is_list:
            items = [value] if isinstance(value, str) else value
            if not isinstance(items, list | tuple):
                raise ConfigError(f"{self.key} is {value!r}, a list of strings is needed")
            return tuple(self._checked(item) for item in items)
        return None if value == AUTO and self.is_automatic else self._checked(value)

    def _checked(self, value: Any) -> Any:
        if fault := self.rule.fault(value):
            raise ConfigError(f"{self.key} {fault.words}")
        return self.rule.converted(value)

    def parse(self, text: str) -> Any:
        """Parse ``text`` of a command line into the option's type. Raises ConfigError as :meth:`check`."""
        value: Any = text
        if self.kind is bool:
            value = {"true": True, "false": False}.get(text, text)
        elif self.kind in (int, float):
            number = read_number(text, is_whole=self.kind is int)
            value = text if number is None else number
        return self.check(value)


def table_of(cls: type, prefix: tuple[str, ...] = ()) -> dict[str, OptionInfo]:
    """All options and constants of a configuration dataclass, by name, in order."""
    return {info.name: info for info in _rows(cls, prefix)}


def options(cls: type, prefix: tuple[str, ...] = ()) -> dict[str, OptionInfo]:
    """The options of a configuration dataclass, by name, in order."""
    return {name: info for name, info in table_of(cls, prefix).items() if not info.is_constant}


def constants(cls: type) -> dict[str, OptionInfo]:
    """The constants of a configuration dataclass, by name, in order."""
    return {name: info for name, info in table_of(cls).items() if info.is_constant}


_hints = functools.cache(typing.get_type_hints)


def _rows(cls: type, prefix: tuple[str, ...]) -> Iterator[OptionInfo]:
    hints = _hints(cls)
    for item in dataclasses.fields(cls):
        hint, metadata = hints[item.name], item.metadata
        if metadata.get("is_entries"):
            continue  # a list of tables: for files only
        if dataclasses.is_dataclass(hint):
            yield from _rows(typing.cast("type", hint), (*prefix, item.name))
            continue
        kind, is_optional = _unwrap(hint)
        is_list = kind == tuple[str, ...]
        kind = str if is_list else kind
        is_number = kind in (int, float)
        choices = tuple(metadata.get("choices", ()))
        yield OptionInfo(
            path=(*prefix, item.name),
            kind=kind,
            default=item.default,
            help=metadata.get("help", ""),
            rule=ValueRule(
                (str, type(None)) if is_optional and not is_number else kind,
                metadata.get("minimum"),
                metadata.get("maximum"),
                choices,
                {AUTO: ""} if is_optional and is_number else {},
            ),
            unit=metadata.get("metavar") or (_unit_of(item.name) if is_number else ""),
            is_list=is_list,
            is_constant=metadata.get("is_constant", False),
            is_basic=metadata.get("is_basic", False),
            group=metadata.get("group", Group.TESTS),
        )


def _unit_of(name: str) -> str:
    """The unit of a number: ``max_bytes_per_s`` has BYTES/S."""
    amount, is_rate, _ = name.rpartition("_per_s")
    unit = UNITS.get((amount if is_rate else name).rpartition("_")[2], "N")
    return f"{unit}/S" if is_rate else unit


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """``int | None`` to (int, True); ``int`` to (int, False)."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        return inner[0], True
    return hint, False


def apply(config: T, table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> T:
    """Return ``config`` with the values of a nested table (as parsed from TOML).

    Raises:
        ConfigError: an unknown key, a constant's name, or an invalid value.
    """
    return _apply(config, table, prefix, is_tuning=False)


def tune(config: T, values: Mapping[str, str]) -> T:
    """Return ``config`` with some constants changed for an experiment, by name.

    Raises:
        ConfigError: no constant has that name, or the value is invalid.
    """
    known, nested = table_of(type(config)), dict[str, Any]()
    for name, text in values.items():
        info = known.get(name)
        if info is None:
            raise ConfigError(
                f"--tune {name}={text}: no such constant; {nearest(name, constants(type(config)))}"
            )
        if not info.is_constant:
            raise ConfigError(f"--tune {name}={text}: {name} is an option; write {info.flag} {text}")
        target = nested
        for part in info.path[:-1]:
            target = target.setdefault(part, {})
        target[name] = info.parse(text)
    return _apply(config, nested, (), is_tuning=True)


def tuned(config: Any) -> dict[str, Any]:
    """The constants of ``config`` that an experiment has changed, by name."""
    found = {}
    for name, info in constants(type(config)).items():
        value = functools.reduce(getattr, info.path, config)
        if value != info.default:
            found[name] = value
    return found


def refusal_of(info: OptionInfo, written: str) -> ConfigError:
    """The error for a constant that is ``written`` in a file or on the command line like an option."""
    return ConfigError(
        f"{written} is a constant, {info.shown_default}; to try another value: --tune {info.name}=VALUE"
    )


def right_name(name: str, known: Iterable[str]) -> str:
    """Advice for an unknown option name."""
    return f"it is called {RENAMED[name]} now" if name in RENAMED else nearest(name, known)


def _apply(config: T, table: Mapping[str, Any], prefix: tuple[str, ...], *, is_tuning: bool) -> T:
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    hints = typing.get_type_hints(type(config))
    known = {key: info for key, info in table_of(type(config), prefix).items() if info.path[:-1] == prefix}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        dotted = ".".join((*prefix, key))
        if key not in hints:
            names = [name for name in hints if name not in known or not known[name].is_constant]
            raise ConfigError(f"unknown key '{dotted}'; {right_name(key, names)}")
        if key in known:
            if known[key].is_constant and not is_tuning:
                raise refusal_of(known[key], dotted)
            changes[key] = value if is_tuning else known[key].check(value)
        elif isinstance(value, Mapping):
            changes[key] = _apply(getattr(config, key), value, (*prefix, key), is_tuning=is_tuning)
        else:
            raise ConfigError(f"{dotted} = {value!r} is not a table; write [{dotted}]")
    return typing.cast("T", dataclasses.replace(config, **changes))
