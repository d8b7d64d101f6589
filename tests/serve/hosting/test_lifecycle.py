"""The end of the process: drained, timed out, interrupted, or with a lost device."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest

from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.protocol import events
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.front_end import drain
from antiphon.serve.hosting.ports import tls_context
from antiphon.supervisor.child import MEANINGLESS
from tests.serve.encrypted import TLS, TLS_GOODBYE
from tests.serve.harness import PATIENCE_S, serving, speech
from tests.serve.process import REPOSITORY, START_S, ServerProcess, said, serve_process, start_process
from tests.support.calm import SERVE
from tests.support.launch import free_port

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

EXTENDED = "ext=1&format=pcm_f32le"


async def logged(server: ServerProcess, words: str) -> None:
    """Wait for the next line of the log with these words."""
    assert server.process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while words not in (line := (await server.process.stderr.readline()).decode()):
            assert line, "the log has ended"


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(params=["0", "1"], ids=["one-process", "several"])
def split(request: pytest.FixtureRequest) -> tuple[str, str]:
    """In one process, and in several."""
    return "--front-ends", str(request.param)


async def test_sigterm_lets_a_call_finish_and_takes_no_new_one(split: tuple[str, str]) -> None:
    async with serve_process(*split) as server, server.call(EXTENDED) as client:
        await client.event("ready")
        async with server.call(f"{EXTENDED}&wait=60") as queued:
            await queued.event("queued")
            server.signal(signal.SIGTERM)
            assert (await client.event("draining")).fields["deadline_s"] == 60.0
            assert (await queued.event("error")).fields["code"] == 1001
            assert (await queued.closed()).code == 1001
        await server.reaches("/readyz", 503)
        assert await server.status("/healthz") == 200
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with server.call(""):
                pass
        assert refused.value.status == 503
        assert refused.value.headers is not None
        assert refused.value.headers["Retry-After"] == "10"
        await client.speak(speech(2))
        await client.reply()
        assert server.process.returncode is None
        await client.send(events.bye())
        assert (await client.closed()).code == 1000
        assert await server.exit_code() == 0


async def test_what_is_left_at_the_deadline_is_closed_with_1001(split: tuple[str, str]) -> None:
    async with serve_process(*split, "--drain-timeout-s", "0.3") as server, server.call(EXTENDED) as client:
        await client.event("ready")
        server.signal(signal.SIGTERM)
        error = await client.event("error")
        assert error.fields == {
            "code": 1001,
            "message": "the server is shutting down; calls had 0.3 s to finish",
        }
        closed = await client.closed()
        assert (closed.code, closed.reason) == (1001, error.fields["message"])
        assert await server.exit_code() == 0


async def test_a_second_signal_ends_it_at_once(split: tuple[str, str]) -> None:
    async with serve_process(*split) as server, server.call("") as stock:
        await stock.receive()
        server.signal(signal.SIGINT)
        await server.reaches("/readyz", 503)
        server.signal(signal.SIGINT)
        closed = await stock.closed()
        reason = "the server is shutting down; a second signal ends the calls early"
        assert (closed.code, closed.reason) == (1001, reason)
        assert await server.exit_code() == 130
        log = await server.log()
        assert "a second signal ends the calls at once" in log
        assert "event=drained cut=1" in log
        assert "Traceback" not in log


@pytest.mark.parametrize("split", ["0", "2"], indirect=True)
async def test_other_signals_end_nothing(split: tuple[str, str]) -> None:
    """Neither in the process that was started nor in those that it has started."""
    async with serve_process(*split) as server, server.call(EXTENDED) as client:
        await client.event("ready")
        for pid in (server.process.pid, *children(server.process.pid)):
            for number in (signal.SIGHUP, *MEANINGLESS):
                os.kill(pid, number)
        await client.speak(speech(2))
        await client.reply()
        await client.send(events.bye())
        assert (await client.closed()).code == 1000
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0
        log = await server.log()
    assert log.count('event="keys and certificates read again"') == max(1, int(split[1]))


@pytest.mark.parametrize("split", ["0", "2"], indirect=True)
async def test_sighup_rereads_keys_and_the_certificate(split: tuple[str, str], tmp_path: Path) -> None:
    certificate, key, keys = (tmp_path / name for name in ("cert.pem", "key.pem", "keys.txt"))
    shutil.copy(TLS / "test-cert.pem", certificate)
    shutil.copy(TLS / "test-key.pem", key)
    keys.write_text(format_key(KeyEntry("alice", digest_of("alice"))))
    options = ("--tls-cert", certificate, "--tls-key", key, "--api-keys", keys)
    async with serve_process(*split, *map(str, options)) as server:
        address = "127.0.0.1", int(server.url.rpartition(":")[2])

        async def reread(line: str) -> str:
            """The certificate that is shown after SIGHUP, once every front end has logged ``line``."""
            server.signal(signal.SIGHUP)
            for _ in range(max(1, int(split[1]))):
                await logged(server, line)
            return await asyncio.to_thread(ssl.get_server_certificate, address)

        before = certificate.read_text()
        assert await reread("keys and certificates read again") == before
        shutil.copy(TLS / "other-cert.pem", certificate)  # its key is not there yet
        assert await reread("certificate not read again") == before
        shutil.copy(TLS / "other-key.pem", key)
        assert await reread("keys and certificates read again") == certificate.read_text() != before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_while_the_model_is_loading(
    split: tuple[str, str], number: signal.Signals, code: int
) -> None:
    process = await start_process(*split, make_s=60.0)
    await asyncio.wait_for(said(process, "making the backend"), START_S)
    process.send_signal(number)
    _, stderr = await asyncio.wait_for(process.communicate(), START_S)
    assert process.returncode == code
    (line,) = stderr.decode().splitlines()
    assert "level=warning event=experiment input_frames=400 output_frames=400 late_refuse_fraction=1" in line


async def test_a_trace_that_was_not_completed_is_written_at_the_end(
    tmp_path: Path, split: tuple[str, str]
) -> None:
    trace = tmp_path / "trace.json"
    async with serve_process(*split, "--trace", "1000", "--trace-file", str(trace)) as server:
        async with server.call(EXTENDED) as client:
            await client.event("ready")
            await client.speak(speech(2))
            await client.reply()
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    assert json.loads(trace.read_text())["traceEvents"]


async def test_a_lost_device_ends_the_process_with_70(split: tuple[str, str]) -> None:
    async with serve_process(*split, lose_device_at=3) as server, server.call("") as stock:
        await stock.receive()
        async with server.http.ws_connect(f"{server.url}/api/chat?{EXTENDED}&wait=9") as ws:
            await ws.receive()
        await stock.ws.close()
        async with server.call(f"{EXTENDED}&wait=9") as client:
            await client.event("ready")
            await client.speak(speech(6))
            error = await client.event("error")
            assert error.fields["code"] == 1011
            assert "planned to be lost at tick 3" in error.fields["message"]
            assert (await client.closed()).code == 1011
        assert await server.exit_code() == 70
        log = await server.log()
        assert 'event="device lost" reason="the null device was planned to be lost at tick 3' in log


async def test_a_trace_of_every_stage_is_written(tmp_path: Path, split: tuple[str, str]) -> None:
    trace = tmp_path / "trace.json"
    async with serve_process(*split, "--trace", "3", "--trace-file", str(trace)) as server:
        async with server.call("ext=1&format=pcm_f32le") as client:
            await client.event("ready")
            for index in range(5):
                await client.speak(speech(1, index))
                await client.reply()
        async with asyncio.timeout(120.0):
            while not trace.exists():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        assert server.process.returncode is None
        server.signal(signal.SIGTERM)
        assert await server.exit_code() == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"decode", "encode", "send", "step"} <= names


@TLS_GOODBYE
async def test_tls(split: tuple[str, str]) -> None:
    options = ("--tls-cert", str(TLS / "test-cert.pem"), "--tls-key", str(TLS / "test-key.pem"))
    async with serve_process(*split, *options) as server:
        assert server.url.startswith("https://")
        async with server.http.ws_connect(f"{server.url}/api/chat", ssl=False) as ws:
            assert (await ws.receive()).data == bytes(9)


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    assert tls_context(None, None) is None
    with pytest.raises(ConfigError, match=r"cannot read .*none\.pem: No such file or directory"):
        tls_context(str(tmp_path / "none.pem"), str(TLS / "test-key.pem"))
    with pytest.raises(ConfigError, match=r"other-key\.pem: the key belongs to another certificate"):
        tls_context(str(TLS / "test-cert.pem"), str(TLS / "other-key.pem"))


async def run(*options: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(*SERVE, *options),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate()
    return process.returncode, stderr.decode()


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = await run(
            "--backend", "null", "--slots", "1", "--port", str(port), "--log-level", "error"
        )
    assert code == 2
    assert stderr.splitlines()[-1].startswith(f"antiphon: cannot listen on 127.0.0.1 port {port}: ")
    assert stderr.endswith("choose another with --port\n")
    assert "Traceback" not in stderr


async def test_a_taken_port_is_found_before_any_model_is_looked_at() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, stderr = await run("--model", "./no-such-model", "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "choose another with --port" in stderr
    assert "no-such-model" not in stderr


@pytest.mark.parametrize("front_ends", ["0", "1"])
async def test_a_port_is_held_while_the_models_load(front_ends: str) -> None:
    port = str(free_port())
    first = await start_process("--port", port, "--front-ends", front_ends, make_s=60.0)
    try:
        await asyncio.wait_for(said(first, "making the backend"), START_S)
        code, stderr = await run("--model", "./no-such-model", "--port", port, "--front-ends", front_ends)
    finally:
        first.send_signal(signal.SIGTERM)
        await asyncio.wait_for(first.communicate(), START_S)
    assert code == 2
    assert "choose another with --port" in stderr
    assert "no-such-model" not in stderr


async def test_a_server_begins_again_where_one_has_just_ended(split: tuple[str, str]) -> None:
    port = str(free_port())
    options = (*split, "--drain-timeout-s", "0.3", "--port", port)
    async with serve_process(*options) as server, server.call("") as stock:
        await stock.receive()
        server.signal(signal.SIGTERM)  # it closes the connection first, so its address is kept a while
        await stock.closed()
        await server.exit_code()
    async with serve_process(*split, "--port", port) as server:
        assert await server.status("/healthz") == 200


async def test_an_address_of_another_machine_gets_the_remedy_for_the_host() -> None:
    code, stderr = await run("--backend", "null", "--slots", "1", "--host", "192.0.2.1", "--port", "0")
    assert code == 2
    assert stderr.splitlines()[-1] == (
        "antiphon: cannot listen on 192.0.2.1 port 0: Cannot assign requested address; choose an address of "
        "this machine with --host: 127.0.0.1 for itself, 0.0.0.0 for others too"
    )


async def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    code, stderr = await run("--backend", "null", "--slots", "1", "--host", "nowhere.invalid")
    assert code == 2
    last = stderr.splitlines()[-1]
    assert last.startswith("antiphon: cannot listen on nowhere.invalid: ")
    assert last.endswith("with --host")
    assert "Traceback" not in stderr


async def test_a_malformed_request_leaves_no_query_in_the_log() -> None:
    requests = (
        b"GET /api/chat?text=secret HTTP/9.x\r\n\r\n",
        b"GET /api/chat?text=secret HTTP/1.1\r\nHost: a\r\nContent-Length: secret\r\n\r\n",
        b"GET /api/chat?text=secret HTTP/1.1\r\nHost: a\r\nX: " + b"secret" * 4000 + b"\r\n\r\n",
        b"GET http://[secret/ HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    async with serve_process("--log-level", "debug") as server:
        port = int(server.url.rsplit(":", 1)[1])
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert (await reader.readline()).split()[1] == b"400"
            writer.close()
        server.signal(signal.SIGTERM)
        await server.exit_code()
        log = await server.log()
    assert 'event="connection failed" kind=malformed' in log
    assert "level=error" not in log
    assert "secret" not in log
    assert "Traceback" not in log


async def test_a_call_that_cannot_be_told_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Call, deadline_s: float) -> None:
        raise ValueError(f"no word for {deadline_s}")

    monkeypatch.setattr(Call, "announce_draining", broken)
    async with serving() as server, server.caller() as client:
        ending = asyncio.create_task(drain(server.app, 0.1, is_cut=lambda: False, log=Log()))
        assert (await client.closed()).code == 1001
        await ending


async def test_a_model_that_is_not_there_is_one_sentence() -> None:
    code, stderr = await run("--model", "ecko")
    assert code == 2
    experiment, refusal = stderr.splitlines()
    assert "event=experiment" in experiment
    assert refusal.startswith("antiphon: no model 'ecko'")
