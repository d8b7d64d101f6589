"""All forms of a server address."""

from __future__ import annotations

import pytest

from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon_client.address import ServerAddress


@pytest.mark.parametrize(
    ("text", "http", "chat"),
    [
        ("http://127.0.0.1:8998", "http://127.0.0.1:8998", "ws://127.0.0.1:8998/api/chat"),
        ("ws://host:1/api/chat", "http://host:1", "ws://host:1/api/chat"),
        ("host:9000", "http://host:9000", "ws://host:9000/api/chat"),
        ("host", "http://host:8998", "ws://host:8998/api/chat"),
        ("9000", "http://127.0.0.1:9000", "ws://127.0.0.1:9000/api/chat"),
        ("https://voice.example", "https://voice.example:443", "wss://voice.example:443/api/chat"),
        (
            "http://voice.example/moshi/",
            "http://voice.example:80/moshi",
            "ws://voice.example:80/moshi/api/chat",
        ),
        ("wss://[::1]:8998", "https://[::1]:8998", "wss://[::1]:8998/api/chat"),
    ],
)
def test_every_form_names_the_same_server(text: str, http: str, chat: str) -> None:
    address = ServerAddress.parse(text)
    assert address.http == http
    assert address.chat({}) == chat
    assert ServerAddress.parse(address.http) == address


def test_a_query_is_encoded() -> None:
    url = ServerAddress.parse("host:1").chat({"ext": "1", "text_prompt": "a b"})
    assert url == "ws://host:1/api/chat?ext=1&text_prompt=a+b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host", r"cannot use 'ftp://' in 'ftp://host': write http, https, ws or wss"),
        ("http://host:99999", "the port in .* is not a number from 0 to 65535"),
        ("http://", "no host in 'http://': write for example http://127.0.0.1:8998"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerAddress.parse(text)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("127.0.0.1:8998", antiphon_command("serve")),
        ("127.0.0.1:9000", antiphon_command("serve --port 9000")),
        ("10.0.0.2:8998", "antiphon serve --host 10.0.0.2"),
    ],
)
def test_the_command_that_would_serve_there(text: str, command: str) -> None:
    assert ServerAddress.parse(text).serve_command == command
