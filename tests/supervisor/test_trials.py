"""The trial of a canary over several front ends."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from antiphon.canary.kept import KeptTrial
from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase, TrialRules
from antiphon.errors import ProtocolError
from antiphon.ipc.message_socket import MessageSocket
from antiphon.log import Log
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.supervisor.messages import (
    CONTROL,
    AskPhase,
    Body,
    CanaryPhase,
    Compared,
    ControlReply,
    Message,
    Question,
)
from antiphon.supervisor.shared import SharedState


def body_of(reply: ControlReply) -> dict[str, Any]:
    assert isinstance(reply, Body)
    body: dict[str, Any] = json.loads(reply.data)
    return body


async def test_calls_of_all_front_ends_decide_and_the_phase_is_announced() -> None:
    said: list[Phase] = []
    registry, shared = CollectorRegistry(), SharedState()
    shared.trial = KeptTrial(TrialRules(), registry=registry, log=Log(), on_phase=said.append)
    bad, well = CallSignals(silence=1.0).values, CallSignals(silence=0.0).values
    for _ in range(40):
        shared.handle(1, Compared(TrialArm.STABLE, "", well))
        shared.handle(2, Compared(TrialArm.CANARY, "", bad))
    assert said == [Phase.WITHDRAWN]
    assert body_of(shared.handle(1, Question("canary")))["reason"].startswith("silence: 1.00")
    assert b'antiphon_canary_phase{phase="withdrawn"} 1.0' in generate_latest(registry)
    assert body_of(shared.handle(2, AskPhase(Phase.PROMOTED)))["phase"] == "promoted"
    assert said[-1] == Phase.PROMOTED


async def test_without_a_canary_nothing_is_said() -> None:
    shared = SharedState()
    shared.handle(1, Compared(TrialArm.STABLE, "", CallSignals().values))
    assert body_of(shared.handle(1, Question("canary"))) == {}


@pytest.mark.parametrize(
    "message",
    [
        Compared(TrialArm.CANARY, "", (float("nan"),) * 6),
        Compared(TrialArm.CANARY, "", (None, None, 1e300, None, None, None)),
        Compared(TrialArm.CANARY, "", (None, -0.5, None, None, None, None)),
        Compared(TrialArm.CANARY, "", (0.0,) * 7),
        Compared(TrialArm.CANARY, "", ("1",) * 6),  # type: ignore[arg-type]
        Compared("third", "", (0.0,) * 6),  # type: ignore[arg-type]
    ],
)
def test_signals_out_of_range_are_refused(message: Compared) -> None:
    with pytest.raises(ProtocolError, match="are no message"):
        CONTROL.decode(CONTROL.encode(0, message))


async def test_a_front_end_reports_asks_and_obeys_over_its_control_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared = SharedState()

    def announce(phase: Phase) -> None:
        supervisor.send(CanaryPhase(phase))

    shared.trial = KeptTrial(TrialRules(), registry=CollectorRegistry(), log=Log(), on_phase=announce)

    def hear(message: Message, _: Any) -> ControlReply:
        return shared.handle(1, message)

    heard = asyncio.Event()

    def note_phase(message: Message, _: Any) -> ControlReply:
        assert isinstance(message, CanaryPhase)
        client.note_phase(message.phase)
        heard.set()
        return None

    supervisor = MessageSocket(ours, CONTROL, hear, lost=lambda _: None)
    front_end = MessageSocket(theirs, CONTROL, note_phase, lost=lambda _: None)
    client = SupervisorClient(front_end.send, front_end.ask)
    try:
        assert client.phase == Phase.RUNNING
        client.record(TrialArm.CANARY, CallSignals(late=0.25, failure=0.0), "")
        assert (await client.trial())["signals"]["late"]["canary"] == 0.25
        assert (await client.trial(Phase.PROMOTED))["phase"] == "promoted"
        await heard.wait()
        assert client.phase.value == "promoted"
    finally:
        supervisor.close()
        front_end.close()
