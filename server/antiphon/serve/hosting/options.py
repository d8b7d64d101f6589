"""The command line of ``antiphon serve``, made from the configuration's own fields."""

from __future__ import annotations

import argparse
import socket
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.config import ServerConfig, load_config, load_file
from antiphon.errors import ConfigError, nearest
from antiphon.option import AUTO, OptionInfo, Parser, check_value, options

EXAMPLES = """\
examples:
  antiphon serve                                        the default model on http://127.0.0.1:8998
  antiphon serve --model tiny --model tiny-stt          a talker, and a recogniser for captions
  antiphon serve --model hf://kyutai/moshiko-pytorch-bf16 --slots 8
  antiphon serve --host 0.0.0.0 --allow-host voice.example --tls-cert chain.pem --tls-key key.pem
  antiphon serve --api-keys keys.txt --protect page     callers need a key, and so does the page
  antiphon serve --config antiphon.toml --port 80       a file, one option overridden
  antiphon serve --backend null --null-step-ms 5        no model: every frame comes back stamped
  antiphon serve --trace 100                            a Chrome trace of 100 ticks, in antiphon-trace.json

'antiphon models' lists models, 'antiphon doctor' says what runs here; docs/configuration.md has every option.
"""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "models": (
        "model",
        "backend",
        "device",
        "slots",
        "backend_option",
        "voices",
    ),
    "network": ("host", "port", "tls_cert", "tls_key", "trusted_proxy", "agent_port"),
    "access": ("api_keys", "usage", "protect", "allow_origin", "allow_host"),
    "calls that change their worker": (
        "worker",
        "hand_over_secret",
        "hand_over_port",
        "hand_over_timeout_s",
        "max_hand_overs",
    ),
    "a model on trial": ("canary", "canary_of", "canary_share", "canary_by"),
    "files of models": ("outside_files", "skip_digests"),
    "connections ([limits] in a file)": (
        "max_connections",
        "max_connections_per_address",
        "max_new_connections_per_s",
        "max_new_connections_per_address_per_s",
        "connect_timeout_s",
    ),
    "recordings of calls": ("record", "record_max_s", "record_max_bytes", "record_max_days"),
    "log and traces": ("log_level", "trace", "trace_file", "otel_every"),
    "processes and threads": ("front_ends", "switch_interval_ms"),
    "backend null, for tests": ("null_step_ms", "null_hold_gil"),
}
"""The titles of the help and the options below each; those of the tables of a file follow by table."""
TABLES: Mapping[str, str] = {
    "engine": "engine: queues, overload, slots ([engine] in a file)",
    "limits": "limits of callers, timeouts ([limits] in a file)",
}


def flag(name: str) -> str:
    """The command-line flag of an option."""
    return "--" + name.replace("_", "-")


def build_parser() -> argparse.ArgumentParser:
    """One flag for each option; a flag that is not given leaves no trace in the result."""
    parser = Parser(
        prog="antiphon serve",
        usage="antiphon serve [OPTIONS]",
        description="Serve speech models over Moshi's, Kyutai's and OpenAI's protocols, and the page at /.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE.toml", help="options in a file; the command line overrides it"
    )
    known = options(ServerConfig)
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            group.add_argument(flag(name), **_argument(known.pop(name)))
    tables = {table: parser.add_argument_group(title) for table, title in {"": "more", **TABLES}.items()}
    for info in known.values():
        tables[".".join(info.path[:-1])].add_argument(flag(info.name), **_argument(info))
    return parser


def _argument(info: OptionInfo) -> dict[str, Any]:
    default = AUTO if info.default is None and info.hint != (str | None) else info.default
    default = ", ".join(default) if isinstance(default, tuple) else default
    shown = "" if info.default in (None, (), False) and default is not AUTO else f" [{default}]"
    common = {"dest": info.name, "help": info.help + shown}
    if info.hint is bool:
        return {**common, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(info.hint) is tuple:
        return {**common, "action": "append", "metavar": info.metavar}
    metavar = "{" + ",".join(info.choices) + "}" if info.choices else info.name.rsplit("_", 1)[-1].upper()
    return {**common, "metavar": metavar}


def parse_value(info: OptionInfo, text: Any) -> Any:
    """A command-line string as the option's type, checked as a file's value would be.

    Raises:
        ConfigError: it does not fit.
    """
    if not isinstance(text, str):
        return check_value(info, text)
    value: Any = text
    for kind in (int, float):
        if kind is info.hint or kind in typing.get_args(info.hint):
            try:
                value = kind(text)
            except ValueError:
                continue
    return check_value(info, value)


def parse_command_line(argv: Sequence[str]) -> ServerConfig:
    """The configuration a command line asks for.

    Raises:
        ConfigError: an unknown flag (naming the nearest one), a value that does not fit, a bad file.
    """
    parser = build_parser()
    given, unknown = parser.parse_known_args(list(argv))
    if unknown:
        known = options(ServerConfig)
        word = unknown[0].split("=", 1)[0]
        flags = [flag(name) for name in known] + ["--config", "--help"]
        hint = nearest(word, flags) if word.startswith("-") else "options start with --"
        raise ConfigError(f"unknown option '{word}'; {hint}")
    values = vars(given)
    table = load_file(values.pop("config")) if "config" in values else {}
    known = options(ServerConfig)
    overrides = {name: parse_value(known[name], text) for name, text in values.items()}
    config = load_config(table, {name: AUTO if value is None else value for name, value in overrides.items()})
    return replace(config, worker=socket.gethostname()) if config.worker == AUTO else config
