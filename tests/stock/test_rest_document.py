"""What docs/rest.md shows is what the stock clients do, and what the routes read and refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.protocol import speech_request, transcription_request
from antiphon.protocol.wire_errors import WIRE_FORMS
from antiphon.serve.routes import openai_errors
from tests.stock.environments import REQUIREMENTS
from tests.stock.node_environments import PACKAGES
from tests.stock.test_rest_clients import REFUSALS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "rest.md").read_text()
SCRIPTS = {"python": "openai_rest.py", "javascript": "openai_rest.mjs"}
VALUES = {
    "base_url=base_url": 'base_url="http://127.0.0.1:8998/v1"',
    "{ baseURL, apiKey": '{ baseURL: "http://127.0.0.1:8998/v1", apiKey',
}
"""What the scripts are given, as the document writes it."""

OVER_SOCKETS = ("session_timeout", "session_replaced", "session_moved", "session_not_resumable")
"""Errors that no request over HTTP ends with."""


@pytest.mark.parametrize("language", SCRIPTS)
def test_the_lines_of_the_how_to_are_those_that_the_tests_run(language: str) -> None:
    script = (ROOT / "tests" / "stock" / SCRIPTS[language]).read_text()
    for given, shown in VALUES.items():
        script = script.replace(given, shown)
    (block,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    lines = {line.strip() for line in script.splitlines()}
    assert [line for line in block.splitlines() if line.strip() and line.strip() not in lines] == []


def test_the_versions_are_those_that_the_tests_install() -> None:
    assert f"`openai` {REQUIREMENTS['openai'][0].partition('==')[2]} (Python)" in TEXT
    assert f"`openai` {PACKAGES['openai'][0].partition('@')[2]} (npm)" in TEXT


def test_every_field_format_and_path_is_in_a_table() -> None:
    names = {*transcription_request.IGNORED, *transcription_request.FORMATS, *speech_request.CODECS}
    names |= {"input", "voice", "speed", "stream_format", "instructions", "file", "language", "stream"}
    assert not [name for name in names if f"`{name}" not in TEXT]
    assert not [path for path in (speech_request.PATH, transcription_request.PATH) if f"{path}`" not in TEXT]


def test_every_code_is_in_the_table() -> None:
    codes = {form.code for form in WIRE_FORMS.values()} - {*OVER_SOCKETS}
    codes |= {*re.findall(r'\d{3}: "(\w+)"', Path(openai_errors.__file__).read_text())}
    codes |= {*re.findall(r'code="(\w+)"', (ROOT / "server/antiphon/serve/access/callers.py").read_text())}
    assert len(codes) > 10
    assert not [code for code in codes if f"`{code}`" not in TEXT]


def test_refusals_are_quoted_as_they_are() -> None:
    quoted = re.findall(r"`(\w+Error \d{3} .+?)` \|", TEXT)
    assert len(quoted) >= 4
    assert set(quoted) <= set(REFUSALS.values())
