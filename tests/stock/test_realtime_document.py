"""What docs/realtime.md shows is what the scripts of the stock clients do, and what the protocol has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.protocol import realtime, translation

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "realtime.md").read_text()
SCRIPTS = (
    "openai_realtime.py",
    "pipecat_realtime.py",
    "livekit_realtime.py",
    "node_realtime.mjs",
    "node_realtime.mjs",
    "openai_transcription.py",
    "pipecat_transcription.py",
    "livekit_transcription.py",
)
BLOCKS = re.findall(r"```(?:python|javascript)\n(.*?)```", TEXT, re.DOTALL)
VALUES = {
    "base_url=base_url": 'base_url="http://127.0.0.1:8998/v1"',
    'base_url=url.replace("http", "ws", 1) + "/realtime"': 'base_url="ws://127.0.0.1:8998/v1/realtime"',
    "base_url=url": 'base_url="http://127.0.0.1:8998/v1"',
}
"""What the scripts are given, as the document writes it."""


@pytest.mark.parametrize(("script", "block"), list(zip(SCRIPTS, BLOCKS, strict=True)))
def test_the_lines_of_the_how_to_are_those_that_the_tests_run(script: str, block: str) -> None:
    text = (ROOT / "tests" / "stock" / script).read_text()
    name = "tiny-stt" if "transcription" in script else "tiny"
    names = {"model=model": f'model="{name}"', '"model": model': f'"model": "{name}"'}
    for given, shown in {**VALUES, **names}.items():
        text = text.replace(given, shown)
    lines = {line.strip() for line in text.splitlines()}
    missing = [line for line in block.splitlines() if line.strip() and line.strip() not in lines]
    assert missing == []


def test_every_event_is_in_a_table() -> None:
    sources = [ROOT / "server" / "antiphon" / folder for folder in ("protocol", "serve/routes")]
    files = [
        file for folder in sources for file in (*folder.glob("realtime*.py"), *folder.glob("translation*.py"))
    ]
    kind = re.compile(r'"((?:session|conversation|input_audio_buffer|response)\.[a-z_.]+)"')
    stems = {"response.output_text", "response.output_audio_transcript"}
    sent = {found for file in files for found in kind.findall(file.read_text())} - stems
    assert len(sent) > 15
    events = {*realtime.READERS, *realtime.UNSUPPORTED, *translation.TYPES, *sent}
    assert not [event for event in events if f"`{event}`" not in TEXT]


def test_the_number_of_schedules_is_that_of_the_test() -> None:
    text = (ROOT / "tests" / "protocol" / "test_realtime_reply.py").read_text()
    assert "SCHEDULES = 2000" in text
    assert "2,000 random schedules" in TEXT
