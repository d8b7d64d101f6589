"""Facts from the description of a server, and from a server without one."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import SessionError
from antiphon.install import antiphon_command
from antiphon_client.address import ServerAddress
from antiphon_client.facts import ServerFacts, ask_facts, read_facts

ANSWER: dict[str, Any] = {
    "name": "antiphon",
    "version": "0.1.0",
    "model": {
        "name": "echo",
        "kind": "codec",
        "parameters": 2_600_000,
        "format": "moshi",
        "dtype": "float32",
        "quantization": "none",
        "delay_frames": 2,
    },
    "backend": {"name": "reference", "device": "cpu"},
    "hardware": {"cpu": "AMD EPYC", "cpus": 2, "memory_bytes": 24 * 2**30, "system": "Linux x86_64"},
    "versions": {"python": "3.11.9"},
    "memory_bytes": {"process": 400 * 2**20, "weights": 10 * 2**20},
    "slots": {"used": 0, "queued": 0, "total": 8},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(ANSWER)), inner, max_size=4)
    ),
    max_leaves=8,
)


def test_every_fact_is_read() -> None:
    facts = read_facts(ANSWER)
    assert (facts.model, facts.kind, facts.parameters, facts.delay_frames) == ("echo", "codec", 2_600_000, 2)
    assert (facts.backend, facts.device, facts.dtype, facts.slots) == ("reference", "cpu", "float32", 8)
    assert facts.hardware == "AMD EPYC, 2 CPUs, 24.0 GiB, Linux x86_64"
    assert facts.memory == {"process": 400 * 2**20, "weights": 10 * 2**20}
    assert facts.raw == ANSWER


@given(json_values)
def test_any_answer_can_be_read(answer: Any) -> None:
    assert isinstance(read_facts(answer), ServerFacts)


async def test_a_server_is_asked_over_http_and_one_that_does_not_know_tells_nothing() -> None:
    async def build_info(_: web.Request) -> web.Response:
        return web.json_response(ANSWER)

    app = web.Application()
    app.router.add_get("/api/build_info", build_info)
    async with TestServer(app) as server, TestServer(web.Application()) as stock:
        assert await ask_facts(ServerAddress.parse(str(server.make_url("/")))) == read_facts(ANSWER)
        assert await ask_facts(ServerAddress.parse(str(stock.make_url("/")))) == ServerFacts()


TLS = Path(__file__).parents[1] / "serve" / "tls"


async def test_tls_where_there_is_none_and_none_where_there_is_says_what_to_call() -> None:
    async with TestServer(web.Application()) as server:
        plain = server.make_url("/").with_scheme("https")
        with pytest.raises(
            SessionError, match=f"{plain.authority} answers without TLS; call http://{plain.authority}$"
        ):
            await ask_facts(ServerAddress.parse(str(plain)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "test-cert.pem", TLS / "test-key.pem")
    server = TestServer(web.Application(), scheme="https")
    await server.start_server(ssl=context)
    async with server:
        url = server.make_url("/")
        with pytest.raises(SessionError, match=f"without an answer; with TLS call https://{url.authority}$"):
            await ask_facts(ServerAddress.parse(str(url.with_scheme("http"))))
        with pytest.raises(SessionError, match=r"is not trusted .* or --insecure"):
            await ask_facts(ServerAddress.parse(str(url)))


async def test_nobody_there_is_an_error_with_the_command_that_serves(unused_tcp_port: int) -> None:
    with pytest.raises(SessionError) as caught:
        await ask_facts(ServerAddress.parse(f"127.0.0.1:{unused_tcp_port}"))
    assert str(caught.value) == (
        f"cannot connect to http://127.0.0.1:{unused_tcp_port}: Connection refused; "
        f"start a server there with: {antiphon_command(f'serve --port {unused_tcp_port}')}"
    )
