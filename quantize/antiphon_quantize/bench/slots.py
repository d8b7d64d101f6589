"""``antiphon bench slots``: runs the server's search for slots, confirms the result, and writes it as a
configuration.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from antiphon.backends.base import Backend
from antiphon.config import MODEL_HELP, ServerConfig
from antiphon.engine.config import EngineConfig
from antiphon.engine.sizing import ALONE, BackendFactory, DeviceShare, make_sized
from antiphon.engine.tick_times import calls_in_time, tick_limit_s
from antiphon.errors import ConfigError
from antiphon.install import antiphon_command
from antiphon.ipc.values import percentile
from antiphon.models.catalog import load_checkpoint
from antiphon.models.source import DEFAULT_MODEL
from antiphon.option import Parser
from antiphon.serve.hosting.engines import backend_factory
from antiphon.serve.hosting.host_load import measure_host_load
from antiphon.serve.hosting.main import front_ends_of
from antiphon_quantize.bench.card import TickPlan
from antiphon_quantize.bench.options import add_backend_options, make_subjects, one_entry
from antiphon_quantize.bench.output import check_absent, write_new
from antiphon_quantize.bench.player import TickTurn, no_progress, take_turn
from antiphon_quantize.bench.subject import Subject

LEAD_FRAMES = 25

EXAMPLES = """\
examples:
  antiphon bench slots antiphon.toml                      the default model
  antiphon bench slots --model ./moshiko-int8 --backend torch --seconds 60 antiphon.toml
  antiphon serve --config antiphon.toml

The number is found as by --slots auto. To confirm it, the rows that are ready at the same time run one tick
a frame for --seconds. If the p99 of a tick is longer than half a frame, no file is written and the exit code
is 1: a frame may wait for one tick and then needs its own, so some frames would be late.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen number of slots, and the paced ticks that confirm or refute it."""

    slots: int
    frame_ms: float
    turn: TickTurn

    @property
    def p99_ms(self) -> float:
        """The tick time that 99 of 100 ticks do not exceed."""
        return 1000 * percentile(self.turn.tick_s, 0.99)

    @property
    def limit_ms(self) -> float:
        """The longest tick that is in time: half a frame."""
        return 1000 * tick_limit_s(self.frame_ms / 1000, reserve_fraction=0.0)

    @property
    def is_in_time(self) -> bool:
        """Whether p99 is within the limit."""
        return self.p99_ms <= self.limit_ms


def find_slots(
    factory: BackendFactory,
    config: EngineConfig,
    seconds: float,
    share: DeviceShare = ALONE,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """Choose slots as the engine does for a ``share`` of the device, then run ticks of :func:`ready_rows`
    rows for ``seconds``.

    Raises:
        ConfigError: one row does not fit into memory, or no measurement can decide.
        BackendError: memory ran out.
    """
    backend: Backend = make_sized(factory, config, clock, share).backend
    try:
        backend.warm_up(no_progress)
        rows = ready_rows(backend, config)
        turn = take_turn(backend, rows, TickPlan((rows,), seconds, 1, LEAD_FRAMES), clock=clock, sleep=sleep)
        return Found(backend.info.slots, backend.info.spec.frame_ms, turn)
    finally:
        backend.close()


def with_calls() -> DeviceShare:
    """The share of a server's only model, which leaves CPU time for the sockets of its calls."""
    return DeviceShare(load=measure_host_load(front_ends_of(ServerConfig()) or None))


def ready_rows(backend: Backend, config: EngineConfig) -> int:
    """The number of rows in a tick when all slots have calls. It is lower than the number of slots if the
    backend computes only ready rows.
    """
    slots = backend.info.slots
    is_packed = not config.fixed_batch and backend.plan(np.zeros(1, np.int32)) < slots
    if not is_packed or not backend.info.spec.kind.has_deadlines:
        return slots
    reserve = config.tick_reserve_fraction
    return next(
        rows for rows in range(1, slots + 1) if calls_in_time(rows, reserve_fraction=reserve) >= slots
    )


def main(
    argv: Sequence[str],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Find the slots of one model and write the configuration; return 1 if the ticks are not in time.

    Raises:
        AntiphonError: an invalid option, a file that exists, or a model that cannot be run.
    """
    options = _parse(argv)
    out = Path(options.out)
    check_absent(out)
    entry = one_entry(options)
    (subject,) = make_subjects([entry])
    factory = backend_factory(ServerConfig(), entry, load_checkpoint(entry.model))
    engine = EngineConfig(max_slots=options.max_slots)
    found = find_slots(factory, engine, options.seconds, with_calls(), clock=clock, sleep=sleep)
    said = summary(found, options.max_slots)
    if not found.is_in_time:
        print(f"{said}; nothing is written. Try again when the machine does nothing else", file=sys.stderr)  # noqa: T201
        return 1
    command = shlex.join(["antiphon", "bench", "slots", *argv])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_new(out, config_text(subject, tuple(options.backend_option), found, [f"{command}, {now}", said]))
    print(f"{said}\n{out}: {antiphon_command(f'serve --config {shlex.quote(str(out))}')}")  # noqa: T201
    return 0


def summary(found: Found, max_slots: int) -> str:
    """The search's result in a sentence."""
    most = ", the requested maximum" if found.slots == max_slots else ""
    return (
        f"slots = {found.slots}{most}: {len(found.turn.tick_s)} ticks of {found.turn.rows} ready rows, "
        f"one every {found.frame_ms:g} ms, p50 {1000 * percentile(found.turn.tick_s, 0.5):.2f} ms, p99 "
        f"{found.p99_ms:.2f} ms of {found.limit_ms:g} ms, {found.turn.late} late"
    )


def config_text(
    subject: Subject, backend_options: Sequence[str], found: Found, comments: Sequence[str]
) -> str:
    """The content of a TOML file for ``antiphon serve --config``."""
    lines = [f"# {comment}" for comment in comments]
    lines += [f"model = {json.dumps(subject.model)}", f"backend = {json.dumps(subject.backend)}"]
    if subject.device is not None:
        lines.append(f"device = {json.dumps(subject.device)}")
    if backend_options:
        lines.append(f"backend_option = {json.dumps(list(backend_options))}")
    return "\n".join([*lines, "", "[engine]", f"slots = {found.slots}"]) + "\n"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="antiphon bench slots",
        description="Find the largest number of slots without late frames, and write it as a configuration.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="FILE.toml", help="the file to write, which must not exist")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"{MODEL_HELP} [{DEFAULT_MODEL}]")
    add_backend_options(parser)
    most = EngineConfig().max_slots
    parser.add_argument(
        "--max-slots", type=int, default=most, metavar="N", help=f"upper limit of slots [{most}]"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time of the final check [10]")
    options = parser.parse_args(list(argv))
    if options.max_slots < 1:
        raise ConfigError(f"max_slots = {options.max_slots} is below 1, the minimum")
    return options
