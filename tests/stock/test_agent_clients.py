"""Stock clients of OpenAI Realtime and Live, unchanged, with an agent of null models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.agent_client import agent_serving, messages_of, word
from tests.serve.asr_client import spoken
from tests.stock.environments import run_client
from tests.support.text_model import Answer, TextModelServer, calls, says

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

LONG = "one two three four five six seven eight nine ten"
SHORT = "it is hot and it is dry"
TOKENS, WRITTEN = word(letters=8)


@asynccontextmanager
async def met_by(
    client: str, script: str, folder: Path, *answers: Answer, tool: str = ""
) -> AsyncIterator[tuple[Any, TextModelServer]]:
    """What a client has met that asks a question of one long word, and the text model that answered."""
    question = folder / "question.pcm"
    question.write_bytes(np.rint(spoken(TOKENS) * 32768).astype("<i2").tobytes())
    async with TextModelServer(*answers, usual=says(SHORT)).serve() as text, agent_serving(text) as server:
        met = await run_client(
            client, script, server.url("/v1"), str(question), "assistant", *filter(None, [tool])
        )
        await server.is_empty()
        await text.is_idle.wait()
        yield met, text


async def test_two_tools_an_interruption_and_an_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers = calls(("weather", '{"at": "Ur"}'), ("slow", "{}")), says("it is hot"), says(LONG), says("yes")
    async with met_by("openai", "openai_agent.py", tmp_path, *answers) as (met, text):
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
        assert [content for role, content in messages_of(text) if role == "user"] == [WRITTEN] * 3
    assert not [it for it in caplog.records if it.levelname == "ERROR"]


async def test_openai_agents_uses_two_tools_and_interrupts(tmp_path: Path) -> None:
    tools = calls(("weather", '{"at": "Ur"}'), ("slow", "{}"))
    answers = tools, says("it is hot"), says("it is dry"), says(LONG), says("yes")
    async with met_by("agents", "agents_realtime.py", tmp_path, *answers) as (met, text):
        assert met["errors"] == met["warnings"] == []
        assert met["calls"] == [["weather", "Ur"], ["slow", ""]]
        assert met["interrupted"] == 2  # whenever its caller speaks after the first sound
        said = [words for role, words in met["history"] if role == "assistant"]
        assert (said[0], said[1], said[3]) == ("it is hot", "it is dry", "yes")
        assert LONG.startswith(said[2])
        assert said[2] != LONG
        roles = [it["role"] for it in text.requests[2]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]


async def test_livekit_uses_a_tool_interrupts_and_asks_again(tmp_path: Path) -> None:
    answer = calls(("weather", '{"at": "Ur"}'))
    async with met_by("livekit", "livekit_realtime.py", tmp_path, answer, tool="weather") as (met, text):
        assert met["errors"] == met["warnings"] == []
        assert met["calls"] == ["Ur"]
        said = [content for role, content in met["items"] if role == "assistant"]
        assert said[0] == said[-1] == SHORT
        assert all(map(SHORT.startswith, said[1:-1]))  # nothing, where it was cut within its first word
        assert [role for role, _ in messages_of(text)].count("user") == 3
        assert messages_of(text).count(("assistant", SHORT)) >= 1  # more if the client interrupts late


async def test_pipecat_uses_a_tool_interrupts_and_asks_again(tmp_path: Path) -> None:
    answer = calls(("weather", '{"at": "Ur"}'))
    async with met_by("pipecat", "pipecat_realtime.py", tmp_path, answer, tool="weather") as (met, text):
        assert met["errors"] == met["warnings"] == []
        assert met["calls"] == [{"at": "Ur"}]
        assert met["answers"].count(SHORT) >= 3
        assert messages_of(text, 0) == [("user", "Hello.")]
        assert [it["role"] for it in text.requests[1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("client", ["openai", "pipecat", "livekit"])
async def test_a_client_of_live_asks_and_interrupts(
    client: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = "an extraordinary coincidence happened in Mesopotamia"
    async with met_by(client, f"{client}_live.py", tmp_path, *[says(reply)] * 3) as (met, text):
        assert met["errors"] == met.get("warnings", []) == []
        assert met["answer"].endswith(reply)
        assert met["transcript"].count(reply) == 2  # between them one was cut
        said = [content for role, content in messages_of(text) if role == "assistant"]
        assert said[0] == reply
        assert all(reply.startswith(it) and it != reply for it in said[1:])
        assert [role for role, _ in messages_of(text)].count("user") == 3
        loud = "".join("x" if level else " " for level in met["audio"]).split()
        assert len(loud) >= 3  # silence is between them; within one where the machine stalls
    assert not [it for it in caplog.records if it.levelname in ("WARNING", "ERROR")]
