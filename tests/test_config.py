"""Configuration: defaults, a strict file, command line options over it, and helpful error messages."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.config import ModelConfig, ServerConfig, load_config, load_file
from antiphon.engine.config import EngineConfig
from antiphon.errors import ConfigError
from antiphon.limits import Limits
from antiphon.option import options, table_of, tuned
from antiphon.serve.hosting.options import build_parser, parse_command_line


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "antiphon.toml"
    path.write_text(text)
    return str(path)


AGENT = "[[agents]]\nname = 'a'\nllm = 'http://a/v1'\n"
AGENT_KEYS = (
    "greeting, idle_s, instructions, max_history_tokens, max_reply_tokens, name, sorry, stt, text_models, "
    "tts, voice"
)


def test_defaults() -> None:
    config = parse_command_line([])
    assert config == ServerConfig()
    assert config.model == ("tiny",)
    assert (config.host, config.port, config.engine.slots) == ("127.0.0.1", 8998, None)


def test_every_name_is_unique_and_has_a_help_with_its_unit_and_default() -> None:
    known = table_of(ServerConfig)
    assert len(known) == sum(len(dataclasses.fields(cls)) for cls in (ServerConfig, EngineConfig, Limits)) - 4
    assert len(options(ServerConfig)) <= 52
    text = " ".join(build_parser(is_full=True).format_help().split())
    for info in known.values():
        assert info.help
        if info.is_constant:
            assert f"{info.name}={info.shown_default} {info.help}" in text
            continue
        assert info.unit or info.kind is bool
        assert f"{info.flag}, " in text if info.kind is bool else f"{info.flag} {info.unit} " in text


def test_the_short_help_fits_a_screen_and_the_long_one_has_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"\A0\Z"):
        parse_command_line(["--help"])
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 40
    assert "  antiphon serve --model tiny --model tiny-stt" in short
    assert "--protect WHAT" in short
    assert "--tune" not in short
    with pytest.raises(SystemExit, match=r"\A0\Z"):
        parse_command_line(["--help-all"])
    full = capsys.readouterr().out
    assert re.findall(r"^(\S.*):$", full, re.MULTILINE)[1:4] == ["models", "network", "access and limits"]
    assert "--usage FILE" in full
    assert "--max-sessions-per-address N" in full
    assert "host_lag_ms=40" in full


def test_a_constant_is_set_only_by_an_experiment_which_the_log_names(tmp_path: Path) -> None:
    sentence = "{} is a constant, 2; to try another value: --tune close_timeout_s=VALUE"
    with pytest.raises(ConfigError, match=re.escape(sentence.format("limits.close_timeout_s"))):
        parse_command_line(["--config", write(tmp_path, "[limits]\nclose_timeout_s = 3")])
    with pytest.raises(ConfigError, match=re.escape(sentence.format("--close-timeout-s"))):
        parse_command_line(["--close-timeout-s", "3"])
    line = [
        "--tune",
        "late_admit_fraction=0.5",
        "--tune",
        "late_refuse_fraction=0.6",
        "--tune=null-hold-gil=true",
    ]
    config = parse_command_line([*line, "--tune", "max_connections_per_address=7"])
    assert (config.engine.late_admit_fraction, config.engine.late_refuse_fraction) == (0.5, 0.6)
    assert config.limits.max_connections_per_address == 7
    assert tuned(config) == {
        "null_hold_gil": True,
        "late_refuse_fraction": 0.6,
        "late_admit_fraction": 0.5,
        "max_connections_per_address": 7,
    }
    assert tuned(ServerConfig()) == {}


def test_a_file_overrides_defaults_and_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        model = "tiny"
        port = 9000
        allow_origin = ["https://a.example"]
        [engine]
        slots = 3
        [limits]
        drain_timeout_s = 5
        """,
    )
    config = parse_command_line(["--config", path, "--port", "9001", "--slots", "auto"])
    assert config.model == ("tiny",)
    assert config.port == 9001
    assert config.allow_origin == ("https://a.example",)
    assert config.engine.slots is None
    assert config.limits.drain_timeout_s == 5.0
    assert config.limits.idle_timeout_s == Limits().idle_timeout_s


