"""The trial of a canary over several front ends."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase, TrialRules
from antiphon.errors import ProtocolError
from antiphon.ipc.message_socket import MessageSocket
from antiphon.log import Log
from antiphon.serve.hosting.central_trial import CentralTrial
from antiphon.supervisor.messages import (
    CONTROL,
    AskPhase,
    CanaryPhase,
    Compared,
    ControlReply,
    Message,
    Question,
)
from antiphon.supervisor.trials import FrontEndTrial


async def test_calls_of_all_front_ends_decide_and_all_of_them_hear_of_it() -> None:
    said: list[list[Message]] = [[], []]
    children: list[Any] = [SimpleNamespace(peer=SimpleNamespace(send=each.append)) for each in said]
    registry = CollectorRegistry()
    trial = FrontEndTrial(TrialRules(), registry=registry, log=Log(), front_ends=lambda: children)
    trial.greet(children[0])
    assert said[0] == [CanaryPhase(Phase.RUNNING)]
    bad, well = CallSignals(silence=1.0).values, CallSignals(silence=0.0).values
    for _ in range(40):
        trial.compare(Compared(TrialArm.STABLE, "", well))
        trial.compare(Compared(TrialArm.CANARY, "", bad))
    assert said == [
        [CanaryPhase(Phase.RUNNING), CanaryPhase(Phase.WITHDRAWN)],
        [CanaryPhase(Phase.WITHDRAWN)],
    ]
    assert json.loads(trial.report().data)["reason"].startswith("silence: 1.00")
    assert b'antiphon_canary_phase{phase="withdrawn"} 1.0' in generate_latest(registry)
    assert json.loads(trial.ask(AskPhase(Phase.PROMOTED)).data)["phase"] == "promoted"
    assert said[1][-1] == CanaryPhase(Phase.PROMOTED)


async def test_without_a_canary_nothing_is_said() -> None:
    trial = FrontEndTrial(None, registry=CollectorRegistry(), log=Log(), front_ends=list)
    trial.compare(Compared(TrialArm.STABLE, "", CallSignals().values))
    assert json.loads(trial.report().data) == {}


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
    kept = FrontEndTrial(
        TrialRules(),
        registry=CollectorRegistry(),
        log=Log(),
        front_ends=lambda: [SimpleNamespace(peer=supervisor)],  # type: ignore[list-item]
    )

    def hear(message: Message, _: Any) -> ControlReply:
        match message:
            case Compared():
                kept.compare(message)
            case AskPhase():
                return kept.ask(message)
            case Question(what="canary"):
                return kept.report()
        return None

    heard = asyncio.Event()

    def hear_phase(message: Message, _: Any) -> ControlReply:
        assert isinstance(message, CanaryPhase)
        central.hear(message)
        heard.set()
        return None

    supervisor = MessageSocket(ours, CONTROL, hear, lost=lambda _: None)
    front_end = MessageSocket(theirs, CONTROL, hear_phase, lost=lambda _: None)
    central = CentralTrial(front_end)
    try:
        assert central.phase == Phase.RUNNING
        central.record(TrialArm.CANARY, CallSignals(late=0.25, failure=0.0), "")
        assert (await central.report())["signals"]["late"]["canary"] == 0.25
        assert (await central.ask(Phase.PROMOTED))["phase"] == "promoted"
        await heard.wait()
        assert central.phase.value == "promoted"
    finally:
        supervisor.close()
        front_end.close()
