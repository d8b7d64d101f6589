"""Twilio's signature: values of its own package, and addresses behind a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.serve.access.twilio_signature import is_signed, read_token, signature

TOKEN = "12345678901234567890123456789012"
SIGNED = {
    "wss://voice.example.com/twilio": "YuW7ZNDezumiKHOLO6sRVeUPptE=",
    "wss://voice.example.com:8443/m/tiny/twilio/": "s2IJF6t1rO1ggDBv9YO3IpM4GyU=",
    "https://voice.example.com/twilio?a=b": "uIe2zhsOjTqOJ/BW23tKXufHloI=",
}
"""By RequestValidator of the twilio package 9.13.0, with TOKEN."""


@pytest.mark.parametrize(("url", "value"), SIGNED.items())
def test_it_is_what_the_package_makes(url: str, value: str) -> None:
    assert signature(url, TOKEN).decode() == value


@pytest.mark.parametrize(("url", "value"), SIGNED.items())
def test_a_request_behind_a_proxy_is_checked_by_the_address_that_was_signed(url: str, value: str) -> None:
    host, _, path = url.partition("://")[2].partition("/")
    for seen in (f"/{path}", f"/{path}".rstrip("/")):
        assert is_signed(value, host, seen, TOKEN)
        assert not is_signed(value, host, seen, TOKEN[::-1])
    assert not is_signed(value, "elsewhere", f"/{path}", TOKEN)
    for other in ("", "\xe9", "\udce9"):
        assert not is_signed(other, host, f"/{path}", TOKEN)


@pytest.mark.parametrize("query", ["model=tiny", "model=tiny&"])
def test_a_name_that_a_proxy_has_moved_from_the_path_is_where_it_was_signed(query: str) -> None:
    value = SIGNED["wss://voice.example.com:8443/m/tiny/twilio/"]
    assert is_signed(value, "voice.example.com:8443", f"/twilio?{query}", TOKEN)
    for other in (f"/telnyx?{query}", "/twilio?model=other", f"/twilio?{query}&a=b", "/twilio?model="):
        assert not is_signed(value, "voice.example.com:8443", other, TOKEN)


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match=r"twilio_token = '.*token': .*No such file"):
        read_token(file)
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="5 characters, a token has at least 16"):
        read_token(file)
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
