"""``antiphon keys``: makes an API key, and its line for the server's file."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from antiphon.errors import ConfigError
from antiphon.serve.access.keys import KEY_NAME, MAX_SECONDS, MAX_SESSIONS, KeyEntry, digest_of, format_key

KEY_BYTES = 24
"""Random bytes in a key: too many to search for, so a plain hash may be stored."""

MIN_CHARS = 12
"""Minimum characters of a chosen key."""

EXAMPLES = """\
examples:
  antiphon keys alice >> keys.txt                 a random key, shown once, on standard error
  antiphon keys alice --sessions 4 >> keys.txt    with a limit of its own
  pass show speech | antiphon keys bob --stdin >> keys.txt
"""


def main(argv: Sequence[str]) -> int:
    """Print the line on standard output and a new key on standard error.

    Raises:
        ConfigError: the name is not valid in a line, or the key is too short.
    """
    parser = argparse.ArgumentParser(
        prog="antiphon keys",
        description="Make an API key, and its line for the file of antiphon serve --api-keys.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="the name of the key in logs and metrics")
    parser.add_argument("--sessions", type=int, metavar="N", help="sessions at once [max_sessions_per_key]")
    parser.add_argument(
        "--seconds", type=int, metavar="N", help="seconds of calls a day [max_seconds_per_key]"
    )
    parser.add_argument("--stdin", action="store_true", help="read an existing key from standard input")
    options = parser.parse_args(list(argv))
    key = sys.stdin.readline().strip() if options.stdin else secrets.token_hex(KEY_BYTES)
    if len(key) < MIN_CHARS:
        raise ConfigError(f"the key has {len(key)} characters; the least is {MIN_CHARS}")
    if not KEY_NAME.fullmatch(options.name):
        raise ConfigError(f"{options.name!r} names no key: 1 to 64 letters, digits, and any of . _ @ -")
    if options.sessions is not None and not 0 <= options.sessions <= MAX_SESSIONS:
        raise ConfigError(f"--sessions {options.sessions}: 0 (any number) to {MAX_SESSIONS} is allowed")
    if options.seconds is not None and not 0 <= options.seconds <= MAX_SECONDS:
        raise ConfigError(f"--seconds {options.seconds}: 0 (any number) to {MAX_SECONDS} is allowed")
    print(format_key(KeyEntry(options.name, digest_of(key), options.sessions, options.seconds)))  # noqa: T201
    if not options.stdin:
        print(f"the key of {options.name}, which cannot be shown again: {key}", file=sys.stderr)  # noqa: T201
    return 0
