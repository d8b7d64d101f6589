"""Configuration: defaults, a strict file, a command line over it, and sentences that help."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from antiphon.config import Limits, ModelConfig, ServerConfig, load_config, load_file
from antiphon.engine.config import EngineConfig
from antiphon.errors import ConfigError
from antiphon.option import options
from antiphon.serve.hosting.options import build_parser, flag, parse_command_line

REPOSITORY = Path(__file__).parents[1]


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "antiphon.toml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    config = parse_command_line([])
    assert config == ServerConfig()
    assert config.model == ("tiny",)
    assert (config.host, config.port, config.engine.slots) == ("127.0.0.1", 8998, None)


def test_every_option_name_is_unique_and_has_help_and_a_flag() -> None:
    known = options(ServerConfig)
    leaves = sum(len(dataclasses.fields(cls)) for cls in (ServerConfig, EngineConfig, Limits)) - 3
    assert len(known) == leaves
    flags = {text for action in build_parser()._actions for text in action.option_strings}
    for info in known.values():
        assert info.help
        assert flag(info.name) in flags


def test_the_help_is_in_groups_with_what_one_looks_for_first() -> None:
    text = build_parser().format_help()
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[1:4] == ["models", "network", "access"]
    models = text.partition("\nmodels:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^  --(\S+)", models, re.MULTILINE)[:4] == ["model", "backend", "device", "slots"]
    assert max(len(block.splitlines()) for block in text.split("\n\n")) < 60
    assert "  antiphon serve --model tiny --model tiny-stt" in text


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
        ["--allow-origin", "https://a", "--allow-origin", "https://b", "--null-hold-gil", "--no-fixed-batch"]
    )
    assert config.allow_origin == ("https://a", "https://b")
    assert config.null_hold_gil
    assert not config.engine.fixed_batch


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("[limits]\nidle_timeout = 1", "unknown key 'limits.idle_timeout'; did you mean 'idle_timeout_s'?"),
        ("[engin]\nslots = 1", "unknown key 'engin'; did you mean 'engine'?"),
        ('port = "80"', "port = '80' is not a whole number"),
        ("port = 80.5", "port = 80.5 is not a whole number"),
        ("port = true", "port = True is not a whole number"),
        ("model = 3", "model = 3 is not a list of strings"),
        ("null_hold_gil = 1", "null_hold_gil = 1 is not true or false"),
        ("null_step_ms = true", "null_step_ms = True is not a number"),
        ("allow_origin = [1]", "allow_origin = [1] is not a list of strings"),
        ("limits = 3", "limits = 3 is not a table; write [limits]"),
        ('[engine]\nslots = "many"', "engine.slots = 'many' is not a whole number or 'auto'"),
        ("[engine]\nslots = 0", "engine.slots = 0 is below 1, the least it can be"),
        ("null_step_ms = nan", "null_step_ms = nan is not a finite number"),
        ('log_level = "loud"', "log_level = 'loud': there are: debug, error, info, warning"),
        ('protect = "pages"', "protect = 'pages': did you mean 'page'?"),
        ('[models]\nmodel = "echo"', "models = {'model': 'echo'} is not a list of tables; write [[models]]"),
        ('[[models]]\nname = "a"', "entry 1 of [[models]] lacks 'model', what to serve"),
        ('[[models]]\nmodel = "echo"\nslot = 1', "unknown key 'models.slot'; did you mean 'slots'?"),
        ('[[models]]\nmodel = "echo"\nslots = 0', "models.slots = 0 is below 1, the least it can be"),
        ("[[models]]\nmodel = 3", "models.model = 3 is not a string"),
        (
            '[[models]]\nmodel = "echo"\nname = "a/b"',
            "models.name = 'a/b': a name has 1 to 100 letters, digits, dots, dashes and underscores, "
            "since it is part of paths",
        ),
        (
            'model = "echo"\n[[models]]\nmodel = "echo"',
            "model and [[models]] are both given; the first is short for a single entry",
        ),
        ('tls_cert = "a.pem"', "tls_cert is given without tls_key; TLS needs both"),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        parse_command_line(["--config", write(tmp_path, text)])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--slot", "4"], "unknown option '--slot'; did you mean '--slots'?"),
        (["--prot=4"], "unknown option '--prot'; did you mean '--port'?"),
        (["here"], "unknown option 'here'; options start with --"),
        (["--port", "x"], "port = 'x' is not a whole number"),
        (["--drain-timeout-s", "-1"], "limits.drain_timeout_s = -1.0 is below 0, the least it can be"),
        (["--port", "70000"], "port = 70000 is above 65535, the most it can be"),
        (["--drain-timeout-s", "inf"], "limits.drain_timeout_s = inf is not a finite number"),
        (["--null-step-ms", "nan"], "null_step_ms = nan is not a finite number"),
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


def test_the_documentation_names_every_option_and_its_default() -> None:
    text = (REPOSITORY / "docs" / "configuration.md").read_text()
    for info in options(ServerConfig).values():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{info.name}` ")), None)
        assert row is not None, f"docs/configuration.md lacks {info.name}"
        default = {
            None: "auto" if {"int", "float"} & set(re.findall(r"\w+", str(info.hint))) else "",
            (): "",
        }.get(info.default, info.default)
        default = ", ".join(default) if isinstance(default, tuple) else default
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        assert row.split("|")[2].strip(" `") == shown
