"""Routing of callers by path, model and free rows, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection

import aiohttp
import msgpack

from tests.compose.callers import Caller, calling, chat, shares, used_rows
from tests.compose.conftest import Start
from tests.protocol.test_media_streams import TWILIO
from tests.support.stack.composefile import services
from tests.support.stack.process import POLL_S
from tests.support.stack.stack import START_S, Stack, Worker
from tests.support.text_model import TextModelServer, says

SERVED = ("duplex", "echo", "stt", "tts", "agent")


async def model_at(stack: Stack, path: str) -> str:
    status, body, _ = await stack.get(stack.url + path)
    assert status == 200, (path, status, body)
    name: str = json.loads(body)["model"]["name"]
    return name


async def test_by_path_by_model_and_what_is_not_there(start: Start) -> None:
    async with start(duplex=1, echo=1) as stack:
        for path in ("/api/build_info", "/m/duplex/api/build_info", "/m/tiny/api/build_info?x=1"):
            assert await model_at(stack, path) == "tiny"
        for path in (
            "/m/echo/api/build_info",
            "/api/build_info?a=b&model=echo",
            "/m/echo/api/build_info?model=x",
        ):
            assert await model_at(stack, path) == "echo"
        for path in ("/api/chat?model=nobody", "/m/nobody/api/chat", "/m/no%20body%0d%0a/", "/?model=echo2"):
            status, body, headers = await stack.get(stack.url + path)
            assert (status, headers["Content-Type"]) == (404, "text/plain")
            names = [
                f"{word} ({services()['balancer'].environment[f'{word.upper()}_MODEL']})" for word in SERVED
            ]
            assert body == f"no such model here; there is: {', '.join(names)}\n"
        # Clients that name the model in the path, and the page, which is the same for all.
        status, body, _ = await stack.get(f"{stack.url}/m/echo")
        assert (status, "<title>" in body) == (200, True)
        # With TLS, as from outside.
        secure = f"https://127.0.0.1:{stack.https_port}"
        status, body, _ = await stack.get(f"{secure}/m/echo/api/build_info")
        assert (status, json.loads(body)["model"]["name"]) == (200, "echo")
        # What is for operators is not for callers, by whatever way they ask.
        for path in (
            "/metrics",
            "/m/echo/metrics",
            "/metrics?model=echo",
            "/api/hand-over",
            "/api/drain",
            "/api/canary",
        ):
            assert (await stack.get(stack.url + path))[0] == 404
        for path in ("/%6detrics", "/m/echo/%6Detrics", "/%6d/tiny/metrics"):
            assert await asyncio.to_thread(as_spelt, stack.http_port, path) == (404, b"not here\n"), path
        await access_log_holds_no_query(stack)


def as_spelt(port: int, path: str) -> tuple[int, bytes]:
    """The answer to a path that is sent as it is: aiohttp would mend its spelling."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=START_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


async def access_log_holds_no_query(stack: Stack) -> None:
    secret = "auth_id=secret&email=ada%40example.org&text_prompt=quiet"
    assert (await stack.get(f"{stack.url}/readyz?{secret}&model=echo"))[0] == 200
    await stack.balancer.says('path="/readyz"')
    text = stack.balancer.text() + "".join(worker.log.read_text() for worker in stack.workers)
    for word in ("secret", "ada", "example", "quiet", "nobody%", "?"):
        assert word not in text


async def test_calls_are_shared_out_by_free_rows_until_all_are_full(start: Start) -> None:
    async with start(duplex=3) as stack:
        async with calling(stack, 5) as callers:
            taken = await shares(stack)
            assert sorted(taken) == [1, 2, 2]  # none was refused, and none was left alone
            leave = asyncio.Event()
            stock = [asyncio.create_task(stock_call(stack, leave)) for _ in range(3)]  # for one row
            for refused in itertools.islice(asyncio.as_completed(stock, timeout=START_S), 2):
                status, retry_after = await refused
                assert status == 503
                assert int(retry_after) >= 1
            leave.set()
            assert sorted([(await call)[0] for call in stock]) == [101, 503, 503]
            assert all([(await caller.finish()).lost == 0 for caller in callers])
        # With all rows free again, so is the load balancer.
        await stack.sees("duplex", {worker.host: 2 for worker in stack.workers})


async def stock_call(stack: Stack, leave: asyncio.Event | None = None) -> tuple[int, str]:
    """A client as they are, without the extension; when it is let in, it stays until it is to leave."""
    try:
        async with stack.http.ws_connect(f"{stack.url}/api/chat".replace("http", "ws")):
            if leave is not None:
                await leave.wait()
            return 101, ""
    except aiohttp.WSServerHandshakeError as error:
        return error.status, dict(error.headers or {})["Retry-After"]


