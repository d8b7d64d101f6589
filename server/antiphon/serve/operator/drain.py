"""``antiphon drain``: drains a running worker and moves its calls to another one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from antiphon.errors import ConfigError, HandOverError
from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret

EXAMPLES = """\
examples:
  antiphon drain https://a.example:8998 --hand-over https://b.example:8998 --secret secret.txt
  antiphon drain http://127.0.0.1:8998 --hand-over http://127.0.0.1:9998 --secret secret.txt --wait 60
  antiphon drain http://127.0.0.1:8998 --hand-over http://127.0.0.1:8998 --secret secret.txt --engine cuda:3
"""

ASK_S: Final = 15.0
"""Seconds for an answer: a TLS handshake with a worker whose cores are busy takes seconds."""

LOOK_S: Final = 0.2


def main(argv: Sequence[str]) -> int:
    """Compare both workers, start to drain the first one, and wait for its end if requested.

    Raises:
        ConfigError: an address or the secret is invalid, or the two workers cannot exchange calls.
        HandOverError: a worker cannot be reached, or refuses.
    """
    parser = argparse.ArgumentParser(
        prog="antiphon drain",
        description="Drain a worker: it admits no new calls, resumable calls move to another worker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", help="the worker to drain")
    parser.add_argument(
        "--hand-over", required=True, metavar="TARGET", help="the worker that takes over its calls"
    )
    parser.add_argument(
        "--engine", default="", metavar="DEVICE", help="drain only the engine of this GPU; TARGET may be URL"
    )
    parser.add_argument(
        "--secret", required=True, metavar="FILE", help="file with the hand_over_secret of both workers"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="longest wait for its exit, in s [0]"
    )
    options = parser.parse_args(list(argv))
    secret = SharedSecret.read(Path(options.secret))
    leaving = OtherWorker(options.url, secret, timeout_s=ASK_S)
    target = OtherWorker(options.hand_over, secret, timeout_s=ASK_S)
    name = check_pair(leaving.facts(), target.facts(), is_whole=not options.engine)
    leaving.drain(options.hand_over, options.engine)
    print(f"draining; calls that can be resumed go to {name}")  # noqa: T201
    return wait_for_end(leaving, options.wait) if options.wait else 0


def check_pair(leaving: Mapping[str, Any], target: Mapping[str, Any], *, is_whole: bool = True) -> str:
    """Check that the worker ``target`` can accept the calls of every model of the worker ``leaving``; returns
    the target's name.

    Both names may refer to the same worker if only one of its engines drains.

    Raises:
        ConfigError: they cannot exchange calls; the message has the difference, with both values.
    """
    for model, ours in leaving["models"].items():
        theirs = target["models"].get(model)
        if theirs is None:
            raise ConfigError(
                f"{model} is not served there; there is: {', '.join(target['models']) or 'none'}"
            )
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise ConfigError(
                    f"calls of {model} are of {name} {value}, the other worker has {theirs.get(name)}"
                )
    if is_whole and leaving["worker"] == target["worker"]:
        raise ConfigError(
            f"both workers have the name {leaving['worker']!r}, which a load balancer cannot distinguish: "
            "set --worker on each"
        )
    return str(target["worker"] or "the other worker")


def wait_for_end(leaving: OtherWorker, limit_s: float) -> int:
    """Wait until a worker cannot be reached; returns 1 if it still answers after the limit, or is too busy to
    answer.

    Any response counts as an answer, including an error of the worker or of a proxy.
    """
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        try:
            leaving.facts()
        except HandOverError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
                print("gone")  # noqa: T201
                return 0
    print(f"still running after {limit_s:g} s")  # noqa: T201
    return 1
