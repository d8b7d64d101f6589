"""Stock clients, unchanged, each in its own environment, with the built-in model."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import serving
from tests.serve.process import START_S, run
from tests.stock.environments import run_client
from tests.stock.talkers import ANSWER, LOUD, question_file, tiny
from tests.support.calm import SERVE

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

CLIENTS = ("openai", "pipecat", "livekit")


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return question_file(tmp_path_factory.mktemp("question"))


def spoken(audio: list[int]) -> list[int]:
    """The lengths of the stretches of exact silence between sounds."""
    silences, run = [], 0
    for level in audio:
        if level:
            silences += [run] if run else []
            run = 0
        else:
            run += 1
    return silences


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_spoken_exchange(client: str, question: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tiny() as server:
        met = await run_client(client, f"{client}_live.py", server.url("/v1"), str(question), "tiny")
        await server.is_empty()
    assert met["answer"] == ANSWER
    # It asked again, and once more over the answer, which may have been cut.
    assert met["transcript"].startswith(2 * ANSWER)
    assert max(met["audio"]) > LOUD
    # Its client waits for two seconds, which a busy machine may take to close.
    slow = "timed out waiting for session.closed"
    assert [words for words in met["errors"] + met.get("warnings", []) if slow not in words] == []
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    if client == "livekit":
        assert 2 <= len(met["segments"]) <= 3
        assert all(seconds < 4 for seconds in met["segments"])
        assert [role for role, _ in met["items"]] == ["assistant"] * len(met["items"])
        return
    assert max(spoken(met["audio"])) >= 20
    if client == "openai":
        assert met["closed"]["reason"] == "close_requested"
        assert met["models"] == ["tiny"]
        assert met["types"][0] == "session.started"
        assert met["types"][-1] == "session.closed"


async def test_a_spoken_exchange_by_livekits_personaplex_client_on_api_chat(
    question: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tiny() as server:
        met = await run_client("livekit", "personaplex_chat.py", server.url(""), str(question))
        await server.is_empty()
    assert met["answer"] == ANSWER
    assert met["transcript"].startswith(2 * ANSWER)
    assert max(met["audio"]) > LOUD
    assert met["errors"] == met["warnings"] == []
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[str]:
    """The URL of ``antiphon serve`` with these options."""
    process = await run(*SERVE, "--port", "0", *words)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(2 * START_S):
            while not (found := re.search(r"http://\S+", (line := await process.stdout.readline()).decode())):
                assert line
        yield found[0]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            _, log = await process.communicate()
        assert process.returncode == 0
        assert "Traceback" not in log.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("client", ["openai", "livekit"])
async def test_the_callers_words_come_too_over_two_front_ends(client: str, question: Path) -> None:
    models = ("--model", "tiny", "--model", "tiny-stt", "--slots", "2", "--front-ends", "2")
    async with served(*models) as url:
        met = await run_client(client, f"{client}_live.py", f"{url}/v1", str(question), "tiny")
    assert met["errors"] == met.get("warnings", []) == []
    # Asked three times; sound of a busy machine may be late, and then a word is heard as another one.
    if client == "livekit":
        heard = " ".join(words for role, words in met["items"] if role == "user")
    else:
        assert met["closed"]["reason"] == "close_requested"
        heard = met["heard"]
    assert {"what", "name"} & set(heard.split())


REFUSALS = {
    "wrong key": "InvalidStatus: server rejected WebSocket connection: HTTP 401",
    "wrong key over HTTP": "AuthenticationError: Error code: 401 - this API key is not known here",
    "unknown model": "model_not_found: no model 'gpt-live-1' here; there is: null-echo (codec); "
    "to serve it under this name: --alias gpt-live-1=null-echo",
    "wrong format": "invalid_value: session.audio.format.type is 'audio/opus', not one of audio/pcm, audio/pcmu, audio/pcma",  # noqa: E501
    "event without effect": "unsupported_event: type is session.commentary.append, which the model null-echo cannot follow",  # noqa: E501
    "unknown event": "unknown_event: type is 'response.cancel', which no client of this API sends",
    "full house": ("rate_limit_exceeded: the only row is in use; try again in 1 s"),
}


async def test_what_its_user_sees_of_a_refusal(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    async with serving(slots=1, engine={"max_queue": 0}, api_keys=str(keys)) as server:
        met = await run_client("openai", "openai_refusals.py", server.url("/v1"), "key-of-alice", "null-echo")
    assert met == REFUSALS
