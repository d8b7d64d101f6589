"""Servers that tests start refuse no caller because the machine is slow: their command is `calm.SERVE`."""

from __future__ import annotations

import re

from tests.repo.tracked import ROOT

HURRIED = re.compile(r'ANTIPHON, *"serve"|main\(\)", *"serve"|await antiphon\("serve"')
ROOMS = ("tests", "lab/tests")
OWN = {"tests/support/calm.py", "tests/repo/test_calm.py"}


def test_every_server_of_a_test_is_calm() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert len(sources) > 300
    hurried = [name for name, text in sources.items() if name not in OWN and HURRIED.search(text)]
    assert hurried == [], "begin the command with SERVE of tests/support/calm.py"
