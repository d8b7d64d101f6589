"""Access: keys on every route, addresses behind proxies, released limits, the Host header."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon import __version__
from antiphon.config import ServerConfig
from antiphon.errors import ConfigError, SessionLimitError
from antiphon.limits import Limits
from antiphon.protocol import events
from antiphon.serve.access.addresses import client_address, parse_networks
from antiphon.serve.access.callers import Access, Caller, SessionLedger
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.access.security import allowed_hosts, host_allowed
from antiphon.serve.access.supervisor_client import SupervisorClient
from tests.serve.harness import PATIENCE_S, Client, Server, serving, speech

ALICE, BOB, CAROL = "the key of alice", "the key of bob", "carols-key"
KEY_PROTOCOL = f"openai-insecure-api-key.{CAROL}"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.txt"
    lines = [format_key(KeyEntry("alice", digest_of(ALICE), 1)), format_key(KeyEntry("bob", digest_of(BOB)))]
    lines.append(format_key(KeyEntry("carol", digest_of(CAROL))))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


async def refused(server: Server, query: str = "", **headers: str) -> aiohttp.WSServerHandshakeError:
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        async with server.call(query, **headers):
            pass
    return error.value


@pytest.mark.parametrize("path", ["/api/models", "/api/modules_info", "/m/null-echo/api/models"])
async def test_a_key_is_needed_for_what_is_not_open(path: str, keys: str) -> None:
    async with serving(api_keys=keys) as server:
        status, text, headers = await server.get(path)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="antiphon"')
        assert text == "an API key is needed: as 'Authorization: Bearer KEY'\n"
        status, text, _ = await server.get(path, **{"kyutai-api-key": "a guess"})
        assert (status, text) == (401, "this API key is not known here\n")
        assert (await server.get(path, **{"kyutai-api-key": ALICE}))[0] == 200


@pytest.mark.parametrize("path", ["/api/build_info", "/m/null-echo/api/build_info", "/m/x/api/build_info"])
async def test_callers_without_a_key_read_the_name_and_the_version(path: str, keys: str) -> None:
    async with serving(api_keys=keys) as server:
        status, text, _ = await server.get(path)
        assert (status, json.loads(text)) == (200, {"name": "antiphon", "version": __version__})
        status, text, _ = await server.get(path, **{"kyutai-api-key": "a guess"})
        assert (status, text) == (401, "this API key is not known here\n")
        status, text, _ = await server.get(path, **{"kyutai-api-key": ALICE})
        assert status == (404 if "/x/" in path else 200)
        assert status == 404 or json.loads(text)["model"]["name"] == "null-echo"


async def test_health_metrics_and_page_are_open_unless_they_are_protected(keys: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    paths = {"health": ("/healthz", "/readyz"), "metrics": ("/metrics",), "page": ("/",)}
    for protected in ((), ("health",), ("metrics", "page")):
        async with serving(api_keys=keys, protect=protected, page=tmp_path) as server:
            for what, asked in paths.items():
                for path in asked:
                    assert (await server.get(path))[0] == (401 if what in protected else 200)
                    assert (await server.get(path, **{"kyutai-api-key": BOB}))[0] == 200


async def test_a_browser_is_asked_for_the_key_of_a_protected_page(keys: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>the page")
    browser = {"Accept": "text/html,*/*"}
    async with serving(api_keys=keys, protect=("page",), page=tmp_path) as server:
        for path in ("/", "/other.html"):
            status, form, headers = await server.get(path, **browser)
            assert (status, headers["Cache-Control"]) == (401, "no-store")
            assert "requires an access key" in form
            assert "form-action 'self'" in headers["Content-Security-Policy"]
        assert (await server.get("/", Accept="*/*"))[1].startswith("an API key is needed")
        async with server.http.post(server.url("/"), data={"key": "a guess"}) as answer:
            assert (answer.status, "This key is not known here" in await answer.text()) == (401, True)
            assert not answer.cookies
        async with server.http.post(server.url("/"), data={"key": CAROL}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, ".")
            (cookie,) = answer.cookies.values()
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        kept = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await server.get("/", **browser, **kept))[1].endswith("the page")
        assert (await server.get("/api/models", **kept))[0] == 200
        assert (await server.get("/api/models", Origin="https://evil.example", **kept))[0] == 401
        async with server.call("", **kept):
            pass


async def test_a_page_that_is_open_takes_no_key(keys: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    async with (
        serving(api_keys=keys, page=tmp_path) as server,
        server.http.post(server.url("/"), data={"key": CAROL}) as answer,
    ):
        assert answer.status == 405


@pytest.mark.parametrize("query", ["", "ext=1", "auth_id=", "worker_auth_id=a+guess", "model=none"])
async def test_without_a_key_there_is_no_upgrade(query: str, keys: str) -> None:
    async with serving(api_keys=keys) as server:
        assert (await refused(server, query)).status == 401
        assert server.services.access.ledger.is_empty
        _, text, _ = await server.get("/metrics")
        assert 'antiphon_refused_requests_total{model="",status="401"} 1.0' in text


@pytest.mark.parametrize("query", ["auth_id", "worker_auth_id"])
async def test_a_key_in_the_query_as_stock_clients_send_it(query: str, keys: str) -> None:
    async with serving(api_keys=keys) as server:
        async with server.call(f"ext=1&format=pcm_f32le&{query}=the+key+of+bob") as client:
            await client.event("ready")
            assert server.services.access.ledger.of_key("bob") == 1
        await server.is_empty()
        await server.eventually(lambda: server.services.access.ledger.is_empty)


async def test_a_key_is_never_logged(keys: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        async with serving(api_keys=keys) as server:
            assert (await refused(server, "auth_id=a+secret+guess")).status == 401
            async with server.call("ext=1&format=pcm_f32le&text_topk=10&auth_id=the+key+of+bob") as client:
                await client.event("ready")
                await client.speak(speech(2))
                await client.reply()
    said = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "'key': 'bob'" in said
    assert "secret" not in said
    assert BOB not in said
    assert "the+key" not in said


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (("realtime", KEY_PROTOCOL, "openai-beta.realtime-v1"), "realtime"),
        ((KEY_PROTOCOL, "realtime"), "realtime"),
        ((KEY_PROTOCOL,), KEY_PROTOCOL),
    ],
)
async def test_a_key_offered_as_a_subprotocol_is_not_logged_and_one_of_those_offered_is_selected(
    offered: tuple[str, ...], selected: str, keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        async with serving(slots=1, api_keys=keys) as server:
            for query, first in (("ext=1", "ready"), ("ext=1&model=none", "error")):
                url = server.url(f"/api/chat?{query}", "ws")
                async with server.http.ws_connect(url, protocols=offered) as ws:
                    await Client(ws).event(first)
                    assert ws.protocol == selected
    said = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "'key': 'carol'" in said
    assert CAROL not in said


async def test_a_refusal_for_its_key_or_its_query_is_logged_without_either(
    keys: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(api_keys=keys) as server:
        for query, key, status, reason in (
            ("", "a wrong key", 401, "Unauthorized"),
            ("text_seed=secret", BOB, 400, "Bad Request"),
        ):
            caplog.clear()
            with caplog.at_level("INFO"):
                headers = {"kyutai-api-key": key}
                assert (await server.get(f"/api/chat?{query}", **headers))[0] == status
            (line,) = [it for it in caplog.records if it.getMessage() == "session refused"]
            assert vars(line)["fields"]["reason"] == reason
            assert "secret" not in str(vars(line))
            assert key not in str(vars(line))


async def test_keys_are_named_where_metrics_need_a_key_alone(keys: str) -> None:
    for protect, named in ((), False), (("metrics",), True):
        async with serving(api_keys=keys, protect=protect) as server:
            async with server.call("ext=1", **{"kyutai-api-key": BOB}) as client:
                await client.event("ready")
                _, text, _ = await server.get("/metrics", **{"kyutai-api-key": ALICE})
                assert ('antiphon_key_sessions{key="bob"} 1.0' in text) is named
                assert ("bob" in text) is named
            await server.is_empty()


async def test_a_key_has_as_many_sessions_as_its_line_says(keys: str) -> None:
    sentence = "the key 'alice' has 1 of 1 sessions"
    header = {"kyutai-api-key": ALICE}
    async with serving(slots=3, api_keys=keys) as server:
        async with server.call("ext=1", **header) as first:
            await first.event("ready")
            refusal = await refused(server, **header)
            assert refusal.headers is not None
            assert (refusal.status, refusal.headers["Retry-After"]) == (429, "10")
            async with server.call("ext=1", **header) as second:
                assert (await second.event("error")).fields == {
                    "code": 1008,
                    "message": sentence,
                    "retry_after_s": 10,
                }
                assert (await second.closed()).code == 1008
            async with server.call("ext=1", **{"kyutai-api-key": BOB}) as other:
                await other.event("ready")
        await server.eventually(lambda: server.services.access.ledger.is_empty)
        async with server.call("ext=1", **header) as again:
            await again.event("ready")


async def test_an_address_has_as_many_sessions_as_it_may() -> None:
    limits = {"max_sessions_per_address": 1}
    async with serving(slots=3, limits=limits, trusted_proxy=("127.0.0.1",)) as server:
        near = {"X-Forwarded-For": "198.51.100.7"}
        async with server.call("ext=1", **near) as first:
            await first.event("ready")
            assert (await refused(server, **near)).status == 429
            assert (await refused(server, **{"X-Forwarded-For": "203.0.113.1, 198.51.100.7"})).status == 429
            async with server.call("ext=1", **{"X-Forwarded-For": "203.0.113.1"}) as other:
                await other.event("ready")
            async with server.call("ext=1", **near) as second:
                said = (await second.event("error")).fields["message"]
                assert said == "your address 198.51.100.7 has 1 of 1 sessions"


async def test_a_forwarded_address_counts_only_from_a_trusted_proxy() -> None:
    limits, far = {"max_sessions_per_address": 1}, {"X-Forwarded-For": "198.51.100.7"}
    async with serving(slots=3, limits=limits) as server, server.call("ext=1", **far) as first:
        await first.event("ready")
        assert (await refused(server, **{"X-Forwarded-For": "198.51.100.8"})).status == 429
        assert server.services.access.ledger.of_address("127.0.0.1") == 1


async def test_calls_that_end_in_any_way_give_their_sessions_back(keys: str) -> None:
    """Random callers: refused ones, ones that vanish, leave, break the protocol, or are cut by
    the server.
    """
    chance = random.Random(5)
    limits = {"max_sessions_per_key": 3, "max_sessions_per_address": 5, "handshake_timeout_s": 0.3}

    async def call(server: Server, how: int) -> None:
        query = chance.choice(["ext=1&format=pcm_f32le", "ext=1&wait=0.1", "", "text_topk=x"])
        key = chance.choice([ALICE, BOB, BOB, "a guess"])
        try:
            async with asyncio.timeout(PATIENCE_S), server.call(query, **{"kyutai-api-key": key}) as client:
                await client.receive()
                if how == 0:
                    client.cut()
                elif how == 1:
                    await client.ws.send_bytes(b"\x10{")
                elif how == 2:
                    await client.send(events.bye())
                elif how == 3:
                    await client.closed()  # the server's patience ends first
        except (aiohttp.ClientError, ConnectionError):
            pass

    async with serving(slots=2, api_keys=keys, limits=limits) as server:
        await asyncio.gather(*(call(server, chance.randrange(4)) for _ in range(60)))
        await server.is_empty()
        await server.eventually(lambda: server.services.access.ledger.is_empty)


class Ledger(RuleBasedStateMachine):
    """Sessions begin and end in any order, some with an error; the counts are those that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        limits = Limits(max_sessions_per_key=2, max_sessions_per_address=3)
        self.ledger = SessionLedger(limits, SupervisorClient.here())
        self.open: list[tuple[Caller, AbstractAsyncContextManager[None]]] = []

    def teardown(self) -> None:
        self.runner.close()

    @rule(name=st.sampled_from("ab") | st.none(), address=st.sampled_from(["1.1.1.1", "2.2.2.2", ""]))
    def begin(self, name: str | None, address: str) -> None:
        caller = Caller(None if name is None else KeyEntry(name, bytes(32)), address)
        held = self.ledger.hold(caller)
        same_key = sum(other.name == name for other, _ in self.open if name is not None)
        same_address = sum(other.address == address for other, _ in self.open)
        if same_key >= 2 or (address and same_address >= 3):
            with pytest.raises(SessionLimitError, match=r"2 of 2 sessions|3 of 3 sessions"):
                self.run(held.__aenter__())
        else:
            self.run(held.__aenter__())
            self.open.append((caller, held))

    @rule(data=st.data(), error=st.none() | st.just(ValueError("x")) | st.just(asyncio.CancelledError()))
    def end(self, data: st.DataObject, error: BaseException | None) -> None:
        if self.open:
            _, held = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            self.run(held.__aexit__(None if error is None else type(error), error, None))

    @invariant()
    def counts_are_what_is_open(self) -> None:
        for name in "ab":
            assert self.ledger.of_key(name) == sum(caller.name == name for caller, _ in self.open)
        for address in ("1.1.1.1", "2.2.2.2"):
            assert self.ledger.of_address(address) == sum(it.address == address for it, _ in self.open)
        assert self.ledger.is_empty is not bool(self.open)


