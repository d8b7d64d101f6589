"""An engine for each device: calls are spread, and the end of one affects no other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antiphon.config import ModelConfig, ServerConfig
from antiphon.errors import ConfigError
from antiphon.protocol import moshi
from antiphon.serve.hosting.main import front_ends_of
from antiphon.serve.operator import drain
from tests.serve.encrypted import TLS
from tests.serve.harness import PATIENCE_S, Client, Closed, speech
from tests.serve.process import ServerProcess, children_of, serve_process
from tests.serve.resuming import QUERY, MovingCaller, assert_same
from tests.support.null_models import DUPLEX

pytestmark = pytest.mark.product
DEVICES = tuple(f"null:{number}" for number in range(8))
FRAMES = 60
JSON = {"Accept": "application/json"}
CALM = ("--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=10000")


async def sessions(server: ServerProcess) -> Counter[str]:
    """Calls by the engine that has them."""
    async with server.http.get(f"{server.url}/metrics") as response:
        text = await response.text()
    line = re.compile(r'^antiphon_active_sessions\{engine="([^"]+)",model="[^"]+"\} (\S+)', re.MULTILINE)
    return Counter({engine: int(float(count)) for engine, count in line.findall(text)})


async def until_sessions(server: ServerProcess, wanted: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await sessions(server) != wanted:  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.05)


async def until_engines(server: ServerProcess, wanted: int) -> None:
    """Until `/healthz`, always with 200, names so many: each front end hears of an end by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with server.http.get(f"{server.url}/healthz", headers=JSON) as response:
                assert response.status == 200
                if len(json.loads(await response.text())["engines"]) == wanted:
                    return
            await asyncio.sleep(0.05)


async def is_answered(client: Client) -> bool:
    """Whether a frame is answered; the call has ended otherwise."""
    with contextlib.suppress(ConnectionError):
        await client.speak(speech(1))
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(message := await client.receive(), moshi.StampedAudio | Closed):
            pass
    return not isinstance(message, Closed)


def test_devices_are_listed_or_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.config.list_gpus", lambda: [object()] * 8)
    assert ServerConfig(device="cuda:all").devices == tuple(f"cuda:{number}" for number in range(8))
    assert ServerConfig(device="cuda:1,cuda:3").devices == ("cuda:1", "cuda:3")
    assert (ServerConfig(device="cuda").devices, ServerConfig().devices) == (("cuda",), (None,))
    assert front_ends_of(ServerConfig(device="cuda:all"), cpus=20) == 12
    assert front_ends_of(ServerConfig(device="cuda:all", front_ends=3), cpus=20) == 3
    with pytest.raises(ConfigError, match="names a device twice"):
        _ = ServerConfig(device="cuda:0,cuda:0").devices
    entries = tuple(ModelConfig(model=name, device="null:0,null:1") for name in ("echo", "tiny"))
    several = ServerConfig(device="null:0,null:1", models=entries).of_engine(1)
    assert {several.device, *(entry.device for entry in several.served)} == {"null:1"}
    with pytest.raises(ConfigError, match="but echo has a device of its own"):
        _ = ServerConfig(device="cuda:all", models=(ModelConfig(model="echo", device="cpu"),)).devices
    one = ServerConfig(models=(ModelConfig(model="echo", device="cpu"),))
    assert one.of_engine(0) == one
    monkeypatch.setattr("antiphon.config.list_gpus", list)
    with pytest.raises(ConfigError, match="cuda:all was requested, but the driver offers no GPU"):
        _ = ServerConfig(device="cuda:all").devices


@pytest.mark.parametrize("front_ends", ["1", "2"])
async def test_eight_devices_share_the_calls_and_one_that_ends_takes_only_its_own(front_ends: str) -> None:
    options = ("--device", ",".join(DEVICES), "--front-ends", front_ends, "--slots", "2", *CALM)
    async with serve_process(*options) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.call("ext=1&format=pcm_f32le")) for _ in range(16)]
        assert all([await is_answered(client) for client in clients])
        await until_sessions(server, dict.fromkeys(DEVICES, 2))
        refused = await stack.enter_async_context(server.call("ext=1&format=pcm_f32le"))
        await refused.closed()
        engines = [pid for pid, words in children_of(server.process.pid).items() if " engine " in words]
        assert len(engines) == 8
        os.kill(engines[3], signal.SIGKILL)
        answered = [await is_answered(client) for client in clients]
        assert Counter(answered) == {True: 14, False: 2}
        await until_engines(server, 7)


async def test_an_engine_that_leaves_hands_its_calls_to_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("".join((TLS / name).read_text() for name in ("test-cert.pem", "test-key.pem")))
    options = ("--device", "null:0,null:1", "--front-ends", "1", "--slots", "8", "--fixed-batch", *CALM)
    shared = ("--worker", "a", "--hand-over-secret", str(secret))

    def caller_of(server: ServerProcess, sends_until: int) -> MovingCaller:
        url = f"{server.url}/api/chat?{QUERY}&text_seed=5&audio_seed=7"
        caller = MovingCaller(server.http, url, speech(FRAMES))
        caller.workers, caller.sends_until = {"a": server.url}, sends_until
        return caller

    async with serve_process(*options, *shared, spec="DUPLEX") as server:
        whole = caller_of(server, FRAMES)
        await whole.run()
        await until_sessions(server, {"null:0": 0, "null:1": 0})
        callers = [caller_of(server, 20) for _ in range(4)]
        running = [asyncio.ensure_future(caller.run()) for caller in callers]
        for caller in callers:
            await caller.until_answered(20 - DUPLEX.delay_frames)
        await until_sessions(server, {"null:0": 2, "null:1": 2})
        said = [server.url, "--hand-over", server.url, "--secret", str(secret), "--engine", "null:1"]
        assert await asyncio.to_thread(drain.main, said) == 0
        assert capsys.readouterr().out == "draining; calls that can be resumed go to a\n"
        await until_sessions(server, {"null:0": 4, "null:1": 0})
        for caller in callers:
            caller.go_on()
        await asyncio.gather(*running)
        assert Counter(caller.thread.moves for caller in callers) == {0: 2, 1: 2}
        with pytest.raises(Exception, match="no engine of its own has the device 'null:9'"):
            await asyncio.to_thread(drain.main, [*said[:-1], "null:9"])
    for caller in callers:
        assert_same(caller, whole)
