"""Stock clients of OpenAI Realtime, unchanged, each in its own environment, talk with the built-in models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stock.environments import run_client
from tests.stock.talkers import ANSWER, LOUD, question_file, tiny

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

CLIENTS = ("openai", "pipecat", "livekit")


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return question_file(tmp_path_factory.mktemp("question"))


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_spoken_exchange(client: str, question: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tiny() as server:
        met = await run_client(client, f"{client}_realtime.py", server.url("/v1"), str(question), "tiny")
        await server.is_empty()
    Path(f"/tmp/rt_{client}.json").write_text(__import__("json").dumps(met, indent=1))
    assert met["errors"] == met.get("warnings", []) == []
    assert met["answers"][0] == ANSWER
    assert max(met["audio"]) > LOUD
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("client", CLIENTS)
async def test_transcription(client: str, question: Path) -> None:
    async with tiny("tiny-stt") as server:
        met = await run_client(
            client, f"{client}_transcription.py", server.url("/v1"), str(question), "tiny-stt"
        )
        await server.is_empty()
    Path(f"/tmp/rts_{client}.json").write_text(__import__("json").dumps(met, indent=1))
    assert met["errors"] == met.get("warnings", []) == []
