"""Resumed sessions of OpenAI Live: words once, audio with a gap, single-use tokens."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from antiphon.protocol.resume import token_of
from tests.serve.harness import Server, serving, speech
from tests.serve.live_client import PATH, live_client
from tests.serve.live_resuming import ResumingLiveCaller, cut
from tests.serve.resuming import records
from tests.support.null_models import DUPLEX

FRAMES = 40
CUTS = (7, 20, 21, 30)


def caller_of(server: Server, cuts_at: tuple[int, ...] = ()) -> ResumingLiveCaller:
    return ResumingLiveCaller(
        server.http,
        server.url(""),
        speech(FRAMES),
        model=DUPLEX.name,
        delay_frames=DUPLEX.delay_frames,
        cuts_at=cuts_at,
    )


async def refused(server: Server, first: dict[str, object]) -> tuple[str, int | None]:
    """The code of the error that a connection gets which resumes with this event, and of its close."""
    async with live_client(server, f"{PATH}?resume=again") as client:
        await client.ws.send_json(first)
        return (await client.error())["code"], (await client.closed()).code


async def test_a_session_that_is_cut_says_each_word_once_and_its_audio_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.served.secrets.randbits", lambda _: 5)
    async with serving(spec=DUPLEX) as server:
        whole, broken = caller_of(server), caller_of(server, CUTS)
        await whole.run()
        await broken.run()
        await server.is_empty()
        assert server.engine.sessions.resuming.detached == 0
    assert (broken.failed, len(broken.resumed)) == ([], len(CUTS))
    shown = [(it["delta"], it["start_ms"]) for it in whole.words]
    assert len(shown) > FRAMES // 2
    assert [(it["delta"], it["start_ms"]) for it in broken.words] == shown
    numbers = [number for number, _ in broken.audio]
    assert numbers == [number for number, _ in whole.audio]  # all it lacked was within what is sent again
    for resumed in broken.resumed:
        assert resumed["missed_frames"] == 0
        assert resumed["input_frame"] >= resumed["replay_from"]
    assert len({it["session"]["id"] for it in broken.resumed}) == 1


async def test_an_old_token_is_refused_and_the_former_connection_replaced() -> None:
    async with serving(spec=DUPLEX) as server:
        first = {"type": "session.resume", "session": {"model": DUPLEX.name}}
        async with live_client(server, f"{PATH}?resume=1") as old:
            await old.send("session.start", session={"model": DUPLEX.name})
            started = await old.event("session.started")
            token = started["resume"]["token"]
            assert len(token_of(token)) == 16
            assert started["resume"]["window_s"] == 30.0
            async with live_client(server, f"{PATH}?resume=again") as new:
                await new.ws.send_json({**first, "token": token, "muted": True, "event_id": "back"})
                resumed = await new.event("session.resumed")
                assert resumed["client_event_id"] == "back"
                assert resumed["session"]["id"] == started["session"]["id"]
                assert resumed["resume"]["token"] != token
                assert (await old.error())["code"] == "session_replaced"
                assert (await old.closed()).code == 4409
                await new.send("session.acknowledge", seq=-1)
                await new.send("session.input_audio.unmute")  # answered: it was read after the other
                await new.event("session.input_audio.unmuted")
                code = await refused(server, {**first, "token": token})
                assert code == ("session_not_resumable", 4404)
                await new.send("session.close")
                await new.event("session.closed")
        await server.is_empty()
        ended = await refused(server, {**first, "token": resumed["resume"]["token"]})
        assert ended == ("session_not_resumable", 4404)
        assert await refused(server, {**first, "token": "short"}) == ("invalid_value", 1008)
        assert await refused(server, {**first, "type": "session.start"}) == ("session_not_started", 1008)


async def test_a_session_waits_frozen_without_a_connection_and_a_plain_one_has_no_token() -> None:
    async with serving(spec=DUPLEX) as server:
        async with live_client(server) as plain:
            await plain.send("session.start", session={"model": DUPLEX.name})
            assert "resume" not in await plain.event("session.started")
            cut(plain)
        await server.is_empty()
        async with live_client(server, f"{PATH}?resume=1") as client:
            await client.send("session.start", session={"model": DUPLEX.name})
            await client.event("session.started")
            cut(client)
        await server.eventually(lambda: server.engine.sessions.resuming.detached == 1)
        await server.eventually(lambda: server.engine.rows.is_frozen.sum() == 1)


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_the_rest_of_a_file_is_dropped_on_another_connection_too(is_renewed: bool) -> None:
    webm = bytes.fromhex("1a45dfa39f4286810142f7810142f2810442f381084282847765626d") + bytes(range(256)) * 40
    first = {"type": "session.resume", "session": {"model": DUPLEX.name}}
    async with serving(spec=DUPLEX) as server:
        async with live_client(server, f"{PATH}?resume=1") as old:
            await old.send("session.start", session={"model": DUPLEX.name})
            token = (await old.event("session.started"))["resume"]["token"]
            await old.append(webm[:2000])
            assert (await old.error())["param"] == "audio"
            if is_renewed:
                await old.send("session.update", session={})
                await old.event("session.updated")
            cut(old)
        await server.eventually(lambda: server.engine.sessions.resuming.detached == 1)
        async with live_client(server, f"{PATH}?resume=again") as new:
            await new.ws.send_json({**first, "token": token})
            assert (await new.event("session.resumed"))["input_frame"] == 0
            await new.append(webm[2000:10_000])
            await new.send("session.update", session={})
            await new.event("session.updated")
            await server.eventually(lambda: len(server.calls) == 1)
            (call,) = server.calls
            assert (call.exchange.audio_at_s > -math.inf) == is_renewed
            await new.append(bytes(38_400))
            await new.event("session.output_audio.delta")


async def test_a_session_that_is_handed_over_goes_on_at_the_other_worker_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.served.secrets.randbits", lambda _: 5)
    (tmp_path / "secret").write_text("a secret of two workers\n")
    common: dict[str, Any] = {"spec": DUPLEX, "hand_over_secret": str(tmp_path / "secret")}
    async with (
        serving(**common, worker="a", usage=str(tmp_path / "a")) as a,
        serving(**common, worker="b", usage=str(tmp_path / "b")) as b,
    ):
        whole, moving = caller_of(a), caller_of(a)
        await whole.run()
        await a.is_empty()
        moving.workers = {"a": a.url(""), "b": b.url("")}
        moving.sends_until = FRAMES // 2
        running = asyncio.ensure_future(moving.run())
        await moving.until_answered(FRAMES // 2 - DUPLEX.delay_frames)
        a.engine.drain(b.url(""))
        await b.eventually(lambda: len(moving.resumed) == 1)
        await moving.go_on()
        await running
        for server in (a, b):
            await server.is_empty()
            server.services.access.usage.close()
    assert (moving.failed, moving.moves) == ([], ["b"])
    assert [it["resume"]["worker"] for it in moving.resumed] == ["b"]
    assert [(it["delta"], it["start_ms"]) for it in moving.words] == [
        (it["delta"], it["start_ms"]) for it in whole.words
    ]
    # The null backend stamps audio with its session, which is another one here.
    assert [number for number, _ in moving.audio] == [number for number, _ in whole.audio]
    (there,) = records(tmp_path / "b")
    (here,) = (it for it in records(tmp_path / "a") if it["session"] == there["session"])
    assert here["seconds_in"] + there["seconds_in"] == pytest.approx(FRAMES * 0.08)
