"""Several processes as one server: a killed or stopped one does not affect the others."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.backends.null import STAMP_SAMPLES
from antiphon.protocol import events, moshi
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import PATIENCE_S, Client, Closed, speech
from tests.serve.process import ServerProcess, children, front_ends, serve_process
from tests.support.stamp import read_stamp

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

EXTENDED = "ext=1&format=pcm_f32le"
FRAME_S = 0.08
STOPPED_S = 5.0
EVEN = ("--front-ends", "2", "--slots", "64")

SILENCE_S = 30.0
"""Longer than anything is stopped."""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def none_is_left(pids: list[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(map(is_running, pids)):  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.02)


@dataclass
class Talk:
    """A call that speaks in real time, and what came of it."""

    client: Client
    seed: int
    sent: int = 0
    replies: list[int] = field(default_factory=list)
    end: Closed | None = None
    error: moshi.Event | None = None
    is_true: bool = True
    pcm: FloatArray = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    async def run(self, frames: int) -> None:
        """Speak so many frames, hear all replies, and hang up; or be cut off."""
        self.pcm = speech(frames, self.seed).reshape(frames, -1)
        speaking = asyncio.create_task(self._speak(frames))
        until_s = asyncio.get_running_loop().time() + frames * FRAME_S + SILENCE_S
        try:
            while len(self.replies) < frames:
                async with asyncio.timeout_at(until_s):
                    message = await self.client.receive()
                if isinstance(message, Closed):
                    self.end = message
                    return
                if isinstance(message, moshi.StampedAudio):
                    self._hear(message)
                elif isinstance(message, moshi.Event) and message.type == "error":
                    self.error = message
        except TimeoutError:
            self.client.cut()  # it lost frames, and waits for their replies
            return
        finally:
            speaking.cancel()
        await self.client.send(events.bye())
        self.end = await self.client.closed()

    async def _speak(self, frames: int) -> None:
        begun_s = time.monotonic() + random.Random(self.seed).random() * FRAME_S
        for index in range(frames):
            await asyncio.sleep(begun_s + index * FRAME_S - time.monotonic())
            self.sent += 1
            await self.client.speak(self.pcm[index])

    def _hear(self, reply: moshi.StampedAudio) -> None:
        index = len(self.replies)
        self.replies.append(reply.frame)
        heard, said = np.frombuffer(reply.data, "<f4"), self.pcm[index]
        self.is_true &= read_stamp(heard).frame == index
        self.is_true &= bool(np.array_equal(heard[STAMP_SAMPLES:], said[STAMP_SAMPLES:]))

    @property
    def was_cut(self) -> bool:
        """Whether the connection dropped without a word."""
        return self.end is not None and self.end.code == 1006

    @property
    def is_whole(self) -> bool:
        """Whether every frame was answered with itself, in order, and the end was ours."""
        is_complete = self.replies == list(range(self.sent)) and self.is_true
        return is_complete and self.end is not None and self.end.code == 1000


@asynccontextmanager
async def talks(server: ServerProcess, count: int, first_seed: int = 0) -> AsyncIterator[list[Talk]]:
    async with AsyncExitStack() as stack:
        found = []
        for seed in range(first_seed, first_seed + count):
            hasty = aiohttp.ClientWSTimeout(ws_close=0.2)
            url = f"{server.url}/api/chat?{EXTENDED}"
            client = Client(await stack.enter_async_context(server.http.ws_connect(url, timeout=hasty)))
            await client.event("ready")
            found.append(Talk(client, seed))
        yield found


async def rows_in_use(server: ServerProcess) -> int:
    async with server.http.get(f"{server.url}/healthz", headers={"Accept": "application/json"}) as response:
        answer = await response.json()
    return sum(model["active"] for model in answer["models"].values())


async def all_rows_come_back(server: ServerProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await rows_in_use(server):  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.05)


async def has_two_front_ends(server: ServerProcess) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while "antiphon_front_ends 2.0" not in await metrics(server):  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.05)


async def metrics(server: ServerProcess) -> str:
    async with server.http.get(f"{server.url}/metrics") as response:
        return await response.text() if response.status == 200 else ""


async def shares(server: ServerProcess) -> Counter[str]:
    """The connections of each front end."""
    text = await metrics(server)
    lines = [line for line in text.splitlines() if line.startswith("antiphon_front_end_connections{")]
    return Counter({line.split('"')[1]: round(float(line.rsplit()[-1])) for line in lines})


async def test_one_of_two_front_ends_is_killed_under_32_calls() -> None:
    async with (
        serve_process("--front-ends", "2", "--slots", "32") as server,
        talks(server, 32) as calls,
    ):
        running = [asyncio.create_task(call.run(50)) for call in calls]
        await asyncio.sleep(1.5)
        victim, other = front_ends(server)
        os.kill(victim, signal.SIGKILL)
        await asyncio.gather(*running)
        assert sum(call.was_cut for call in calls) == 16
        assert sum(call.is_whole for call in calls) == 16
        await has_two_front_ends(server)
        await all_rows_come_back(server)
        assert other in front_ends(server)
        async with talks(server, 2) as again:
            await asyncio.gather(*(call.run(3) for call in again))
            assert all(call.is_whole for call in again)
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0
        log = await server.log()
    assert log.count('reason="its front end was dropped: its process has') == 16


async def test_whoever_is_killed_or_stopped_the_calls_of_others_are_whole() -> None:
    """Front ends and the supervisor at random points; a front end that is stopped is replaced."""
    chance = random.Random(1)
    async with serve_process("--front-ends", "2", "--slots", "32") as server:
        async with talks(server, 8) as calls:
            running = [asyncio.create_task(call.run(100)) for call in calls]
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            stopped, other = chance.sample(front_ends(server), 2)
            os.kill(stopped, signal.SIGSTOP)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)
            server.signal(signal.SIGCONT)
            os.kill(stopped, signal.SIGCONT)
            await asyncio.gather(*running)
            # Those of the stopped one were cut, or were heard late: the supervisor
            # stood still as well, and whether it saw the silence depends on the moment.
            assert sum(call.is_whole for call in calls) >= 4
        await has_two_front_ends(server)
        assert is_running(other)
        await all_rows_come_back(server)
        async with talks(server, 4, 100) as calls:
            running = [asyncio.create_task(call.run(60)) for call in calls]
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            stopped = chance.choice(front_ends(server))
            os.kill(stopped, signal.SIGSTOP)
            await none_is_left([stopped])
            await asyncio.gather(*running)
            assert sum(call.is_whole for call in calls) == 2
        await has_two_front_ends(server)
        await all_rows_come_back(server)
        pids = [server.process.pid, *children(server.process.pid).values()]
        server.process.kill()
        await none_is_left(pids)


async def test_a_stopped_engine_delays_and_loses_nothing_that_may_wait() -> None:
    async with (
        serve_process("--front-ends", "2", "--slots", "4") as server,
        talks(server, 4) as calls,
    ):
        running = [asyncio.create_task(call.run(12)) for call in calls]
        await asyncio.sleep(0.3)
        engine = children(server.process.pid)["engine"]
        os.kill(engine, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(engine, signal.SIGCONT)
        await asyncio.gather(*running)
        assert all(call.is_whole for call in calls)


async def test_health_tells_of_an_engine_that_stands_still() -> None:
    async with serve_process("--front-ends", "2") as server:
        engine = children(server.process.pid)["engine"]
        os.kill(engine, signal.SIGSTOP)
        try:
            await server.reaches("/healthz", 503)
            async with server.http.get(f"{server.url}/healthz") as response:
                assert "the engine's process has not answered for" in await response.text()
        finally:
            os.kill(engine, signal.SIGCONT)
        await server.reaches("/healthz", 200)


async def test_without_its_engine_every_call_is_told_and_the_server_ends_with_70() -> None:
    async with (
        serve_process("--front-ends", "2", "--slots", "8") as server,
        talks(server, 8) as calls,
    ):
        pids = list(children(server.process.pid).values())
        running = [asyncio.create_task(call.run(100)) for call in calls]
        await asyncio.sleep(0.5)
        os.kill(children(server.process.pid)["engine"], signal.SIGKILL)
        await asyncio.gather(*running)
        assert {call.end.code for call in calls if call.end is not None} == {1011}
        assert all(call.error is not None for call in calls)
        assert await server.exit_code() == 70
        await none_is_left(pids)


async def test_calls_are_shared_evenly_and_arrivals_even_out_what_leavers_left() -> None:
    async with serve_process(*EVEN) as server, AsyncExitStack() as stack:

        async def arrive(calls: int) -> list[AsyncExitStack]:
            begun = []
            for _ in range(calls):
                call = await stack.enter_async_context(AsyncExitStack())
                await (await call.enter_async_context(server.call(EXTENDED))).event("ready")
                begun.append(call)
            return begun

        calls = await arrive(16)
        # The question is at work too while it is answered.
        assert max((await shares(server)).values()) <= 9
        assert sum((await shares(server)).values()) == 17
        calls += await arrive(48)
        assert max((await shares(server)).values()) <= 33
        for call in calls[:32:2]:  # as many as a front end has spare leases: those of leavers are free later
            await call.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while sum((await shares(server)).values()) > 49:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)
        await arrive(16)
        assert max((await shares(server)).values()) <= 33


async def test_limits_of_a_key_hold_over_all_front_ends(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(format_key(KeyEntry("alice", digest_of("secret"), 2)) + "\n")
    async with (
        serve_process("--front-ends", "2", "--slots", "8", "--api-keys", str(keys)) as server,
        AsyncExitStack() as stack,
    ):
        headers = {"Authorization": "Bearer secret"}
        url = f"{server.url}/api/chat"
        first, _ = [
            await stack.enter_async_context(server.http.ws_connect(url, headers=headers)) for _ in "12"
        ]
        for _ in range(4):  # on whichever front end
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await server.http.ws_connect(url, headers=headers)
            assert refused.value.status == 429

        async def is_admitted_soon() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await stack.enter_async_context(server.http.ws_connect(url, headers=headers))
                        return
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.05)

        await first.close()
        await is_admitted_soon()
        dead = front_ends(server)  # listed once: the first may be gone before a second look
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while {*dead} & {*front_ends(server)}:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.05)
        await has_two_front_ends(server)
        for _ in "12":  # the sessions of the dead have come back
            await is_admitted_soon()


async def test_an_ephemeral_key_is_good_at_every_front_end(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(format_key(KeyEntry("alice", digest_of("secret"))) + "\n")
    async with serve_process("--front-ends", "2", "--slots", "8", "--api-keys", str(keys)) as server:
        url = f"{server.url}/v1/realtime"
        headers = {"Authorization": "Bearer secret", "Connection": "close"}
        async with server.http.post(f"{url}/client_secrets", headers=headers) as response:
            value = (await response.json())["value"]
        async with AsyncExitStack() as stack:
            for _ in range(6):  # connections go to the front end that has the fewest
                headers = {"Authorization": f"Bearer {value}"}
                ws = await stack.enter_async_context(server.http.ws_connect(url, headers=headers))
                assert (await ws.receive_json())["type"] == "session.created"
            assert min((await shares(server)).values()) >= 2  # both have read it


@pytest.mark.parametrize("has_file", [False, True])
async def test_a_keys_day_is_that_of_all_front_ends(tmp_path: Path, has_file: bool) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(format_key(KeyEntry("alice", digest_of("secret"), seconds=2)) + "\n")
    options = ("--front-ends", "2", "--slots", "8", "--api-keys", str(keys))
    async with serve_process(*options, *(("--usage", str(tmp_path / "usage")) if has_file else ())) as server:
        headers, url = {"Authorization": "Bearer secret"}, f"{server.url}/api/chat"
        async with AsyncExitStack() as stack:
            talk = f"{url}?{EXTENDED}"
            calls = [
                Client(await stack.enter_async_context(server.http.ws_connect(talk, headers=headers)))
                for _ in "12"  # one on each front end
            ]
            for call in calls:
                await call.event("ready")
                await call.speak(speech(15))  # 1.2 s
                while (await call.reply())[0].frame < 14:
                    pass

        async def call_again() -> None:
            async with server.http.ws_connect(url, headers=headers):
                await asyncio.sleep(0.05)

        async def call_until_refused() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:  # until both calls are over
                    await call_again()

        for _ in range(4):  # on whichever front end
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await call_until_refused()
            assert refused.value.status == 429


async def test_places_in_the_queue_are_those_of_the_whole_server() -> None:
    async with serve_process("--front-ends", "2", "--slots", "1") as server, AsyncExitStack() as stack:
        query = f"{EXTENDED}&wait=60"
        first = await stack.enter_async_context(server.call(query))
        await first.event("ready")
        waiting = []
        for ahead in range(3):
            client = await stack.enter_async_context(server.call(query))
            assert (await client.event("queued")).fields["ahead"] == ahead
            waiting.append(client)
        await first.send(events.bye())
        await waiting[0].event("ready")
        assert (await waiting[1].event("queued")).fields["ahead"] == 0
        assert (await waiting[2].event("queued")).fields["ahead"] == 1
