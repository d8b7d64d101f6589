"""Requests between workers over HTTP: authorization, limits, and the message of every refusal."""

from __future__ import annotations

import asyncio
import io
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError, HandOverError
from antiphon.serve.access.other_worker import OtherWorker, check_target
from antiphon.serve.access.shared_secret import CERTIFICATE, HEADER, SharedSecret
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.hosting.options import parse_command_line
from antiphon.serve.hosting.ports import port_tls
from antiphon.serve.operator.drain import check_pair, wait_for_end
from antiphon.serve.routes import hand_over
from antiphon.supervisor.messages import Message, Taken
from antiphon.supervisor.shared import KEPT_REQUESTS, SeenRequests, SharedState
from tests.serve.encrypted import TLS
from tests.serve.harness import PATIENCE_S, Server, serving
from tests.support.held import largest_held

SECRET = SharedSecret(b"a secret of two workers")
PATH = "/api/hand-over"


@asynccontextmanager
async def worker(folder: Path, **settings: Any) -> AsyncIterator[Server]:
    """A server that takes calls."""
    file = folder / "secret"
    file.write_bytes(SECRET.key + b"\n")
    async with serving(hand_over_secret=str(file), worker="b", **settings) as server:
        yield server


async def ask(
    server: Server, body: bytes, *, path: str = PATH, header: str | None = None, tag: bytes | None = None
) -> tuple[int, str]:
    """POST a body that is signed, unless something about it is to be wrong."""
    if header is None:
        header = SECRET.sign("POST", path, len(body), time.time(), worker="b")
    if tag is None:
        signing = SECRET.tag(header)
        signing.update(body)
        tag = signing.digest()
    async with server.http.post(
        server.url(path), data=io.BytesIO(body + tag), headers={HEADER: header}
    ) as response:
        return response.status, (await response.json()).get("error", "")


async def test_a_server_without_a_secret_has_no_such_routes() -> None:
    async with serving() as server:
        for path in (PATH, "/api/drain"):
            async with server.http.post(server.url(path), data=b"") as response:
                assert response.status == 404


async def test_who_has_no_secret_is_refused_before_a_body_is_read(tmp_path: Path) -> None:
    other = SharedSecret(b"the secret of somebody else")
    now_s = time.time()
    wrong = "the signature is not one for the worker 'b' and its secret (hand_over_secret)"
    sign = partial(SECRET.sign, worker="b")
    async with worker(tmp_path) as server:
        for header, words in (
            ("", wrong),
            ("v2 x y z", wrong),
            ("v2 nan 00 ff", wrong),
            (other.sign("POST", PATH, 4, now_s, worker="b"), wrong),
            (SECRET.sign("POST", PATH, 4, now_s, worker="a"), wrong),
            (sign("GET", PATH, 4, now_s), wrong),
            (sign("POST", "/api/drain", 4, now_s), wrong),
            (sign("POST", PATH, 5, now_s), wrong),
        ):
            assert await ask(server, b"call", header=header, tag=bytes(32)) == (403, words)
        old = sign("POST", PATH, 4, now_s - 900)
        status, words = await ask(server, b"call", header=old, tag=bytes(32))
        assert status == 403
        assert re.fullmatch(r"the request is 9\d\d s old, or the clocks differ; the limit is 60 s", words)
        assert await ask(server, b"call", tag=bytes(32)) == (403, "the body does not match its signature")


async def test_what_is_no_call_or_too_much_is_refused(tmp_path: Path) -> None:
    async with worker(tmp_path, limits={"max_hand_overs": 1}) as server:
        limit = server.engine.call_bytes
        assert await ask(server, b"call") == (
            409,
            "4 bytes are no state of a row: a header of 1819042147, the limit is 4194304",
        )
        assert await ask(server, bytes(limit + 1)) == (
            403,
            f"a body of {limit + 1} bytes, the limit is {limit}",
        )
        path = PATH + "?model=nobody"
        status, words = await ask(server, b"call", path=path)
        assert (status, words.startswith("no model 'nobody'")) == (404, True), words
        server.services.arrivals = 1
        assert await ask(server, b"call") == (
            503,
            "1 calls are arriving, which is the limit (max_hand_overs)",
        )


