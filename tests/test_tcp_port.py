"""Ports of protocols other than HTTP: valid addresses, and requirements of servers with keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.config import ServerConfig
from antiphon.errors import ConfigError
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.hosting.options import check_files, parse_command_line
from antiphon.tcp_port import TcpPort, TcpProtocol, read_tcp_ports

WYOMING = TcpProtocol.WYOMING


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("wyoming://:10300", TcpPort(WYOMING, 10300)),
        ("wyoming://0.0.0.0:10300/", TcpPort(WYOMING, 10300, "0.0.0.0")),
        ("wyoming://[::1]:1", TcpPort(WYOMING, 1, "::1")),
        ("wyoming://home.lan:1", TcpPort(WYOMING, 1, "home.lan")),
        (
            "audiosocket://:9092/assistant?voice=anna%201",
            TcpPort(TcpProtocol.AUDIOSOCKET, 9092, model="assistant", voice="anna 1"),
        ),
    ],
)
def test_an_address_is_a_port(text: str, port: TcpPort) -> None:
    assert read_tcp_ports([text], has_keys=False, taken=()) == (port,)
    assert ServerConfig(tcp=(text,)).tcp_ports == (port,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wyoming://:10300?key=", "it names a key, and there is no file of --api-keys"),
        ("wyoming://:10300?key=home", "it names a key, and there is no file of --api-keys"),
        ("wyoming://", "it is no address; write PROTOCOL://"),
        ("wyoming://:0", "it is no address"),
        ("wyoming://:70000", "it is no address"),
        ("wyoming://a@b:1", "it is no address"),
        ("wyoming://:1/model", "its clients choose the model and the voice; name none"),
        ("audiosocket://:1/model/more", "it is no address"),
        ("wyoming://:1?other=1", "it is no address"),
        ("http://:1", "the protocol is one of wyoming, audiosocket"),
        ("10300", "the protocol is one of wyoming"),
        ("wyoming://:8998", "the port 8998 is used twice"),
    ],
)
def test_what_is_no_address_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(tcp=(text,))


def test_a_server_with_keys_asks_for_the_name_of_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("home", digest_of("key of home"))) + "\n")
    with pytest.raises(ConfigError, match=r"its callers present no key; add \?key=NAME"):
        parse_command_line(["--api-keys", str(keys), "--tcp", "wyoming://:10300"])
    named = parse_command_line(["--api-keys", str(keys), "--tcp", "wyoming://:10300?key=home"])
    assert named.tcp_ports == (TcpPort(WYOMING, 10300, key="home"),)
    check_files(named)
    other = parse_command_line(["--api-keys", str(keys), "--tcp", "wyoming://:10300?key=office"])
    with pytest.raises(ConfigError, match="has no key 'office', that of port 10300"):
        check_files(other)


def test_only_what_others_reach_is_announced() -> None:
    with pytest.raises(ConfigError, match=r"there is none; add one by --tcp wyoming://0\.0\.0\.0:10300"):
        ServerConfig(zeroconf=True, tcp=("wyoming://:10300",))
    assert ServerConfig(zeroconf=True, tcp=("wyoming://0.0.0.0:10300",)).zeroconf
