"""Stock clients of OpenAI Realtime, unchanged, each in its own environment, with the built-in models."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.hosting.ports import tls_context
from tests.stock.environments import run_client, run_node_client
from tests.stock.talkers import ANSWER, LOUD, question_file, tiny

pytestmark = pytest.mark.timeout(600)  # pip may have to fetch a client first

CLIENTS = ("openai", "pipecat", "livekit")
TLS = Path(__file__).parents[1] / "serve" / "tls"
QUESTION = "what is your name"
UNREAD = "the model tiny answers only audio from input_audio_buffer.append"

REPLY = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]
TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return question_file(tmp_path_factory.mktemp("question"))


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_spoken_exchange(client: str, question: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with tiny() as server:
        met = await run_client(client, f"{client}_realtime.py", server.url("/v1"), str(question), "tiny")
        await server.is_empty()
    if client == "pipecat":  # it asks for a response to a text at its start, and goes on
        assert [UNREAD in error for error in met["errors"]] == [True]
        met["errors"], met["warnings"] = [], [it for it in met["warnings"] if UNREAD not in it]
    assert met["errors"] == met.get("warnings", []) == met.get("invalid", []) == []
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert max(met["audio"]) > LOUD
    if client == "livekit":
        assert met["answer"] == ANSWER.strip()
        assert met["transcript"].startswith(2 * ANSWER.strip())
        assert {role for role, _ in met["items"]} == {"assistant"}
        assert all(seconds < 4 for seconds in met["segments"])
        return
    answers = [answer for answer in met["answers"] if answer]  # pipecat asks for a response at its start
    assert answers[:2] == 2 * [ANSWER.strip()]
    if client == "pipecat":
        assert met["ended"] == len(met["answers"])
        return
    assert met["created"]["model"] == "tiny"
    assert met["status"][:2] == [["completed", None], [met["status"][1][0], {"topic": "names"}]]
    assert met["status"][1][0] in ("completed", "cancelled")  # as the model yields to the caller, or not
    once = [kind for kind in dict.fromkeys(met["events"]) if kind in {*TURN, *REPLY}]
    assert once == [
        *TURN[:3],
        "conversation.item.added",
        "conversation.item.done",
        *[kind for kind in REPLY if not kind.startswith("conversation.")],
    ]


@pytest.mark.parametrize("client", CLIENTS)
async def test_transcription(client: str, question: Path) -> None:
    async with tiny("tiny-stt") as server:
        met = await run_client(
            client, f"{client}_transcription.py", server.url("/v1"), str(question), "tiny-stt"
        )
        await server.is_empty()
    assert met["errors"] == met.get("warnings", []) == []
    if client == "livekit":
        assert met["transcripts"] == [QUESTION, QUESTION]
        assert met["speech"] == 2 * ["start_of_speech", "end_of_speech"]
        assert QUESTION.startswith(met["interim"][0])
    elif client == "pipecat":
        assert met["transcripts"] == [QUESTION, QUESTION]
        assert met["deltas"] == 2 * QUESTION
    else:
        (first, first_s), (second, second_s) = met["transcripts"]
        assert first == second == QUESTION
        assert 1.0 < first_s < 3.0
        assert 4.0 < second_s < 7.0  # committed by hand: all that came since the turn before
        assert met["types"].count("conversation.item.input_audio_transcription.completed") == 2
        assert not [kind for kind in met["types"] if kind.startswith("response.")]


async def test_the_npm_package_as_a_server_and_as_a_browser(question: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    tls = tls_context(str(TLS / "test-cert.pem"), str(TLS / "test-key.pem"))
    async with tiny(tls=tls, api_keys=str(keys)) as server:
        met = await run_node_client(
            "node_realtime.mjs",
            server.url("/v1", "https"),
            str(question),
            "tiny",
            "key-of-alice",
            trusted=TLS / "test-cert.pem",
        )
        await server.is_empty()
    said = {"answers": [ANSWER.strip()], "errors": [], "status": ["completed"], "closed": 1000}
    assert met == {
        "server": {**said, "instructions": ""},
        "browser": {**said, "instructions": "Be kind."},
    }
