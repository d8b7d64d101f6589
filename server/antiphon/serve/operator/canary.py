"""``antiphon canary``: shows and changes the state of a model on trial."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from antiphon.canary.trial import Phase
from antiphon.errors import ConfigError, HandOverError
from antiphon.serve.access.other_worker import CANARY_PATH, MAX_ANSWER_BYTES, OtherWorker, check_target
from antiphon.serve.access.shared_secret import SharedSecret

EXAMPLES = """\
examples:
  antiphon canary http://127.0.0.1:8998
  antiphon canary https://a.example:8998 --promote --secret secret.txt
"""

ASK_S: Final = 5.0
ACTIONS: Final[Mapping[str, tuple[Phase, str]]] = {
    "promote": (Phase.PROMOTED, "route all new calls to the canary"),
    "withdraw": (Phase.WITHDRAWN, "route no new calls to the canary"),
    "restart": (Phase.RUNNING, "restart the trial without its results so far"),
}


def main(argv: Sequence[str]) -> int:
    """Show the state, after changing it if requested; returns 1 for a withdrawn canary.

    Raises:
        ConfigError: an address or a file is invalid, or an action needs the secret. HandOverError: the worker
        cannot be reached, or refuses.
    """
    parser = argparse.ArgumentParser(
        prog="antiphon canary",
        description="Compare the canary of a worker with the stable version of its model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", help="the worker")
    actions = parser.add_mutually_exclusive_group()
    for name, (_, words) in ACTIONS.items():
        actions.add_argument(f"--{name}", dest="action", action="store_const", const=name, help=words)
    parser.add_argument("--secret", metavar="FILE", help="file with the worker's hand_over_secret")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file with a key, if the worker protects its metrics"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(argv))
    state = _state(options)
    print(json.dumps(state, indent=2) if options.json else "\n".join(table(state)))  # noqa: T201
    return int(state["phase"] == Phase.WITHDRAWN)


def _state(options: argparse.Namespace) -> Mapping[str, Any]:
    if options.action is None:
        key = None if options.api_key_file is None else Path(options.api_key_file)
        return ask_state(options.url, key)
    if options.secret is None:
        raise ConfigError(f"--{options.action} needs --secret FILE, the hand_over_secret of the worker")
    worker = OtherWorker(options.url, SharedSecret.read(Path(options.secret)), timeout_s=ASK_S)
    return worker.set_canary(ACTIONS[options.action][0].value)


def ask_state(url: str, key_file: Path | None) -> Mapping[str, Any]:
    """A worker's report on its canary.

    Raises:
        ConfigError: the address is invalid, or a file cannot be read. HandOverError: the worker does not
        answer.
    """
    check_target(url)
    request = urllib.request.Request(url.rstrip("/") + CANARY_PATH)
    if key_file is not None:
        try:
            request.add_header("Authorization", f"Bearer {key_file.read_text().strip()}")
        except OSError as error:
            raise ConfigError(f"cannot read {key_file}: {error.strerror}") from error
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            state = json.loads(answer.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        words = error.read(MAX_ANSWER_BYTES).decode(errors="replace").strip()
        raise HandOverError(f"{url} answered {error.code}: {words[:200]}") from error
    except (OSError, ValueError, HTTPException) as error:
        raise HandOverError(f"{url} cannot be reached: {error!r}") from error
    if not isinstance(state, dict) or "phase" not in state:
        raise HandOverError(f"{url} did not answer with the state of a canary")
    return state


def table(state: Mapping[str, Any]) -> list[str]:
    """The state as text: the phase, the calls, and each signal's values of both versions."""
    names, calls = state["models"], state["calls"]
    by = "calls" if state["by"] == "call" else "callers"
    lines = [
        f"{names['canary']} compared with {names['stable']}: {state['phase']}"
        + (f" ({state['reason']})" if state["reason"] else ""),
        f"{state['share']:.0%} of new {by}; {calls['canary']} calls of the canary, {calls['stable']} of the "
        "stable version have ended",
        f"{'signal':<14}{'canary':>9}{'stable':>9}{'compared':>10}{'evidence':>20}",
    ]
    for name, found in state["signals"].items():
        evidence = f"{found['capital']:.3g} of {found['needed']}"
        lines.append(
            f"{name:<14}{found['canary']:>9.3f}{found['stable']:>9.3f}{found['comparisons']:>10}{evidence:>20}"
        )
    return lines
