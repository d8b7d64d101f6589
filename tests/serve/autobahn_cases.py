"""The cases of Autobahn|Testsuite (crossbario/autobahn-testsuite), read from the installed package.

The package is Python 2: its fuzzing client does not run here, but its cases are plain descriptions of what a
peer sends and expects. Each file is executed with the few things of Python 2 that it uses. Text and binary
data are ``str`` there, one character an octet, and stay so: latin-1 on the wire.
"""

from __future__ import annotations

import binascii
import builtins
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGE = "autobahntestsuite"
STATE_OPEN, STATE_CLOSING, STATE_CLOSED = 3, 2, 0

_PRINT = re.compile(r"^(\s*)print\b.*$", re.MULTILINE)
_IDENTIFIED = re.compile(r"Case(\d+(?:_\d+)+)")


class Validator:
    """The interface of Autobahn's UTF-8 validator that the cases use."""

    def reset(self) -> None: ...

    def validate(self, octets: str) -> tuple[bool, bool, int, int]:
        """Whether they are valid and end on a whole character: only both together are asked for."""
        try:
            octets.encode("latin-1").decode()
        except UnicodeDecodeError:
            return False, False, 0, 0
        return True, True, len(octets), len(octets)


class CaseFiles:
    """Executes the package's files, each once."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None, f"pip install --no-deps {PACKAGE} (make test does)"
        assert spec.origin is not None
        self.folder = Path(spec.origin).parent / "case"
        self._loaded: dict[str, ModuleType] = {}
        protocol = SimpleNamespace(
            STATE_OPEN=STATE_OPEN, STATE_CLOSED=STATE_CLOSED, CLOSE_STATUS_CODE_NORMAL=1000
        )
        self._stubs: Mapping[str, Any] = {
            "autobahn.websocket.protocol": SimpleNamespace(WebSocketProtocol=protocol),
            "autobahn.websocket.utf8validator": SimpleNamespace(Utf8Validator=Validator),
            "binascii": SimpleNamespace(b2a_hex=lambda text: binascii.b2a_hex(text.encode("latin-1"))),
        }

    def load(self, name: str) -> ModuleType:
        """The module of one file."""
        if name not in self._loaded:
            file = self.folder / f"{name}.py"
            source = _PRINT.sub(r"\1pass", file.read_text(encoding="latin-1"))  # its strings are octets
            module = self._loaded[name] = ModuleType(name)
            module.__dict__["__builtins__"] = vars(builtins) | {
                "__import__": self._import,
                "type": _make_class,
                "xrange": range,
            }
            exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
        return self._loaded[name]

    def _import(self, name: str, *_: Any) -> Any:
        if name in self._stubs:
            return self._stubs[name]
        return self.load(name) if name.startswith("case") else importlib.import_module(name)


def _make_class(name: str, bases: Sequence[type], namespace: dict[str, Any]) -> type:
    """``type`` for a base class of Python 2's old kind, which ``object`` may come before."""
    return type(name, tuple(base for base in bases if base is not object), namespace)


def load_cases(groups: Sequence[int]) -> dict[str, Any]:
    """The case classes of some groups by identifier, such as "6.4.1", in the order of their numbers."""
    files = CaseFiles()
    base: Any = files.load("case").Case
    base.compare = lambda _case, found, expected: found == expected
    found: dict[str, Any] = {}
    for group in groups:
        for file in files.folder.glob(f"case{group}_*.py"):
            if file.stem == "case9_9_1":
                continue  # it has no end, and upstream does not run it either
            for value in vars(files.load(file.stem)).values():
                for each in value if isinstance(value, list) else [value]:
                    match = _IDENTIFIED.fullmatch(getattr(each, "__name__", ""))
                    if match is not None:
                        found[match[1].replace("_", ".")] = each
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
