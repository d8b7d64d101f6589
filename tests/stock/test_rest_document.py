"""docs/rest.md matches the scripts of the stock clients and the routes."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.protocol import speech_request, transcription_request
from antiphon.protocol.wire_errors import WIRE_FORMS
from antiphon.serve.routes import openai_errors
from tests.stock.environments import NODE_PACKAGES, REQUIREMENTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "rest.md").read_text()

OVER_SOCKETS = (
    "session_timeout",
    "session_replaced",
    "session_moved",
    "session_not_resumable",
    "beta_api_shape_disabled",
    "text_model_failed",
)
"""Errors that no request over HTTP ends with."""


def test_the_versions_are_those_that_the_tests_install() -> None:
    python, node = REQUIREMENTS["openai"][0].partition("==")[2], NODE_PACKAGES[0].partition("@")[2]
    for page in ("rest.md", "realtime.md"):
        text = " ".join((ROOT / "docs" / page).read_text().split())
        assert f"`openai` {python} (Python) and {node} (npm)" in text


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
