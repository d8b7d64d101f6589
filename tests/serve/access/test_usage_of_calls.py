"""Usage of calls: a record for each, and keys with exhausted seconds or expired keys."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from antiphon.config import ServerConfig
from antiphon.errors import KeyRevokedError, UsageLimitError
from antiphon.limits import Limits
from antiphon.serve.access.callers import Access, Caller
from antiphon.serve.access.key_watch import watch_keys
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.access.usage import UsageRecord
from tests.serve.harness import serving, speech
from tests.serve.live_client import live_client
from tests.serve.resuming import QUERY, ResumingCaller, records
from tests.support.null_models import DUPLEX

ALICE = KeyEntry("alice", digest_of("key-of-alice"), seconds=30)


BOB = KeyEntry("bob", digest_of("key-of-bob"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{format_key(ALICE)}\n{format_key(BOB)}\n")
    return path


async def test_a_key_may_use_its_seconds_and_no_more(keys: Path) -> None:
    access = Access(ServerConfig(api_keys=str(keys), limits=Limits(max_seconds_per_key=100)))
    alice, bob = Caller(ALICE, "1.1.1.1"), Caller(BOB, "1.1.1.1")
    for caller in (alice, bob):
        access.check(caller, {})
        access.check(caller, {caller.name: 29.9})
    with pytest.raises(UsageLimitError, match=r"^the key 'alice' has used 30 of 30 s today \(UTC\)$"):
        access.check(alice, {"alice": 30.0})
    access.ended(UsageRecord(access.usage.stamp(), "s-1", "bob", "tiny", 90.0, 89.0, 7))
    await access.admit(bob)
    access.running = {"bob": 10.0}
    with pytest.raises(UsageLimitError, match=r"'bob' has used 100 of 100 s") as caught:
        await access.admit(bob)
    assert 0 < caught.value.retry_after_s <= 86_400


def test_a_key_taken_out_of_the_file_is_revoked(keys: Path) -> None:
    access = Access(ServerConfig(api_keys=str(keys)))
    keys.write_text(f"# alice has left\n{format_key(BOB)}\n")
    access.check(Caller(BOB, "1.1.1.1"), {})
    with pytest.raises(KeyRevokedError, match=r"^the key 'alice' is no longer valid$"):
        access.check(Caller(ALICE, "1.1.1.1"), {})


def test_where_no_keys_are_asked_for_nothing_is_limited() -> None:
    Access(ServerConfig(limits=Limits(max_seconds_per_key=1))).check(Caller(None, "1.1.1.1"), {"": 9.0})


def write(path: Path, *keys: KeyEntry) -> None:
    path.write_text("# who may call\n" + "".join(f"{format_key(key)}\n" for key in keys))


def as_alice() -> dict[str, str]:
    return {"Authorization": "Bearer key-of-alice"}


async def test_each_ended_call_leaves_one_record(keys: Path, tmp_path: Path) -> None:
    path = tmp_path / "usage"
    async with serving(spec=DUPLEX, api_keys=str(keys), usage=str(path)) as server:
        async with live_client(server, **as_alice()) as client:
            session = await client.start(model="null-duplex")
            await client.speak(0.3 * speech(20))
            for _ in range(15):
                await client.audio()
            await client.send("session.close")
            await client.closed()
        async with server.call("ext=1&format=pcm_f32le", **as_alice()) as call:
            await call.event("ready")
            await call.speak(speech(5))
            while (await call.reply())[0].frame < 4:
                pass
            call.cut()
        await server.is_empty()
        await server.eventually(lambda: len(records(path)) == 2)
    lived, called = records(path)
    assert session["id"] == f"live_{lived['session']}"
    for record_, frames in ((lived, 20), (called, 5)):
        assert (record_["key"], record_["model"]) == ("alice", "null-duplex")
        assert record_["seconds_in"] >= round(0.08 * frames, 2)
        assert record_["words"] > 0
    assert lived["seconds_out"] >= 15 * 0.08


async def test_a_call_that_is_resumed_leaves_a_record_of_each_connection(tmp_path: Path) -> None:
    async with serving(spec=DUPLEX, usage=str(tmp_path / "usage")) as server:
        caller = ResumingCaller(server.http, server.url(f"/api/chat?{QUERY}"), speech(20))
        caller.sends_until = 12
        running = asyncio.ensure_future(caller.run())
        await caller.until_answered(12 - DUPLEX.delay_frames)
        caller.cut()
        await server.eventually(lambda: caller.thread.resumptions == 1)
        caller.go_on()
        await running
        await server.is_empty()
        server.services.access.usage.close()
    first, second = records(tmp_path / "usage")
    assert first["session"] == second["session"]
    assert (first["seconds_in"], second["seconds_in"]) == (round(12 * 0.08, 2), round(8 * 0.08, 2))
    said = 20 - DUPLEX.delay_frames  # some of them are sent again, and count once
    assert round(first["seconds_out"] + second["seconds_out"], 2) == round(said * 0.08, 2)
    heard = len("".join(caller.heard.text).split())
    assert first["words"] + second["words"] == heard + 1  # the last word comes behind the last audio


async def test_a_call_that_moves_and_is_never_claimed_leaves_a_record_where_it_was_used(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("a secret of two workers\n")
    common: dict[str, Any] = {
        "hand_over_secret": str(tmp_path / "secret"),
        "engine": {"resume_window_s": 0.2},
    }
    async with (
        serving(**common, worker="a", usage=str(tmp_path / "a")) as a,
        serving(**common, worker="b", usage=str(tmp_path / "b")) as b,
    ):
        async with a.caller("resume=1") as call:
            await call.speak(speech(5))
            while (await call.reply())[0].frame < 4:
                pass
            a.engine.drain(b.url(""))
            assert (await call.event("moved")).fields["worker"] == "b"
        await a.is_empty()
        await b.is_empty()
        for server in (a, b):
            server.services.access.usage.close()
    (used,) = records(tmp_path / "a")
    assert used["seconds_in"] == round(5 * 0.08, 2)
    assert not records(tmp_path / "b")


async def test_a_key_that_is_taken_away_ends_its_calls_and_no_others(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_keys, "__defaults__", (0.05,))
    async with (
        serving(api_keys=str(keys)) as server,
        live_client(server, **as_alice()) as alice,
        live_client(server, **{"x-api-key": "key-of-bob"}) as bob,
    ):
        await alice.start()
        await bob.start()
        write(keys, BOB)
        error = await alice.error()
        assert (error["code"], error["message"]) == (
            "invalid_api_key",
            "the key 'alice' is no longer valid",
        )
        assert (await alice.closed()).code == 1008
        for _ in range(5):
            await bob.audio()
        assert not bob.of("error")


async def test_a_day_that_is_used_up_ends_calls_and_begins_none(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_keys, "__defaults__", (0.05,))
    write(keys, replace(ALICE, seconds=2))
    async with serving(api_keys=str(keys)) as server:
        async with live_client(server, **as_alice()) as client:
            await client.start()
            await client.speak(speech(25))
            error = await client.error()
            assert error["code"] == "insufficient_quota"
            assert re.fullmatch(r"the key 'alice' has used \d+ of 2 s today \(UTC\)", error["message"])
            assert (await client.closed()).code == 1008
        await server.is_empty()
        async with live_client(server, **as_alice()) as client:
            assert (await client.error())["code"] == "insufficient_quota"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with server.call("", **as_alice()):
                pass
        assert refused.value.status == 429
        assert refused.value.headers is not None
        assert int(refused.value.headers["Retry-After"]) > 0
