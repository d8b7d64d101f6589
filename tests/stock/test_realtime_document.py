"""docs/realtime.md matches the scripts of the stock clients and the protocol."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.protocol import realtime, translation

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "realtime.md").read_text()


def test_every_event_is_in_a_table() -> None:
    sources = [ROOT / "server" / "antiphon" / folder for folder in ("protocol", "serve/routes")]
    files = [
        file for folder in sources for file in (*folder.glob("realtime*.py"), *folder.glob("translation*.py"))
    ]
    kind = re.compile(r'"((?:session|conversation|input_audio_buffer|response)\.[a-z_.]+)"')
    stems = {"response.output_text", "response.output_audio_transcript", "response.function_call_arguments"}
    sent = {found for file in files for found in kind.findall(file.read_text())} - stems
    assert len(sent) > 15
    events = {*realtime.READERS, *translation.READERS, *sent}
    assert not [event for event in events if f"`{event}`" not in TEXT]