TestLedger = Ledger.TestCase

PROXIES = parse_networks(["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("198.51.100.7", [], "198.51.100.7"),
        ("198.51.100.7", ["203.0.113.1"], "198.51.100.7"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.1"], "203.0.113.1"),
        ("127.0.0.1", ["6.6.6.6, 203.0.113.1"], "203.0.113.1"),
        ("127.0.0.1", ["6.6.6.6", "203.0.113.1,10.1.2.3"], "203.0.113.1"),
        ("127.0.0.1", ["10.1.2.3"], "10.1.2.3"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", ["203.0.113.1:4711"], "203.0.113.1"),
        ("::ffff:127.0.0.1", ["[2001:4860::1:2]:80"], "2001:4860::/64"),
        ("2001:db8::1", ["2001:4860:0:0:ffff::1"], "2001:4860::/64"),
        ("fe80::1%eth0", [], "fe80::/64"),
        (None, ["203.0.113.1"], ""),
        ("", [], ""),
    ],
)
def test_whose_address_counts(peer: str | None, forwarded: list[str], address: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == address


@given(st.lists(st.text(max_size=20), max_size=4))
def test_whatever_a_stranger_writes_into_the_header_it_stays_itself(forwarded: list[str]) -> None:
    assert client_address("198.51.100.7", forwarded, PROXIES) == "198.51.100.7"
    assert client_address("127.0.0.1", [*forwarded, "198.51.100.7"], PROXIES) == "198.51.100.7"


def test_what_cannot_be_configured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^trusted_proxy = '10.0.0.1/8' is no address and no network: "):
        Access(ServerConfig(trusted_proxy=("10.0.0.1/8",)))
    with pytest.raises(
        ConfigError, match=r"^protect is given without api_keys; name the file with --api-keys$"
    ):
        Access(ServerConfig(protect=("page",)))
    with pytest.raises(ConfigError, match=r"^cannot read the API keys in "):
        Access(ServerConfig(api_keys=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost", True),
        ("LOCALHOST:8998", True),
        ("demo.localhost", True),
        ("127.0.0.1:8998", True),
        ("192.168.1.5", True),
        ("[::1]:8998", True),
        ("voice.example.org", True),
        ("voice.example.org.", True),
        ("page.example.org:443", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("a b", False),
        (None, False),
    ],
)
def test_which_hosts_are_ours(host: str | None, passes: bool) -> None:
    config = ServerConfig(
        allow_host=("voice.example.org",), allow_origin=("https://page.example.org", "null")
    )
    assert host_allowed(host, allowed_hosts(config, requires_keys=False)) is passes


def test_the_host_is_looked_at_where_the_address_is_all_that_protects() -> None:
    assert allowed_hosts(ServerConfig(), requires_keys=False) is not None
    assert allowed_hosts(ServerConfig(), requires_keys=True) is None
    assert allowed_hosts(ServerConfig(host="0.0.0.0"), requires_keys=False) is None
    assert allowed_hosts(ServerConfig(host="0.0.0.0", allow_host=("a",)), requires_keys=True) is not None
    assert allowed_hosts(ServerConfig(allow_host=("*",)), requires_keys=False) is None


async def test_a_name_that_leads_here_is_not_ours() -> None:
    async with serving() as server:
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await refused(server, "ext=1", **rebound)).status == 421
        status, text, headers = await server.get("/api/models", **rebound)
        assert (status, headers["X-Content-Type-Options"]) == (421, "nosniff")
        assert text == "this server is not 'evil.example'; its operator can add the name with --allow-host\n"
