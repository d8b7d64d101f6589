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
from antiphon.log import Log
from antiphon.serve.hosting.central_trial import CentralTrial
from antiphon.supervisor.messages import AskPhase, CanaryPhase, Compared, Message, Question
from antiphon.supervisor.peer import Peer, Reply
from antiphon.supervisor.trials import FrontEndTrial


async def test_calls_of_all_front_ends_decide_and_all_of_them_hear_of_it() -> None:
    said: list[list[Message]] = [[], []]
    children: list[Any] = [SimpleNamespace(peer=SimpleNamespace(tell=each.append)) for each in said]
    registry = CollectorRegistry()
    trial = FrontEndTrial(TrialRules(), registry=registry, log=Log(), front_ends=lambda: children)
    trial.greet(children[0])
    assert said[0] == [CanaryPhase("running")]
    bad, well = CallSignals(silence=1.0).values, CallSignals(silence=0.0).values
    for _ in range(40):
        trial.compare(Compared("stable", "", well))
        trial.compare(Compared("canary", "", bad))
    assert said == [[CanaryPhase("running"), CanaryPhase("withdrawn")], [CanaryPhase("withdrawn")]]
    assert json.loads(trial.report().data)["reason"].startswith("silence: 1.00")
    assert b'antiphon_canary_phase{phase="withdrawn"} 1.0' in generate_latest(registry)
    assert json.loads(trial.ask(AskPhase("promoted")).data)["phase"] == "promoted"
    assert said[1][-1] == CanaryPhase("promoted")


async def test_without_a_canary_nothing_is_said() -> None:
    trial = FrontEndTrial(None, registry=CollectorRegistry(), log=Log(), front_ends=list)
    trial.compare(Compared("stable", "", CallSignals().values))
    assert json.loads(trial.report().data) == {}


@pytest.mark.parametrize(
    "message",
    [
        Compared("canary", "", (float("nan"),) * 6),
        Compared("canary", "", (None, None, 1e300, None, None, None)),
        Compared("canary", "", (None, -0.5, None, None, None, None)),
        Compared("canary", "", (0.0,) * 7),
        Compared("canary", "", ("1",) * 6),  # type: ignore[arg-type]
        Compared("third", "", (0.0,) * 6),
    ],
)
async def test_signals_that_are_none_end_their_front_end_and_leave_the_trial_as_it_was(
    message: Compared,
) -> None:
    trial = FrontEndTrial(TrialRules(), registry=CollectorRegistry(), log=Log(), front_ends=list)
    before = trial.report()
    with pytest.raises(ProtocolError, match="signals"):
        trial.compare(message)
    assert trial.report() == before


async def test_a_front_end_reports_asks_and_obeys_over_its_control_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = FrontEndTrial(
        TrialRules(),
        registry=CollectorRegistry(),
        log=Log(),
        front_ends=lambda: [SimpleNamespace(peer=supervisor)],  # type: ignore[list-item]
    )

    def hear(message: Message, _: Any) -> Reply:
        match message:
            case Compared():
                kept.compare(message)
            case AskPhase():
                return kept.ask(message)
            case Question(what="canary"):
                return kept.report()
        return None

    heard = asyncio.Event()

    def hear_phase(message: Message, _: Any) -> Reply:
        assert isinstance(message, CanaryPhase)
        central.hear(message)
        heard.set()
        return None

    supervisor = Peer(ours, hear, lost=lambda: None)
    front_end = Peer(theirs, hear_phase, lost=lambda: None)
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
