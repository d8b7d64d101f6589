"""The ``antiphon`` command: one table of subcommands, each imported only when it is used.

Exit codes: 0 done, 1 a negative result of the command (a limit was missed), 2 a usage or configuration error,
130 interrupted (0 below ``make serve``), 141 the reader of the output closed the pipe; ``serve`` adds 70 when
the server cannot continue.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from antiphon import __version__
from antiphon.errors import AntiphonError, ConfigError, nearest
from antiphon.install import interrupted_code, make_goal
from antiphon.log import ERASE

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: its ``main(argv) -> int`` as "module:function", and its one-line help."""

    target: str
    help: str

    def load(self) -> Callable[[list[str]], int]:
        """Import the module and return its main function."""
        module, _, function = self.target.partition(":")
        main: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
        return main


COMMANDS: Mapping[str, Command] = {
    "serve": Command("antiphon.serve.hosting.main:main", "run the server"),
    "probe": Command("antiphon_client.probe:main", "call a server with recorded speech, report its latency"),
    "talk": Command("antiphon_client.talk:main", "talk to a server with microphone and speaker"),
    "drain": Command(
        "antiphon.serve.operator.drain:main", "drain a worker; its calls end or move to another"
    ),
    "canary": Command("antiphon.serve.operator.canary:main", "show, promote or withdraw the model on trial"),
    "keys": Command("antiphon.serve.access.new_key:main", "make an API key for a server's file of keys"),
    "doctor": Command(
        "antiphon_quantize.bench.doctor:main",
        "check this machine: missing parts, models that run, speed",
    ),
    "models": Command(
        "antiphon_quantize.advice.main:main",
        "list built-in, cached and published models, and those that fit",
    ),
    "quantize": Command("antiphon_quantize.main:main", "make a smaller checkpoint from a larger one"),
    "gate": Command("antiphon_quantize.gate:main", "compare a smaller checkpoint with its original"),
    "bench": Command("antiphon_quantize.bench.main:main", "measure models as they run: the benchmark card"),
    "verify": Command(
        "antiphon_quantize.bench.verify:main",
        "check a model: its files, parity with upstream, its gate and card",
    ),
}

EXAMPLES = """\
Examples:
  antiphon serve                                        the default model on http://127.0.0.1:8998
  antiphon serve --model hf://kyutai/moshiko-pytorch-bf16 --slots 8
  antiphon serve --backend null --null-step-ms 5        no model: stamps, for testing clients
  antiphon probe http://127.0.0.1:8998 --audio clip.wav --sessions 4
  antiphon talk http://127.0.0.1:8998
  antiphon doctor                                       what is missing here, and what will run
  antiphon models --fits 24GB --modality duplex --sessions 8
  antiphon keys alice >> keys.txt                       then: antiphon serve --api-keys keys.txt
  antiphon quantize --model hf://kyutai/moshiko-pytorch-bf16 ./moshiko-int8
  antiphon gate hf://kyutai/moshiko-pytorch-bf16 ./moshiko-int8
  antiphon bench --model ./moshiko-int8 --model ./moshiko --baseline ./moshiko
  antiphon bench slots --model ./moshiko-int8 antiphon.toml
"""


def usage(commands: Mapping[str, Command] = COMMANDS) -> str:
    """The text of ``antiphon --help``."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in commands.items()]
    return (
        "Usage: antiphon COMMAND [OPTIONS]\n\n"
        "A real-time streaming speech server for the Moshi family of models.\n\n"
        "Commands:\n" + "\n".join(lines) + "\n\n"
        "Options:\n"
        "  -h, --help     this text; 'antiphon COMMAND --help' for a command's own options\n"
        "  --version      the version\n\n" + EXAMPLES
    )


def find_command(name: str, commands: Mapping[str, Command] = COMMANDS) -> Command:
    """The command called ``name``.

    Raises:
        ConfigError: the command does not exist; the message has the nearest name.
    """
    command = commands.get(name)
    if command is not None:
        return command
    raise ConfigError(f"no command '{name}'; {nearest(name, commands)}")


def wants_traceback(argv: Sequence[str]) -> bool:
    """Whether the command line requests log level debug, which also shows the traceback of an error."""
    return "--log-level=debug" in argv or any(
        option == "--log-level" and value == "debug" for option, value in itertools.pairwise(argv)
    )


def run(argv: Sequence[str], commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage(commands))  # noqa: T201
        return 0 if argv else EXIT_USAGE
    if argv[0] in ("--version", "version"):
        print(f"antiphon {__version__}")  # noqa: T201
        return 0
    try:
        return find_command(argv[0], commands).load()(list(argv[1:]))
    except AntiphonError as error:
        if wants_traceback(argv):
            traceback.print_exc()
        print(f"antiphon: {error}", file=sys.stderr)  # noqa: T201
        if make_goal() == "serve" and "--" in str(error):
            print('make passes options in ARGS: make serve ARGS="--port 9000"', file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write(ERASE)
        return EXIT_INTERRUPTED


def main() -> NoReturn:
    """Entry point of the ``antiphon`` script."""
    try:
        try:
            code = run(sys.argv[1:])
        except SystemExit as ended:  # a help, or SIGTERM while a model loads
            code = ended.code if isinstance(ended.code, int) else 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader ("| head") has closed the pipe. The flush at exit must not write to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    end_process(interrupted_code() if code == EXIT_INTERRUPTED else code)


def end_process(code: int) -> NoReturn:
    """End this process with an exit code.

    Daemon threads end with it at once. A regular exit would stop them inside native code, where ONNX
    Runtime's sessions abort the process (exit code 134).
    """
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