async def test_when_all_are_full_who_can_wait_waits_at_a_worker(start: Start) -> None:
    async with start(duplex=1) as stack, calling(stack, 2) as callers:
        await stack.sees("duplex", {"127.0.1.1": 0})
        status, body, headers = await stack.get(f"{stack.url}/api/build_info")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert body == "every worker of this model is full, leaving or down; try again soon\n"
        (worker,) = stack.of("duplex")
        page = chat(stack).replace("ws", "http", 1)
        status, body, headers = await stack.get(page)  # as a page asks why its socket failed
        assert (status, json.loads(body)["code"]) == (503, 1013)
        assert int(headers["Retry-After"]) > 5  # the worker's own estimate
        waiting = Caller(chat(stack, query="&wait=120"), stack.http)
        async with asyncio.timeout(START_S):
            while "callers waiting: 1" not in (await stack.get(f"{worker.url}/readyz"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
        refused = await Caller(chat(stack), stack.http).result()
        words = "all 2 rows are in use; callers waiting: 1 of at most"
        assert refused.record.detail.startswith(words), (refused.record.detail, stack.balancer.text())
        await callers[0].finish()
        await waiting.hears(2)
        assert (await waiting.finish()).lost == 0
        worker.kill()
        await stack.sees("duplex-queue", {})
        status, body, headers = await stack.get(page)
        assert (status, headers["Retry-After"]) == (503, "5")
        assert (headers["Content-Type"], body) == (
            "text/plain",
            "no worker of this model is running; try again soon\n",
        )


async def test_a_worker_that_says_no_is_not_the_last_word(start: Start) -> None:
    """Without its agents the load balancer knows of no rows: all rests on asking another one after a 503."""
    async with start(duplex=2, agents=False) as stack:
        first, second = stack.of("duplex")
        async with filled(stack, first):
            url = f"{stack.url}/api/chat".replace("http", "ws")
            async with stack.http.ws_connect(url):  # at either; the next comes to the one with fewer calls
                assert await stock_call(stack) == (101, "")
            await stack.balancer.says("status=101 .* retries=[+]1 ")
            async with filled(stack, second):
                status, retry_after = await stock_call(stack)
                assert status == 503
                assert int(retry_after) > 5  # a worker's own estimate: the load balancer's is 5
                await stack.balancer.says("status=503 .* retries=[+]4 ")


@asynccontextmanager
async def filled(stack: Stack, worker: Worker) -> AsyncIterator[None]:
    """A worker whose rows are all taken by calls that came directly to it."""
    async with asyncio.timeout(START_S):
        while await used_rows(worker, stack.http):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(POLL_S)
    url = f"{worker.url}/api/chat?ext=1&format=pcm_s16le".replace("http", "ws", 1)
    callers = [Caller(url, stack.http) for _ in range(2)]
    try:
        for caller in callers:
            await caller.hears(1)
        yield
    finally:
        for caller in callers:
            caller.task.cancel()
        await asyncio.gather(*(caller.task for caller in callers), return_exceptions=True)


async def test_text_to_speech_by_its_path_and_told_in_its_own_words_when_full(start: Start) -> None:
    values = {"TTS_MODEL": "tiny-tts", "TTS_BACKEND": "onnx", "TTS_SLOTS": "2"}
    async with start(values=values, tts=1) as stack:
        for path in ("/v1/voices", "/v1/audio/voices"):
            assert (await stack.get(stack.url + path))[0] == 200
        async with stack.http.post(f"{stack.url}/v1/audio/speech", json={}) as refused:
            assert refused.status == 400, "another service has no model for it: 404"
        for kind in ("asr", "tts"):
            await stack.get(f"{stack.url}/api/speech/{kind}")
        await stack.balancer.says('path="/api/speech/asr" status=503 service=stt-queue ')
        await stack.balancer.says('path="/api/speech/tts" status=426 service=tts ')
        url = f"{stack.url}/m/tts/api/tts_streaming?format=PcmMessagePack".replace("http", "ws")
        async with stack.http.ws_connect(url) as first, stack.http.ws_connect(url) as second:
            for socket in (first, second):
                assert msgpack.unpackb((await socket.receive()).data)["type"] == "Ready"
            await stack.sees("tts", {"127.0.1.1": 0})
            async with stack.http.ws_connect(url.replace("/m/tts", "")) as third:
                told = msgpack.unpackb((await third.receive()).data)
                assert (told["type"], told["message"]) == ("Error", "no free channels")


async def test_an_agent_by_its_name_and_by_the_paths_of_unmute(start: Start) -> None:
    async with TextModelServer(usual=says("yes")).serve() as text:
        values = {
            "AGENT_STT_MODEL": "tiny-stt",
            "AGENT_TTS_MODEL": "tiny-tts",
            "AGENT_LLM": text.url,
            "AGENT_SLOTS": "1",
        }
        async with start(values=values, agent=1) as stack:
            status, body, _ = await stack.get(f"{stack.url}/v1/models")
            assert (status, [it["id"] for it in json.loads(body)["data"]]) == (200, ["assistant"])
            for name in ("agent", "assistant"):
                status, body, _ = await stack.get(f"{stack.url}/v1/models/{name}")
                assert (status, json.loads(body)["id"]) == (200, "assistant")
                status, body, _ = await stack.get(f"{stack.url}/m/{name}/unmute/v1/health")
                assert (status, json.loads(body)["ok"]) == (200, True)
            assert (await stack.get(f"{stack.url}/unmute/v1/voices"))[0] == 200
            url = stack.url.replace("http", "ws", 1)
            async with stack.http.ws_connect(f"{url}/v1/realtime?model=assistant") as first:
                assert (await first.receive_json())["type"] == "session.created"
                await stack.sees("agent", {"127.0.1.1": 0})
                async with stack.http.ws_connect(f"{url}/unmute/v1/realtime") as second:
                    assert (await second.receive_json())["error"]["type"] == "fatal"
            await stack.sees("agent", {"127.0.1.1": 1})
            async with stack.http.ws_connect(f"{url}/m/assistant/twilio") as telephone:
                await telephone.send_json({**TWILIO, "start": {}})
                await stack.sees("agent", {"127.0.1.1": 0})  # it has a row of both models