async def test_a_call_that_takes_too_long_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(_call: bytes) -> None:
        await asyncio.Event().wait()

    async with worker(tmp_path, limits={"hand_over_timeout_s": 0.1}) as server:
        monkeypatch.setattr(type(server.services.models.first.engine), "take_call", lambda _, it: forever(it))
        assert await ask(server, b"call") == (503, "the call did not arrive within 0.1 s")


async def test_a_worker_says_what_its_calls_are_of_and_drains_only_to_an_address(tmp_path: Path) -> None:
    async with worker(tmp_path) as server:
        began: list[str] = []
        server.services.begin_drain = lambda target, engine: began.append(target)
        asked = OtherWorker(server.url("").rstrip("/"), SECRET, timeout_s=PATIENCE_S)
        facts = await asyncio.to_thread(asked.facts)
        assert facts["worker"] == "b"
        assert facts["models"]["null-echo"]["backend"].startswith("null numpy ")
        assert await ask(server, b"{}", path="/api/drain") == (
            400,
            'the body is not {"target": "https://HOST:PORT"}',
        )
        words = re.escape("answered 400: http://10.0.0.1: calls leave this machine over TLS only")
        with pytest.raises(HandOverError, match=words):
            await asyncio.to_thread(asked.drain, "http://10.0.0.1")
        itself = server.url("").rstrip("/")
        with pytest.raises(HandOverError, match=re.escape(f"answered 400: {itself} is this worker")):
            await asyncio.to_thread(asked.drain, itself)
        assert await asyncio.to_thread(asked.drain, "https://10.0.0.1") == {"worker": "b"}
        for model in server.services.models:
            model.engine.drain()
        with pytest.raises(HandOverError, match="answered 503: this worker is shutting down already"):
            await asyncio.to_thread(asked.drain, "https://10.0.0.2")
        assert began == ["https://10.0.0.1"]


async def test_a_worker_that_came_back_with_another_name_is_asked_for_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods: list[str] = []
    send = HTTPConnection.putrequest

    def sent(self: HTTPConnection, method: str, path: str) -> None:
        methods.append(method)
        send(self, method, path)

    monkeypatch.setattr(HTTPConnection, "putrequest", sent)
    async with worker(tmp_path) as server:
        server.services.begin_drain = lambda *_: None
        asked = OtherWorker(server.url("").rstrip("/"), SECRET, timeout_s=PATIENCE_S)
        for name, wanted in (("b", "GET POST"), ("b", "POST"), ("c", "POST GET POST"), ("c", "POST")):
            server.services.config = replace(server.services.config, worker=name)
            methods.clear()
            assert await asyncio.to_thread(asked.drain, "https://10.0.0.1") == {"worker": name}
            assert methods == wanted.split()
        methods.clear()
        with pytest.raises(HandOverError, match=r"answered 403: a body of \d+ bytes, the limit is 4096"):
            await asyncio.to_thread(asked.drain, "x" * 5000)
        assert methods == ["POST", "GET"], "its name is the same: it means what it says"
        with monkeypatch.context() as patch:
            patch.setattr(HTTPConnection, "getresponse", _reset)
            with pytest.raises(HandOverError, match="cannot be reached"):
                await asyncio.to_thread(asked.drain, "https://10.0.0.1")
        methods.clear()
        await asyncio.to_thread(asked.drain, "https://10.0.0.1")
        assert methods == ["GET", "POST"], "it may be another one that answers again"


def _reset(_: HTTPConnection) -> None:
    raise ConnectionResetError(104, "Connection reset by peer")


async def test_a_request_is_taken_once(tmp_path: Path) -> None:
    async with worker(tmp_path) as server:
        header = SECRET.sign("POST", "/api/drain", 2, time.time(), worker="b")
        first = await ask(server, b"{}", path="/api/drain", header=header)
        again = await ask(server, b"{}", path="/api/drain", header=header)
    assert first[0] == 400, "it is read, and says nothing"
    assert again == (403, "this request was received before; each needs its own signature")


