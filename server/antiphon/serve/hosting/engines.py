"""Starts the engines of the configured models, in order, on shared devices."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from antiphon.backends.base import Backend, Progress
from antiphon.backends.machine import WITHOUT_VNNI, instructions
from antiphon.backends.registry import device_of, make_backend, options_of, resolve_auto
from antiphon.config import ModelConfig, ServerConfig
from antiphon.engine.engine import Engine
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.sizing import BackendFactory, DeviceShare, bytes_taken
from antiphon.engine.tick_times import HostLoad
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError
from antiphon.ipc.engine_client import ModelFacts
from antiphon.log import ERASE, Log
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import Checkpoint
from antiphon.option import AUTO
from antiphon.serve.hosting.hand_over_plan import hand_over_plan
from antiphon.serve.hosting.host_load import measure_host_load
from antiphon.serve.hosting.model_names import name_models

DIGEST_DIGITS = 12
"""Hexadecimal digits of a manifest's SHA-256 in the banner, enough to distinguish two releases."""

STOP_TIMEOUT_S = 10.0
"""Seconds to wait for the running step of each engine at the end."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A started engine, with its configuration and checkpoint."""

    config: ModelConfig
    name: str
    checkpoint: Checkpoint
    engine: Engine


@contextmanager
def running_engines(
    config: ServerConfig,
    families: MetricFamilies,
    *,
    on_lost: Callable[[AntiphonError], None],
    tracer: Tracer | None,
    progress: Progress,
    pools: int | None = None,
) -> Iterator[list[RunningEngine]]:
    """Start the engines of the configured models for the block; ``pools`` is passed to each engine.

    Every checkpoint is read, and its files compared with its manifest, before the first engine starts. An
    engine counts the device memory that earlier engines use, and leaves a share for later engines.

    Raises:
        AntiphonError: one of the models cannot be served.
    """
    entries = name_models(config.served, config.alias, config.served_agents)
    if not config.skip_digests:
        for _, name, checkpoint in entries:
            checkpoint.verify(partial(_show_as, progress, f"{name}: SHA-256 of "))
    devices = [device_of(backend_of(entry, checkpoint), entry.device) for entry, _, checkpoint in entries]
    models, waiting = Counter(devices), Counter(devices)
    load = HostLoad() if all(entry.slots for entry, _, _ in entries) else measure_host_load(pools)
    taken_bytes: Counter[str] = Counter()
    running: list[RunningEngine] = []
    with ExitStack() as engines:
        for device, (entry, name, checkpoint) in zip(devices, entries, strict=True):
            engine = Engine(
                backend_factory(config, entry, checkpoint),
                replace(config.engine, slots=entry.slots),
                metrics=EngineMetrics(families, model=name),
                on_lost=on_lost,
                tracer=tracer,
                share=DeviceShare(dict(taken_bytes), models[device], waiting[device], load),
                pools=pools,
                wake=EventWake() if pools else None,
                hand_over=hand_over_plan(config, name, checkpoint),
            )
            engine.start(partial(_show_as, progress, f"{name}: " if len(entries) > 1 else ""))
            engines.callback(stop_engine, engine)
            waiting[device] -= 1
            taken_bytes[engine.info.device] += bytes_taken(engine.info)
            rings = engine.rings_of(engine.info.spec)
            taken_bytes["cpu"] += rings.fixed + engine.info.slots * rings.row
            running.append(RunningEngine(entry, name, checkpoint, engine))
        yield running


def _show_as(progress: Progress, prefix: str, done: int, total: int, what: str) -> None:
    progress(done, total, prefix + what)


def stop_engine(engine: Engine) -> None:
    """Stop an engine, without waiting if its device is lost."""
    engine.stop(STOP_TIMEOUT_S if engine.health().alive else 0.0)


def backend_of(entry: ModelConfig, checkpoint: Checkpoint) -> str:
    """The backend that an entry requests, or the best one for its checkpoint on this machine.

    Raises:
        MissingExtraError: no installed backend can run the model.
    """
    return resolve_auto(checkpoint) if entry.backend == AUTO else entry.backend


def backend_factory(config: ServerConfig, entry: ModelConfig, checkpoint: Checkpoint) -> BackendFactory:
    """Return a factory that makes an entry's backend for a number of slots.

    Raises:
        ConfigError: the backend does not exist, or :func:`antiphon.backends.registry.options_of` fails.
        MissingExtraError: no installed backend can run the model.
    """
    name = backend_of(entry, checkpoint)
    chosen: dict[str, Any] = {}
    if name == "null":
        chosen = {"step_ms": config.null_step_ms, "hold_gil": config.null_hold_gil}
    if name == "onnx" and len(config.served) > 1:
        chosen["spin"] = False  # the other engines have threads here too, which the measurement would miss
    chosen |= options_of(name, entry.backend_option)

    def make(slots: int) -> Backend:
        return make_backend(name, checkpoint, slots=slots, device=entry.device, options=chosen)

    return make


def lines_of(running: Sequence[RunningEngine], number: int = 0) -> list[str]:
    """The banner's lines of engine process ``number``: each model, and in the first process also each
    different assumption of ``slots = auto`` about a call. Each process measures it, on the same machine.
    """
    models = [describe(it.name, it.engine.info, it.checkpoint, it.engine.note) for it in running]
    if number:
        return models
    return [*models, *dict.fromkeys(it.engine.assumed for it in running if it.engine.assumed)]


def describe(name: str, info: ModelFacts, checkpoint: Checkpoint, *notes: str, cpu: str | None = None) -> str:
    """The banner's line about one model: its parameters, the beginning of its manifest's SHA-256, and the
    engine's ``notes``.

    ``cpu`` is the name of a CPU's instructions for INT8; None means this machine's CPU. If the CPU has no
    VNNI, the text describes the cost. Graphs that ``antiphon quantize --here`` chose are named by stage, with
    the processor that they were chosen on.
    """
    digest = checkpoint.digest[:DIGEST_DIGITS]
    files = f"files {digest}" if digest else "files without a manifest"
    instruction_set = instructions() if cpu is None else cpu
    if (info.name, info.device) == ("onnx", "cpu") and instruction_set.endswith("without VNNI"):
        notes = (*notes, f"{instruction_set}: {WITHOUT_VNNI}")
    recipe = checkpoint.quantization_for(info.name)
    if recipe is not None and (processor := recipe.options.get("processor")):
        notes = (*notes, f"{recipe.scheme}, chosen on {processor}")
    threads = f" ({info.threads})" if info.threads else ""
    parameters = info.spec.parameters
    size = f"{parameters / 1e9:.2f} B" if parameters >= 5e8 else f"{parameters / 1e6:.1f} M"
    return (
        f"{name} ({info.spec.kind}, {size}) "
        f"on {info.name}/{info.device}{threads}, {info.slots} slot{'s' * (info.slots != 1)}, {files}"
        + "".join(f"; {note}" for note in notes if note)
    )


def show_progress(is_terminal: bool) -> Progress:
    """Return a function that reports the progress of the warm-up: on one line of a terminal, erased at the
    end, or in the log.
    """
    log = Log()

    def show(done: int, total: int, what: str) -> None:
        if is_terminal:
            sys.stderr.write(ERASE + ("" if done == total else f"{what} {done}/{total}"))
            sys.stderr.flush()
        elif done == total:
            log.info("warm", what=what, total=total)

    return show
