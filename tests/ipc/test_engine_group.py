"""Several engines of one model: assignment of calls, and lookup of resumed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from antiphon.backends.base import BackendInfo
from antiphon.errors import AntiphonError, MovedError, ResumeError, ServerFullError, SessionFailedError
from antiphon.ipc import engine_group
from antiphon.ipc.engine_client import EnginePort
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.health import Health
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.backends.subjects import null_spec

INFO = BackendInfo("null", "null:0", null_spec(PipelineKind.DUPLEX), slots=2)
IDLE = Health(True, 0.0, True, False, active=0, queued=0, slots=2, free=2, detail="ok")


@dataclass(eq=False)
class FakePort:
    """An engine: ``now`` is what it reports, ``calls`` what it has; ``refusal`` what it raises."""

    number: int
    now: Health = IDLE
    calls: list[float] = field(default_factory=list)
    refusal: AntiphonError | None = None
    known: bool = False
    hangs: bool = False
    answers: asyncio.Event | None = None
    call_bytes: int = 10
    changed: list[Callable[[], None]] = field(default_factory=list)

    @property
    def info(self) -> BackendInfo:
        return replace(INFO, device=f"null:{self.number}")

    def health(self) -> Health:
        return self.now

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed.append(callback)

    def report(self, **changes: Any) -> None:
        self.now = replace(self.now, active=len(self.calls), **changes)
        for callback in self.changed:
            callback()

    async def submit(self, _: SamplingParameters, *, wait_s: float, **__: object) -> int:
        if self.refusal is not None and not wait_s:
            raise self.refusal
        if self.answers is not None:
            await self.answers.wait()
        self.calls.append(wait_s)
        return self.number

    async def resume(self, *_: object, **__: object) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal
        if not self.known:
            raise ResumeError("unknown: there is no such call")
        return self.number

    async def take_call(self, _: bytes) -> None:
        await self.submit(SamplingParameters(), wait_s=0.0)

    async def check_room(self, wait_s: float) -> None:
        if self.refusal is not None and not wait_s:
            raise self.refusal


def group_of(count: int) -> tuple[EngineGroup, list[FakePort]]:
    ports = [FakePort(number) for number in range(count)]
    return EngineGroup(cast("list[EnginePort]", ports)), ports


async def submit(group: EngineGroup, wait_s: float = 0.0) -> int:
    found = await group.submit(SamplingParameters(), wait_s=wait_s, notify=lambda: None)
    return cast("int", found)


async def test_calls_go_to_the_engine_with_the_fewest_reported_or_not() -> None:
    group, ports = group_of(8)
    assert group.info.slots == 16
    for _ in range(20):
        await submit(group)
    sizes = [len(port.calls) for port in ports]
    assert (max(sizes), min(sizes)) == (3, 2)
    for port in ports:
        port.report()
    ports[5].calls.clear()
    ports[5].report()
    assert [await submit(group) for _ in range(2)] == [5, 5]


async def test_a_report_from_before_a_call_does_not_hide_it() -> None:
    group, ports = group_of(2)
    ports[0].answers = asyncio.Event()
    first = asyncio.create_task(submit(group))
    await asyncio.sleep(0)
    ports[0].report()
    second = asyncio.create_task(submit(group))
    await asyncio.sleep(0)
    ports[0].answers.set()
    assert await second == 1
    assert await first == 0
    ports[0].report()
    ports[1].report()
    assert [await submit(group) for _ in range(2)] == [0, 1]


async def test_an_engine_that_is_full_drains_or_is_lost_is_passed_over() -> None:
    group, ports = group_of(4)
    ports[0].report(ready=False, queued=1)
    ports[1].report(alive=False, ready=False)
    ports[2].report(draining=True, ready=False)
    assert {await submit(group) for _ in range(3)} == {3}
    for port in ports:
        port.refusal = ServerFullError("full meanwhile", retry_after_s=1)
    ports[3].report(queued=2)
    with pytest.raises(ServerFullError):
        await submit(group)
    with pytest.raises(ServerFullError):
        await group.check_room(0.0)
    assert await submit(group, wait_s=9.0) == 0, "alive, not draining, and the fewest wait"
    assert ports[0].calls == [9.0]
    await group.check_room(9.0)


async def test_a_call_is_resumed_wherever_it_is() -> None:
    group, ports = group_of(3)
    ports[0].refusal = SessionFailedError("lost")
    ports[2].known = True
    claim = cast("Any", None)
    assert cast("int", await group.resume(claim, notify=lambda: None)) == 2
    ports[2].known = False
    ports[1].refusal = MovedError("b: it goes on elsewhere")
    with pytest.raises(MovedError):
        await group.resume(claim, notify=lambda: None)
    ports[1].refusal = ResumeError("claimed: another connection has it")
    with pytest.raises(ResumeError, match="claimed"):
        await group.resume(claim, notify=lambda: None)


async def test_nothing_waits_for_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_group, "HUNG_S", 0.01)
    group, ports = group_of(3)
    claim = cast("Any", None)
    assert group.health().free == 6
    ports[0].report(stuck_s=9.0, ready=False)
    assert group.health().free == 4, "those of engines that admit"
    for port in ports[1:]:
        port.report(ready=False, queued=2)
    assert await submit(group, wait_s=9.0) != 0
    ports[0].hangs = ports[2].known = True
    assert cast("int", await group.resume(claim, notify=lambda: None)) == 2
    ports[2].known = False
    with pytest.raises(SessionFailedError, match=r"the engine null:0 has not answered for 0\.01 s"):
        await group.resume(claim, notify=lambda: None)


async def test_a_moved_call_goes_to_another_engine_and_one_of_many_that_ends_is_no_end() -> None:
    group, ports = group_of(2)
    ports[0].report(ready=False, draining=True)
    await group.take_call(b"call")
    assert (len(ports[0].calls), len(ports[1].calls)) == (0, 1)
    assert (group.health().ready, group.health().draining) == (True, False)
    ports[0].report(alive=False, ready=False, detail="gone")
    assert group.health().is_healthy
    assert group.health().detail == "null:0: gone"
    ports[1].report(alive=False, ready=False, detail="gone")
    assert not group.health().alive
