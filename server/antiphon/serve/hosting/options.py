"""The command line of ``antiphon serve``, made from the table of options."""

from __future__ import annotations

import argparse
import os
import socket
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from antiphon.config import ServerConfig, load_config, load_file
from antiphon.errors import ConfigError
from antiphon.option import AUTO, Group, OptionInfo, Parser, constants, options, refusal_of, right_name
from antiphon.serve.access.keys import KeyFile
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon.serve.access.twilio_signature import read_token
from antiphon.serve.hosting.ports import port_tls

DESCRIPTION: Final = "Serve speech models over Moshi's, Kyutai's and OpenAI's protocols, and the page at /."
BASIC: Final = """\
examples:
  antiphon serve                                built-in model, http://127.0.0.1:8998
  antiphon serve --model tiny --model tiny-stt  a talker, and a recogniser for captions
  antiphon serve --model hf://kyutai/moshiko-pytorch-bf16 --slots 8
  antiphon serve --host 0.0.0.0 --allow-host voice.example --api-keys keys.txt \\
                 --tls-cert chain.pem --tls-key key.pem
See also --help-all, 'antiphon models' (what to serve), 'antiphon doctor' (what runs).
"""
MORE: Final = """\
more examples:
  antiphon serve --config antiphon.toml --port 80  a file, one option overridden
  antiphon serve --backend null --null-step-ms 5   no model: frames come back stamped
  antiphon serve --trace 100                       a Chrome trace of 100 steps
  antiphon serve --tune host_lag_ms=80             an experiment with a constant

docs/configuration.md describes the file of --config.
"""


def build_parser(*, is_full: bool = False) -> argparse.ArgumentParser:
    """Make a parser with one flag per option; a flag that is not given is absent from the result.

    The help shows common options, or all of them if ``is_full``.
    """
    parser = Parser(
        prog="antiphon serve",
        usage="antiphon serve [OPTIONS]",
        description=DESCRIPTION,
        epilog=f"{_constants_help()}\n\n{MORE}" if is_full else BASIC,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every option, and exit")
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file of options; the command line overrides it"
    )
    known = options(ServerConfig).values()
    for group in Group:
        target = parser.add_argument_group(group) if is_full else parser
        for info in known:
            if info.group is group:
                target.add_argument(info.flag, **_argument(info, is_shown=is_full or info.is_basic))
    parser.add_argument(
        "--tune",
        action="append",
        metavar="NAME=VALUE",
        help="set a constant for an experiment; repeat for several" if is_full else argparse.SUPPRESS,
    )
    return parser


class _HelpAll(argparse.Action):
    """Prints the complete help and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        build_parser(is_full=True).print_help()
        parser.exit()


def _argument(info: OptionInfo, *, is_shown: bool) -> dict[str, Any]:
    default = "" if info.default is False else info.shown_default
    words = (info.help + (f" [{default}]" if default else "")).replace("%", "%%")
    common = {"dest": info.name, "help": words if is_shown else argparse.SUPPRESS}
    if info.kind is bool:
        return {**common, "action": argparse.BooleanOptionalAction}
    return {**common, "metavar": info.unit, "action": "append" if info.is_list else "store"}


def _constants_help() -> str:
    """The constants with their values and reasons, for --tune."""
    lines = ["constants, which --tune NAME=VALUE sets for experiments:"]
    for info in constants(ServerConfig).values():
        words = f"{info.name}={info.shown_default}  {info.help}"
        lines += textwrap.wrap(words, 78, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)


def parse_command_line(argv: Sequence[str]) -> ServerConfig:
    """The configuration of a command line.

    Raises:
        ConfigError: a flag is unknown or belongs to a constant, a value is invalid, or a file cannot be read.
    """
    given, unknown = build_parser().parse_known_args(list(argv))
    known = options(ServerConfig)
    if unknown:
        word = unknown[0].partition("=")[0]
        if constant := constants(ServerConfig).get(word.removeprefix("--").replace("-", "_")):
            raise refusal_of(constant, word)
        flags = [*(info.flag for info in known.values()), "--config", "--tune", "--help", "--help-all"]
        hint = (
            right_name(word, flags)
            if word.startswith("-")
            else f"options start with --; for a model: --model {word}"
        )
        raise ConfigError(f"unknown option '{word}'; {hint}")
    values = vars(given)
    table = load_file(values.pop("config")) if "config" in values else {}
    tunings = dict(_name_and_value(text) for text in values.pop("tune", ()))
    overrides = {
        name: known[name].parse(value) if isinstance(value, str) else known[name].check(value)
        for name, value in values.items()
    }
    overrides = {name: AUTO if value is None else value for name, value in overrides.items()}
    config = load_config(table, overrides, tunings)
    return replace(config, worker=socket.gethostname()) if config.worker == AUTO else config


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--tune {text}: NAME=VALUE is needed")
    return name.replace("-", "_"), value


def check_files(config: ServerConfig) -> None:
    """Check every variable, file and folder that an option names: inputs must be readable, outputs writable.

    Raises:
        ConfigError: a variable, file, folder or address cannot be used; the message names the option and the
            value.
        MissingExtraError: calls by WebRTC, without the extra.
    """
    port_tls(config)
    if config.hand_over_secret is not None:
        SharedSecret.read(Path(config.hand_over_secret))
    if config.twilio_token is not None:
        read_token(Path(config.twilio_token))
    if config.api_keys is not None:
        keys = KeyFile(Path(config.api_keys))
        for port in config.tcp_ports:
            if keys.named(port.key or "") is None:
                raise ConfigError(f"tcp: {config.api_keys} has no key '{port.key}', that of port {port.port}")
    for entry in config.served:
        if entry.voices is not None and not Path(entry.voices).is_dir():
            raise ConfigError(f"voices = {entry.voices!r}: there is no such folder")
    for agent in config.served_agents:
        for name in (it.llm_key_env for it in agent.text_models):
            if name is not None and not os.environ.get(name):
                raise ConfigError(
                    f"the agent {agent.name!r} takes its text model's key from the environment variable "
                    f"{name}, which is not set"
                )
    if config.webrtc:
        from antiphon.serve.hosting.peers import Peers

        Peers(config.webrtc, config.ice_server, config.limits, time.monotonic)
    if config.usage is not None:
        _check_written("usage", Path(config.usage))
    if config.trace:
        _check_written("trace_file", Path(config.trace_file))
    if config.record is not None:
        folder = Path(config.record)  # the server creates it
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise ConfigError(f"record = {config.record!r}: {nearest} is not a writable folder")


def _check_written(option: str, path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{option} = '{path}': it is a folder, a file is needed")
    if not (os.access(path, os.W_OK) if path.exists() else os.access(path.parent, os.W_OK | os.X_OK)):
        raise ConfigError(f"{option} = '{path}': it cannot be written")