def test_repeated_and_boolean_flags() -> None:
    config = parse_command_line(
        ["--allow-origin", "https://a", "--allow-origin", "https://b", "--skip-digests", "--no-fixed-batch"]
    )
    assert config.allow_origin == ("https://a", "https://b")
    assert config.skip_digests
    assert not config.engine.fixed_batch


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("agent_port = 1", "unknown key 'agent_port'; it is called free_rows_port now"),
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("[limits]\nidle_timeout = 1", "unknown key 'limits.idle_timeout'; did you mean 'idle_timeout_s'?"),
        ("[engin]\nslots = 1", "unknown key 'engin'; did you mean 'engine'?"),
        ('port = "80"', "port is '80', a whole number is needed"),
        ("port = 80.5", "port is 80.5, a whole number is needed"),
        ("port = true", "port is true or false, a whole number is needed"),
        ("model = 3", "model is 3, a list of strings is needed"),
        ("skip_digests = 1", "skip_digests is 1, true or false is needed"),
        ("null_step_ms = true", "null_step_ms is true or false, a number is needed"),
        ("allow_origin = [1]", "allow_origin is 1, a string is needed"),
        ("limits = 3", "limits = 3 is not a table; write [limits]"),
        ('[engine]\nslots = "many"', "engine.slots is 'many', a whole number or 'auto' is needed"),
        ("[engine]\nslots = 0", "engine.slots is 0, at least 1 is needed"),
        ("null_step_ms = nan", "null_step_ms is nan, at least 0 is needed"),
        ('log_level = "loud"', "log_level is 'loud', not one of debug, info, warning, error"),
        ('protect = "pages"', "protect is 'pages', not one of health, metrics, page"),
        ('[models]\nmodel = "echo"', "models = {'model': 'echo'} is not a list of tables; write [[models]]"),
        ('[[models]]\nname = "a"', "entry 1 of [[models]] lacks 'model', the model to serve"),
        ('[[models]]\nmodel = "echo"\nslot = 1', "unknown key 'models.slot'; did you mean 'slots'?"),
        ('[[models]]\nmodel = "echo"\nslots = 0', "models.slots is 0, at least 1 is needed"),
        ("[[models]]\nmodel = 3", "models.model is 3, a string is needed"),
        (
            '[[models]]\nmodel = "echo"\nname = "a/b"',
            "models.name = 'a/b': a name has 1 to 100 letters, digits, dots, dashes and underscores, "
            "since it is part of paths",
        ),
        (
            'model = "echo"\n[[models]]\nmodel = "echo"',
            "model and [[models]] are both given; the first is short for a single entry",
        ),
        ("[[agents]]\nname = 'a'", "entry 1 of [[agents]] lacks 'llm', the URL of its text model"),
        ("[[agents]]\nllm = 'http://a/v1'", "entry 1 of [[agents]] lacks 'name', its name for clients"),
        (
            AGENT + "fallback = [{}]",
            "a fallback of entry 1 of [[agents]] lacks 'llm', the URL of its text model",
        ),
        (AGENT + "speech = 'a'", "unknown key 'agents.speech'; there are: " + AGENT_KEYS),
        (AGENT + AGENT, "two agents are called 'a'"),
        (
            AGENT.replace("'a'", "'a/b'"),
            "agents.name = 'a/b': a name has 1 to 100 letters, digits, dots, dashes and underscores, "
            "since it is part of paths",
        ),
        (
            AGENT.replace("http://a", "ftp://a"),
            "llm is no address of a text model, which begins with http:// or https://",
        ),
        (
            AGENT.replace("http://a", "http://me:secret@a"),
            "llm has a user, a password or a query; name the variable with its key by llm_key_env",
        ),
        (
            AGENT + "llm_key_env = 'sk-secret'",
            "llm_key_env is no name of an environment variable, such as LLM_API_KEY",
        ),
        ("agent = 'a'", "agent is given without llm; an agent has a name and a text model"),
        ("llm = 'http://a/v1'", "llm is given without agent; an agent has a name and a text model"),
        ('tls_cert = "a.pem"', "tls_cert is given without tls_key; TLS needs both"),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        parse_command_line(["--config", write(tmp_path, text)])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--agent-port", "8999"], "unknown option '--agent-port'; it is called --free-rows-port now"),
        (["--slot", "4"], "unknown option '--slot'; did you mean '--slots'?"),
        (["--prot=4"], "unknown option '--prot'; did you mean '--port'?"),
        (["here"], "unknown option 'here'; options start with --; for a model: --model here"),
        (["--port", "x"], "port is 'x', a whole number is needed"),
        (["--drain-timeout-s", "-1"], "limits.drain_timeout_s is -1.0, at least 0 is needed"),
        (["--port", "70000"], "port is 70000, 0 to 65535 are allowed"),
        (["--drain-timeout-s", "inf"], "limits.drain_timeout_s is 'inf', a number is needed"),
        (["--null-step-ms", "nan"], "null_step_ms is 'nan', a number is needed"),
        (["--tune", "stuck_s"], "--tune stuck_s: NAME=VALUE is needed"),
        (["--tune", "stuk_s=3"], "--tune stuk_s=3: no such constant; did you mean 'stuck_s'?"),
        (["--tune", "port=3"], "--tune port=3: port is an option; write --port 3"),
        (["--tune", "stuck_s=0"], "engine.stuck_s is 0.0, at least 0.1 is needed"),
        (["--tune", "stuck_s=soon"], "engine.stuck_s is 'soon', a number is needed"),
        (["--port"], "argument --port: expected one argument"),
        (["--tls-key", "k.pem"], "tls_key is given without tls_cert; TLS needs both"),
    ],
)
def test_a_bad_command_line_says_what_is_wrong(argv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        parse_command_line(argv)


ENTRIES = """
backend = "torch"
voices = "voices"
[engine]
slots = 4
[[models]]
model = "echo"
[[models]]
name = "talk"
model = "hf://owner/repo"
backend = "reference"
device = "cuda:1"
slots = "auto"
backend_option = ["dtype=bfloat16"]
"""


def test_an_entry_says_what_it_says_and_the_rest_holds_for_all(tmp_path: Path) -> None:
    config = parse_command_line(["--config", write(tmp_path, ENTRIES), "--voices", "others"])
    assert config.served == (
        ModelConfig(model="echo", backend="torch", slots=4, voices="others"),
        ModelConfig(
            name="talk",
            model="hf://owner/repo",
            backend="reference",
            device="cuda:1",
            slots=None,
            backend_option=("dtype=bfloat16",),
            voices="others",
        ),
    )


def test_agents_come_from_the_file_and_one_from_the_command_line(tmp_path: Path) -> None:
    text = AGENT + "llm_model = 'm'\nvoice = 'v'\nfallback = [{llm = 'http://b/v1', llm_key_env = 'B_KEY'}]"
    own = ["--agent", "c", "--llm", "https://c/v1", "--llm-model", "d", "--llm-key-env", "C_KEY"]
    config = parse_command_line(["--config", write(tmp_path, text), *own])
    first, second = config.served_agents
    models = [(it.llm, it.llm_model, it.llm_key_env) for it in first.text_models]
    assert (first.name, first.voice) == ("a", "v")
    assert models == [("http://a/v1", "m", None), ("http://b/v1", None, "B_KEY")]
    assert second == AgentConfig(
        name="c", text_models=(TextModelConfig(llm="https://c/v1", llm_model="d", llm_key_env="C_KEY"),)
    )


def test_models_of_the_command_line_take_the_place_of_those_of_the_file(tmp_path: Path) -> None:
    config = parse_command_line(["--config", write(tmp_path, ENTRIES), "--model", "a", "--model", "b"])
    common = ModelConfig(backend="torch", slots=4, voices="voices")
    assert config.served == (dataclasses.replace(common, model="a"), dataclasses.replace(common, model="b"))


def test_a_file_that_cannot_be_read_or_parsed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        load_file(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="is not TOML"):
        load_file(write(tmp_path, "port = "))


def test_contradictions_are_found_across_file_and_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'tls_cert = "a.pem"')
    assert parse_command_line(["--config", path, "--tls-key", "k.pem"]).tls_key == "k.pem"


def test_loading_does_not_change_the_table() -> None:
    table = {"engine": {"slots": 2}}
    assert load_config(table, {"slots": 3}).engine.slots == 3
    assert table == {"engine": {"slots": 2}}
