"""The load generator: it uses one process or several, stops at Ctrl-C, and measures its own CPU cost."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from antiphon.cores import usable_cores
from antiphon.errors import SessionError
from antiphon_client.interrupts import ignoring_interrupts, on_interrupt
from antiphon_client.load import (
    PROGRESS_INTERVAL_S,
    LoopReport,
    OnProgress,
    ProbeLoad,
    Progress,
    Stop,
    run_share,
)
from antiphon_client.measures import Distribution
from antiphon_client.report import GeneratorReport
from antiphon_client.session import SessionResult


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Outcome of a load: one result per plan, in order, and the generator's own cost."""

    results: tuple[SessionResult, ...]
    generator: GeneratorReport
    was_interrupted: bool = False


def generate(
    load: ProbeLoad,
    *,
    processes: int = 1,
    on_progress: OnProgress,
) -> LoadResult:
    """Run all sessions of ``load``; Ctrl-C ends them early and still returns the measurements.

    Raises:
        SessionError: a generator process died.
    """
    processes = max(1, min(processes, len(load.plans)))
    if processes == 1:
        stop = Stop()
        with on_interrupt(stop.set):
            shares = [asyncio.run(run_share(load, on_progress=on_progress, stop=stop, clock=time.monotonic))]
        return _join(shares, processes, was_interrupted=stop.is_set)
    return _generate_in_processes(load, processes, on_progress)


def _join(shares: Sequence[LoopReport], processes: int, *, was_interrupted: bool) -> LoadResult:
    results = sorted(
        (result for share in shares for result in share.results), key=lambda result: result.record.session
    )
    late_ms = [late for share in shares for late in share.loop_late_ms]
    generator = GeneratorReport(
        processes=processes,
        cores=usable_cores(),
        cpu_s=sum(share.cpu_s for share in shares),
        wall_s=max(share.wall_s for share in shares),
        loop_late_ms=Distribution.of(late_ms),
    )
    return LoadResult(tuple(results), generator, was_interrupted)


# Several processes. Each child loads, reports it, waits for "go", and ends early at any further message.


def _generate_in_processes(load: ProbeLoad, processes: int, on_progress: OnProgress) -> LoadResult:
    context = multiprocessing.get_context("spawn")
    parts = [replace(load, plans=load.plans[k::processes]) for k in range(processes)]
    pipes = [context.Pipe() for _ in parts]
    children = [
        context.Process(target=_child, args=(theirs, part), daemon=True)
        for (_, theirs), part in zip(pipes, parts, strict=True)
    ]
    stop = Stop()
    with ignoring_interrupts():  # children inherit the handler: the parent forwards Ctrl-C
        for child in children:
            child.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        with on_interrupt(stop.set):
            shares = _collect([ours for ours, _ in pipes], stop, on_progress)
        for child in children:
            child.join(timeout=5)
    finally:
        for child in children:
            child.kill()
            child.join()
    return _join(shares, processes, was_interrupted=stop.is_set)


def _collect(pipes: Sequence[Connection], stop: Stop, on_progress: OnProgress) -> list[LoopReport]:
    for pipe in pipes:
        _receive(pipe)
    for pipe in pipes:
        pipe.send("go")
    progress = [Progress()] * len(pipes)
    shares: dict[int, LoopReport] = {}
    has_told = False
    while len(shares) < len(pipes):
        running = {index: pipe for index, pipe in enumerate(pipes) if index not in shares}
        news = wait(list(running.values()), timeout=PROGRESS_INTERVAL_S)
        for index, pipe in running.items():
            if pipe not in news:
                continue
            message = _receive(pipe)
            if isinstance(message, LoopReport):
                shares[index] = message
            else:
                progress[index] = message
        on_progress(sum(progress, Progress()))
        if stop.is_set and not has_told:
            has_told = True
            for pipe in running.values():
                with contextlib.suppress(BrokenPipeError):  # it may have just finished
                    pipe.send("stop")
    return [shares[index] for index in range(len(pipes))]


def _receive(pipe: Connection) -> Progress | LoopReport:
    try:
        message: Progress | LoopReport = pipe.recv()
    except EOFError:
        raise SessionError("a process of the load generator died; its output is above") from None
    return message


def _child(pipe: Connection, load: ProbeLoad) -> None:
    pipe.send(Progress())
    pipe.recv()
    pipe.send(asyncio.run(_run_child(pipe, load)))


async def _run_child(pipe: Connection, load: ProbeLoad) -> LoopReport:
    loop = asyncio.get_running_loop()
    stop = Stop()

    def on_request() -> None:
        loop.remove_reader(pipe.fileno())
        with contextlib.suppress(EOFError):  # the parent is gone: end as well
            pipe.recv()
        stop.set()

    loop.add_reader(pipe.fileno(), on_request)
    try:
        return await run_share(load, on_progress=pipe.send, stop=stop, clock=time.monotonic)
    finally:
        loop.remove_reader(pipe.fileno())
