"""A canary next to the stable model: assignment, judgement and end of the trial."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.backends.null import NullFaults
from antiphon.canary.signals import TrialArm
from antiphon.canary.trial import Phase
from antiphon.config import ServerConfig
from antiphon.errors import ConfigError, HandOverError, SessionFailedError, SessionTimeoutError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting import observation
from antiphon.serve.hosting.canary_router import CanaryRouter, find_pair
from antiphon.serve.hosting.observation import Observation, disagreement, repetition
from antiphon.serve.operator import canary as command
from tests.serve.asr_client import STT
from tests.serve.harness import FRAME_SAMPLES, Client, Server, serving, speech
from tests.serve.realtime_client import realtime_client
from tests.serve.resuming import QUERY, ResumingCaller
from tests.support.null_backend import NullBackend
from tests.support.null_models import CODEC, DUPLEX, null_checkpoint

SECRET = "a secret of operators and workers"


@asynccontextmanager
async def on_trial(share: float = 1.0, *, slots: int = 2, **settings: Any) -> AsyncIterator[Server]:
    """A codec with its next version."""
    async with serving(
        slots=slots, also=[("next", CODEC), ("other", DUPLEX)], canary="next", canary_share=share, **settings
    ) as server:
        yield server


def desk_of(server: Server) -> CanaryRouter:
    desk = server.services.canary
    assert desk is not None
    return desk


async def who_answers(server: Server, query: str = "") -> str:
    async with server.call(f"ext=1&format=pcm_f32le&{query}") as client:
        name: str = (await client.event("ready")).fields["model"]
        return name


async def test_calls_of_the_stable_model_may_get_the_canary_and_no_others() -> None:
    async with on_trial() as server:
        assert await who_answers(server) == "next"
        assert await who_answers(server, "model=null-echo") == "next"
        assert await who_answers(server, "model=other") == "other"
    async with on_trial(0.0) as server:
        assert await who_answers(server) == "null-echo"
        assert await who_answers(server, "model=next") == "next"


async def test_a_phase_decides_before_the_share() -> None:
    async with on_trial() as server:
        await desk_of(server).ask(Phase.WITHDRAWN)
        assert await who_answers(server) == "null-echo"
    async with on_trial(0.0) as server:
        await desk_of(server).ask(Phase.PROMOTED)
        assert await who_answers(server) == "next"


async def test_a_canary_without_a_free_row_refuses_no_caller() -> None:
    async with on_trial(slots=1) as server:
        async with server.call("ext=1&format=pcm_f32le") as first:
            assert (await first.event("ready")).fields["model"] == "next"
            assert await who_answers(server) == "null-echo"
            await call_once(server)
            await server.eventually(lambda: len(server.services.calls) == 1)
        await server.is_empty()
        assert (await desk_of(server).report())["calls"]["stable"] == 0  # it was not drawn


async def test_a_caller_keeps_its_version() -> None:
    async with on_trial(0.5, canary_by="caller") as server:
        desk, model = desk_of(server), server.services.models.first
        callers = [Caller(None, f"10.0.{number}.1") for number in range(200)]
        chosen = [desk.choose(model, caller).name for caller in callers]
        assert chosen == [desk.choose(model, caller).name for caller in callers]
        assert 60 <= chosen.count("next") <= 140


async def test_a_call_that_comes_back_finds_its_version_whatever_the_phase() -> None:
    async with on_trial(engine={"fixed_batch": True}) as server:
        caller = ResumingCaller(server.http, server.url(f"/api/chat?{QUERY}", "ws"), speech(40))
        caller.go_on(20)
        running = asyncio.ensure_future(caller.run())
        await caller.until_answered(10)
        await desk_of(server).ask(Phase.WITHDRAWN)
        caller.cut()
        caller.go_on()
        await running
        assert (caller.thread.resumptions, caller.thread.reason) == (1, "")
        await server.is_empty()
        report = await desk_of(server).report()
        assert report["calls"] == {"stable": 0, "canary": 1}


async def call_once(server: Server) -> None:
    """A frame, its answer or the end."""
    async with server.call("ext=1&format=pcm_f32le&wait=30") as client:
        await client.event("ready")
        await client.speak(speech(1))
        await client.receive()


async def test_a_canary_that_fails_is_withdrawn_and_callers_get_the_stable_version(tmp_path: Path) -> None:
    broken = NullBackend(
        CODEC, 2, step_ms=0.0, faults=NullFaults(fail_rows=dict.fromkeys(range(200), (0, 1)))
    )
    checkpoint = null_checkpoint(CODEC)
    following = type(checkpoint)(
        type(CODEC)("next", CODEC.kind, CODEC.family, CODEC.mimi), "next", tmp_path, {}
    )
    async with serving(beside=[(following, broken)], canary="next", canary_share=0.5) as server:
        desk, calls = desk_of(server), 0
        while (report := await desk.report())["phase"] == Phase.RUNNING:
            await call_once(server)
            calls += 1
            assert calls < 200
        await server.eventually(lambda: not server.services.calls)
        assert report["reason"].startswith("failure: 1.00 in ")
        assert {await who_answers(server) for _ in range(8)} == {"null-echo"}
        _, text, _ = await server.get("/metrics")
        assert 'antiphon_canary_phase{phase="withdrawn"} 1.0' in text
        assert 'antiphon_canary_fault{arm="canary",signal="failure"} 1.0' in text
        assert 'antiphon_canary_evidence{signal="failure"}' in text
        assert 'antiphon_canary_calls_total{arm="canary"}' in text


async def test_operators_see_the_state_and_set_the_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text(SECRET)
    wrong.write_text("another secret of others")
    async with on_trial(0.1, hand_over_secret=str(secret)) as server:
        url = server.url("")

        async def run(*argv: str) -> tuple[int, str]:
            code = await asyncio.to_thread(command.main, [url, *argv])
            return code, capsys.readouterr().out

        code, text = await run()
        assert code == 0
        assert text.splitlines()[:2] == [
            "next compared with null-echo: running",
            "10% of new calls; 0 calls of the canary, 0 of the stable version have ended",
        ]
        code, text = await run("--promote", "--secret", str(secret))
        assert (code, text.splitlines()[0]) == (0, "next compared with null-echo: promoted (by hand)")
        code, text = await run("--withdraw", "--secret", str(secret), "--json")
        assert (code, json.loads(text)["phase"]) == (1, "withdrawn")
        assert (await run("--restart", "--secret", str(secret)))[0] == 0
        with pytest.raises(HandOverError, match="answered 403: the signature is not one for the worker"):
            await run("--promote", "--secret", str(wrong))
        with pytest.raises(ConfigError, match="--promote needs --secret FILE"):
            await run("--promote")


async def test_without_a_canary_there_is_no_state() -> None:
    async with serving() as server:
        status, text, _ = await server.get("/api/canary")
        assert status == 404
        assert json.loads(text)["error"] == "no model is on trial here; serve with canary = NAME"


async def test_a_pair_that_cannot_be_is_refused_in_words() -> None:
    foreign = replace(CODEC, family="another")
    async with serving(also=[("next", CODEC), ("other", DUPLEX), ("foreign", foreign)]) as server:
        models = server.services.models
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"canary": "nxt"}, "canary = 'nxt' is no model served here; did you mean 'next'"),
            (
                {"canary": "other"},
                "canary = 'other' is the only duplex model here; serve the stable one before",
            ),
            (
                {"canary": "other", "canary_of": "next"},
                "other cannot replace next: kind duplex, not codec",
            ),
            (
                {"canary": "foreign"},
                f"foreign cannot replace null-echo: family another, not {CODEC.family}",
            ),
            ({"canary": "null-echo"}, "canary = 'null-echo' has to be declared after 'next'"),
            ({"canary": "next", "canary_of": "gone"}, "canary_of = 'gone' is no model served here"),
        ]
        for options, words in refusals:
            with pytest.raises(ConfigError) as refused:
                find_pair(models, ServerConfig(**options))
            assert str(refused.value).startswith(words)
        stable, canary = find_pair(models, ServerConfig(canary="next"))
        assert (stable.name, canary.name) == ("null-echo", "next")


def reply(token: int | None = None, level: float | None = 0.0, frame: int = 0) -> FrameReply:
    pcm = None if level is None else np.full(FRAME_SAMPLES, level, np.float32)
    return FrameReply(frame, pcm, token, (), 1.0, 1.0, 0.0, 0.0)


async def test_what_a_call_is_judged_by() -> None:
    async with on_trial() as server:
        model = server.services.models.find("other")
        seen = Observation(model, None)
        for number in range(200):
            seen.see(
                reply(token=10 + number % 4 if number % 5 == 0 else 3, level=0.1 if number < 10 else 0.0)
            )
        signals = seen.signals(SessionStats(frames_taken=200, late=4, lost=1), None)
        assert signals.late == 0.5  # 2.5 % of the frames, of the 5 % at which it is as bad as it gets
        assert signals.silence == 0.5  # speech in 5 % of the frames, of 10 %
        assert signals.repetition == pytest.approx(1 - 4 / 37)
        assert (signals.hang_up, signals.failure, signals.disagreement) == (0.0, 0.0, None)
        brief = SessionStats(frames_taken=20)
        assert Observation(model, None).signals(brief, None).silence is None
        assert Observation(model, None).signals(brief, None).hang_up == 1.0
        timeout = Observation(model, None).signals(brief, SessionTimeoutError("silent"))
        assert (timeout.hang_up, timeout.failure) == (0.0, 0.0)
        assert Observation(model, None).signals(brief, SessionFailedError("broken")).failure == 1.0


def test_repetition_and_disagreement() -> None:
    assert repetition(deque(range(15))) == 0.0
    assert repetition(deque([1, 2, 3, 4] * 3)) == 0.0  # too short to say
    assert repetition(deque([1, 2, 3, 4] * 64)) > 0.98
    assert disagreement(" My name is Robin.", "my name is robin") == 0.0
    assert disagreement(" my name is robin", "my cow is") == pytest.approx(1 - 4 / 7)
    assert disagreement(" one two", "") == 1.0
    assert disagreement(" ...", "anything") is None


@asynccontextmanager
async def heard_by_a_scribe() -> AsyncIterator[Server]:
    """A talker with its next version, and a recogniser of one row."""
    talker = (null_checkpoint(DUPLEX), NullBackend(DUPLEX, 2, step_ms=0.0))
    following = type(DUPLEX)("next", DUPLEX.kind, DUPLEX.family, DUPLEX.mimi, DUPLEX.lm)
    beside = [(null_checkpoint(following), NullBackend(following, 2, step_ms=0.0))]
    beside.append((null_checkpoint(STT), NullBackend(STT, 1)))
    async with serving(model=talker, beside=beside, canary="next", canary_share=1.0) as server:
        yield server


async def talk(client: Client) -> None:
    """Thirty frames, answered."""
    await client.event("ready")
    for frame in range(30):
        await client.speak(np.full(FRAME_SAMPLES, (0, 0.1, 0.007, 0)[frame % 4], np.float32))
        if frame > 1:
            await client.reply()


async def test_a_recogniser_hears_some_calls_and_gives_its_row_back() -> None:
    async with heard_by_a_scribe() as server:
        async with server.call("ext=1&format=pcm_f32le") as client:
            await talk(client)
        await server.eventually(lambda: not server.services.calls)
        await desk_of(server).settled()
        found = (await desk_of(server).report())["signals"]["disagreement"]
        assert found["calls"] == {TrialArm.STABLE: 0, TrialArm.CANARY: 1}
        scribe = server.services.models.find("scribe").engine
        await server.eventually(lambda: scribe.health().active == 0)


async def test_a_recogniser_that_has_heard_a_call_s_beginning_is_free_while_the_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observation, "LISTEN_FRAMES", 10)
    async with heard_by_a_scribe() as server:
        scribe = server.services.models.find("scribe").engine
        async with server.call("ext=1&format=pcm_f32le") as client:
            await talk(client)
            await server.eventually(lambda: scribe.health().active == 0)
            assert server.services.calls, "the row came back with the end of the call"
            async with server.call("ext=1&format=pcm_f32le") as other:
                await talk(other)
        await server.is_empty()
        await desk_of(server).settled()
        found = (await desk_of(server).report())["signals"]["disagreement"]
        assert found["calls"] == {TrialArm.STABLE: 0, TrialArm.CANARY: 2}


async def test_a_written_call_of_a_canary_may_name_the_model_that_it_asked_for() -> None:
    beside = []
    for name in ("scribe", "next"):
        spec = type(STT)(name, STT.kind, STT.family, STT.mimi, STT.lm, generation=STT.generation)
        beside.append((null_checkpoint(spec), NullBackend(spec, 1)))
    async with (
        serving(beside=beside, canary="next", canary_share=1.0) as server,
        realtime_client(server, "/v1/realtime?intent=transcription") as client,
    ):
        wanted = {"audio": {"input": {"transcription": {"model": "scribe"}}}}
        await client.send("session.update", session=wanted)
        await client.event("session.updated")
        assert server.services.models.find("next").engine.health().active == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "did not answer with the state of a canary"),
        (b"no HTTP\r\n\r\n", "cannot be reached: BadStatusLine"),
    ],
)
async def test_an_answer_that_is_no_state_is_refused_in_words(answer: bytes, words: str) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(HandOverError, match=words):
            await asyncio.to_thread(command.ask_state, f"http://127.0.0.1:{port}", None)
