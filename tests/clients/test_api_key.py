"""The client's API key: its sources, and its secrecy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.errors import ConfigError, SessionError
from antiphon_client import arguments, talk
from antiphon_client.address import ServerAddress
from antiphon_client.api_key import NO_KEY, ApiKey
from antiphon_client.facts import ask_facts
from antiphon_client.probe import chat_query, main
from tests.clients.fake_server import Behaviour, fake_server_in_thread

SECRET = "0123456789abcdef-secret"


@pytest.mark.parametrize("parse", [arguments.parse_arguments, talk.parse_arguments])
def test_a_key_from_the_command_line_or_a_file(parse: object, tmp_path: Path) -> None:
    assert callable(parse)
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    for argv in (["--api-key", SECRET], ["--api-key-file", str(file)]):
        options = parse(argv)
        assert options.api_key.headers == {"Authorization": f"Bearer {SECRET}"}
        assert SECRET not in repr(options)
    assert parse([]).api_key is not None
    assert parse([]).api_key.headers == {}
    with pytest.raises(ConfigError, match=r"^--api-key and --api-key-file are both given; "):
        parse(["--api-key", SECRET, "--api-key-file", str(file)])
    with pytest.raises(ConfigError, match=r"^cannot read the API key in .*none: No such file"):
        parse(["--api-key-file", str(tmp_path / "none")])


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [
        ("a\nb", "the API key has characters that are not printable ASCII"),
        ("schlüssel", "the API key has characters that are not printable ASCII"),
        ("", "the API key is empty or has spaces in it"),
        ("a b", "the API key is empty or has spaces in it"),
    ],
)
def test_a_key_that_no_header_can_carry(secret: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        ApiKey(secret)


def test_a_model_is_named_in_the_query() -> None:
    options = arguments.parse_arguments(["--model", "talk"])
    assert chat_query(options)["model"] == "talk"
    assert chat_query(arguments.parse_arguments(["--stock", "--model", "talk"])) == {"model": "talk"}
    assert "model=talk" in talk.parse_arguments(["--model", "talk"]).url


async def answer(request: web.Request) -> web.Response:
    if request.headers.get("Authorization") != f"Bearer {SECRET}":
        raise web.HTTPUnauthorized(text="an API key is needed\n")
    if request.query.get("model") == "other":
        raise web.HTTPNotFound(text='{"error": "no model other here"}', content_type="application/json")
    return web.json_response({"model": {"name": request.query.get("model", "first")}})


async def test_facts_of_a_server_that_asks_for_a_key_and_has_several_models() -> None:
    app = web.Application()
    app.router.add_get("/api/build_info", answer)
    async with TestServer(app) as server:
        address, key = ServerAddress.parse(str(server.make_url("/"))), ApiKey(SECRET)
        assert (await ask_facts(address, api_key=key)).model == "first"
        assert (await ask_facts(address, api_key=key, model="talk")).model == "talk"
        with pytest.raises(SessionError, match=r"says: no model other here$"):
            await ask_facts(address, api_key=key, model="other")
        with pytest.raises(SessionError, match=r"needed; give it with --api-key-file FILE$"):
            await ask_facts(address, api_key=NO_KEY)
        with pytest.raises(SessionError, match=r"says: an API key is needed$"):
            await ask_facts(address, api_key=ApiKey("another-one"))


def test_a_probe_shows_its_key_with_every_request_and_to_nobody_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    with fake_server_in_thread(Behaviour(api_key=SECRET)) as server:
        url = server.address.http
        argv = [url, "--seconds", "0.5", "--sessions", "2", "--processes", "2", "--json", str(report)]
        assert main([*argv, "--api-key", SECRET]) == 0
        with pytest.raises(SessionError, match="an API key is needed"):
            main(argv)
    said = "".join(capfd.readouterr()) + report.read_text()
    assert SECRET not in said
