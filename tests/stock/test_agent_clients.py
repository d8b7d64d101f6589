"""Stock clients of OpenAI Realtime, unchanged, with a voice agent that has null models and a script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.serve.agent_client import agent_serving, word
from tests.serve.asr_client import spoken
from tests.stock.environments import run_client
from tests.support.text_model import TextModelServer, calls, says

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

LONG = "one two three four five six seven eight nine ten"


async def test_two_tools_an_interruption_and_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    question, (tokens, written) = tmp_path / "question.pcm", word(letters=8)
    question.write_bytes(np.rint(spoken(tokens) * 32768).astype("<i2").tobytes())
    answers = calls(("weather", '{"at": "Ur"}'), ("slow", "{}")), says("it is hot"), says(LONG), says("yes")
    async with TextModelServer(*answers).serve() as text, agent_serving(text) as server:
        met = await run_client("openai", "openai_agent.py", server.url("/v1"), str(question), "assistant")
        await server.is_empty()
        await text.is_idle.wait()
    assert met["errors"] == met["invalid"] == []
    assert met["calls"] == [["weather", {"at": "Ur"}], ["slow", {}]]
    assert met["statuses"] == [
        ["completed", None],
        ["completed", None],
        ["cancelled", "turn_detected"],
        ["completed", None],
    ]
    assert [met["transcripts"][at] for at in (0, 1, 3)] == ["", "it is hot", "yes"]
    heard = met["transcripts"][2].split()
    assert heard == LONG.split()[: len(heard)]
    contents = [it["content"] for it in text.requests[-1]["messages"] if it["role"] == "user"]
    assert contents == [written] * 3
    assert not [it for it in caplog.records if it.levelname == "ERROR"]