async def test_a_request_is_taken_once_by_all_front_ends_of_a_worker(tmp_path: Path) -> None:
    clients = front_end_clients(SharedState(), 2)
    async with worker(tmp_path, client=clients[0]) as one, worker(tmp_path, client=clients[1]) as other:
        header = SECRET.sign("POST", "/api/drain", 2, time.time(), worker="b")
        first = await ask(one, b"{}", path="/api/drain", header=header)
        again = await ask(other, b"{}", path="/api/drain", header=header)
        new = await ask(other, b"{}", path="/api/drain")
    assert again == (403, "this request was received before; each needs its own signature")
    assert first == new == (400, 'the body is not {"target": "https://HOST:PORT"}')


def front_end_clients(shared: SharedState, count: int) -> list[SupervisorClient]:
    """As many front ends of one supervisor."""

    def of(front_end: int) -> SupervisorClient:
        async def answered(message: Message) -> Message:
            reply = shared.handle(front_end, message)
            assert isinstance(reply, Taken)
            return reply

        return SupervisorClient(lambda message: None, answered)

    return [of(number) for number in range(count)]


async def test_a_request_is_not_taken_while_the_supervisor_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: Message) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("antiphon.serve.access.supervisor_client.LEASE_S", 0.05)
    async with worker(tmp_path, client=SupervisorClient(lambda message: None, never)) as server:
        words = "requests could not be compared within 0.05 s; try again in 5 s"
        assert await ask(server, b"{}", path="/api/drain") == (503, words)


def test_what_was_seen_is_forgotten_when_it_is_old_and_many_came_after_it() -> None:
    seen, before = SeenRequests(), "this request was received before; each needs its own signature"
    for number in range(2 * KEPT_REQUESTS):
        assert seen.add(str(number), 1000.0 + number) == ""
    assert largest_held(seen) == KEPT_REQUESTS + 1
    assert seen.add(str(KEPT_REQUESTS), 1e9) == before
    assert seen.add("0", 1e9) == ""
    for number in range(KEPT_REQUESTS, 3 * KEPT_REQUESTS):  # all at once
        assert seen.add(f"at once {number}", 2e9) == ""
    assert largest_held(seen) == 2 * KEPT_REQUESTS


