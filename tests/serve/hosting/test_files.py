"""Files in options: a fault gives an error message before a model is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.errors import ConfigError
from antiphon.serve.hosting.main import main
from antiphon.serve.hosting.options import check_files, parse_command_line
from tests.serve.encrypted import TLS

CERTIFICATE = str(TLS / "test-cert.pem")
KEY = ["--tls-key", str(TLS / "test-key.pem")]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--tls-cert", "{}/none.pem", *KEY], "cannot read {}/none.pem: No such file or directory"),
        (["--tls-cert", "{}/file", *KEY], "one of them is no PEM file"),
        (["--tls-cert", CERTIFICATE, "--tls-key", "{}/none.pem"], "cannot read {}/none.pem: No such file"),
        (["--hand-over-secret", "{}/none"], "{}/none"),
        (["--api-keys", "{}/none"], "{}/none"),
        (["--voices", "{}/none"], "voices = '{}/none': there is no such folder"),
        (["--usage", "{}/none/usage"], "usage = '{}/none/usage': it cannot be written"),
        (["--usage", "{}"], "usage = '{}': it is a folder, a file is needed"),
        (["--trace", "1", "--trace-file", "{}/none/t"], "trace_file = '{}/none/t': it cannot be written"),
        (
            ["--agent", "aide", "--llm", "http://127.0.0.1:9/v1", "--llm-key-env", "NOT_SET_HERE"],
            "the agent 'aide' takes its text model's key from the environment variable NOT_SET_HERE, which "
            "is not set",
        ),
        (["--webrtc", "1", "--ice-server", "here"], "ice_server = :: expected stun:HOST:PORT or turn:"),
        (["--record", "{}/file/in"], "record = '{}/file/in': {}/file is not a writable folder"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(argv: list[str], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = parse_command_line([word.replace("{}", str(tmp_path)) for word in argv])
    with pytest.raises(ConfigError, match=re.escape(sentence.replace("{}", str(tmp_path)))):
        check_files(config)


def test_files_that_can_be_used_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    argv = ["--usage", f"{tmp_path}/usage", "--record", f"{tmp_path}/a/b", "--voices", str(tmp_path)]
    check_files(parse_command_line([*argv, "--trace-file", "/none/unused"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys"]


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_files_are_checked_before_models(front_ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.hosting.main.set_up_logging", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"^cannot read none\.pem"):
        main(["--model", "none", "--front-ends", front_ends, "--tls-cert", "none.pem", *KEY])