async def test_a_plain_request_of_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "is_loopback", lambda _: False)
    async with worker(tmp_path) as server:
        refusal = await ask(server, b"{}", path="/api/drain")
    assert refusal == (403, "use TLS, or a request from this machine")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "http://b.example:8998",
            "http://b.example:8998: calls leave this machine over TLS only; write https://b.example:8998, "
            "of a worker with --tls-cert and --tls-key, or its --hand-over-port",
        ),
        ("b:8998", "'b:8998' is no address of a worker; write https://HOST:PORT"),
        ("https://b/m/x", "'https://b/m/x' is no address of a worker; write https://HOST:PORT"),
        ("https://b:x", "'https://b:x' is no address of a worker; write https://HOST:PORT"),
        ("https://b:99999", "'https://b:99999' is no address of a worker; write https://HOST:PORT"),
        ("https://[::1", "'https://[::1' is no address of a worker; write https://HOST:PORT"),
        ("https://a@b", "'https://a@b' is no address of a worker; write https://HOST:PORT"),
    ],
)
def test_an_address_that_calls_may_not_go_to(target: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_target(target)
    assert str(error.value) == words


@pytest.mark.parametrize(
    "target", ["https://b.example", "http://127.0.9.1:1", "http://localhost", "http://[::1]:1"]
)
def test_an_address_that_calls_may_go_to(target: str) -> None:
    check_target(target)


def test_workers_that_cannot_exchange_calls_are_told_apart_before_anything_is_drained() -> None:
    identity = {"model": "a1", "backend": "onnx 1", "dtype": "float32", "quantization": "none", "schema": 1}
    ours = {"worker": "a", "models": {"tiny": identity}}
    for theirs, words in (
        ({"worker": "b", "models": {}}, "tiny is not served there; there is: none"),
        (
            {"worker": "b", "models": {"tiny": {**identity, "model": "b2"}}},
            "calls of tiny are of model a1, the other worker has b2",
        ),
        (
            {"worker": "b", "models": {"tiny": {**identity, "backend": "onnx 2"}}},
            "calls of tiny are of backend onnx 1, the other worker has onnx 2",
        ),
        (
            ours,
            "both workers have the name 'a', which a load balancer cannot distinguish: set --worker on each",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            check_pair(ours, theirs)
        assert str(error.value) == words
    assert check_pair(ours, {**ours, "worker": "b"}) == "b"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), 0, "gone\n"),
        (TimeoutError("timed out"), 1, "still running after 0.5 s\n"),
        (None, 1, "still running after 0.5 s\n"),
    ],
)
def test_a_worker_that_is_too_busy_to_answer_is_not_gone(
    answer: OSError | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def ask(_: object) -> dict[str, Any]:
        if answer is not None:
            raise HandOverError("cannot be reached") from answer
        return {}

    monkeypatch.setattr(OtherWorker, "facts", ask)
    assert wait_for_end(OtherWorker("https://a.example", SECRET, timeout_s=1.0), 0.5) == code
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("status", "data"),
    [(503, b'{"error": "no row is free"}'), (502, b"<html>Bad Gateway</html>"), (403, b'{"error": "no"}')],
)
def test_a_worker_whose_answer_is_an_error_is_not_gone(
    status: int, data: bytes, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(OtherWorker, "facts", lambda self: self._read(status, data))
    assert wait_for_end(OtherWorker("https://a.example", SECRET, timeout_s=1.0), 0.5) == 1
    assert capsys.readouterr().out == "still running after 0.5 s\n"


def test_a_secret_that_is_a_certificate_is_all_that_workers_trust(tmp_path: Path) -> None:
    file, cut = tmp_path / "hand-over.pem", tmp_path / "cut.pem"
    file.write_text("".join((TLS / name).read_text() for name in ("test-cert.pem", "test-key.pem")))
    cut.write_text(CERTIFICATE.decode() + "\nnothing\n" + (TLS / "test-key.pem").read_text())
    trusted = SharedSecret.read(file).client_tls()
    assert (trusted.verify_mode, trusted.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert trusted.cert_store_stats()["x509"] == 1
    assert trusted.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    usual = SECRET.client_tls()
    assert (usual.verify_mode, usual.check_hostname) == (ssl.CERT_REQUIRED, True)
    with pytest.raises(ConfigError, match="hand_over_secret: its certificate cannot be used"):
        SharedSecret.read(cut).client_tls()


def test_a_port_for_workers_needs_a_certificate_and_its_key(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a secret of two workers")
    with pytest.raises(ConfigError, match="hand_over_port = 8997 without hand_over_secret, whose"):
        ServerConfig(hand_over_port=8997)
    config = ServerConfig(hand_over_port=8997, hand_over_secret=str(file))
    with pytest.raises(ConfigError, match=r"secret holds no certificate with its key; make it with: openssl"):
        port_tls(config)
    file.write_text((TLS / "test-cert.pem").read_text())
    with pytest.raises(ConfigError, match=r"secret contains a certificate without its private key"):
        port_tls(config)


def test_the_host_name_is_the_name_of_a_worker_that_takes_its_name_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "0123456789ab")
    assert parse_command_line(["--worker", "auto"]).worker == "0123456789ab"
    assert parse_command_line(["--worker", "a"]).worker == "a"
    assert parse_command_line([]).worker == ""


def test_a_secret_that_is_short_or_missing_and_a_name_that_is_none(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("short\n")
    with pytest.raises(ConfigError, match="short has 5 bytes, 16 or more are needed; make one with: openssl"):
        SharedSecret.read(short)
    with pytest.raises(ConfigError, match=r"cannot read .*none: No such file or directory"):
        SharedSecret.read(tmp_path / "none")
    with pytest.raises(ConfigError, match="worker = 'a b': a name has 1 to 64 letters, digits, dots, dashes"):
        ServerConfig(worker="a b")
    assert SECRET.key.decode() not in repr(SECRET)
