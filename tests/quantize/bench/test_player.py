"""A model in a separate process answers requests and reports errors."""

from __future__ import annotations

import multiprocessing
import signal

import pytest

from antiphon.errors import BackendError
from antiphon_quantize.bench import player
from antiphon_quantize.bench.card import TickPlan
from antiphon_quantize.bench.player import FarPlayer
from antiphon_quantize.bench.subject import Subject

PLAN = TickPlan((1, 2), seconds=0.4, turns=1, lead_frames=1)


def test_it_answers_and_leaves_no_process() -> None:
    told: list[tuple[int, int, str]] = []
    subject = Subject("slow", "echo", "null", options={"step_ms": 20.0})
    far = FarPlayer(subject, PLAN, lambda *progress: told.append(progress))
    try:
        assert told == [(1, 1, "null backend")]
        assert (far.facts.model.name, far.facts.backend) == ("echo", "null")
        turn = far.take_turn(2)
        assert turn.rows == 2
        assert len(turn.tick_s) == 5
        assert min(turn.tick_s) >= 0.02
        assert turn.frames / turn.frames_s <= 100
        assert far.memory().peak_rss > 20_000_000
        (child,) = (child for child in multiprocessing.active_children() if child.name == "slow")
        child.terminate()
        with pytest.raises(BackendError, match="the process of slow ended unexpectedly, exit code -15"):
            far.take_turn(1)
    finally:
        far.close()
    assert not [child for child in multiprocessing.active_children() if child.name == "slow"]


def test_what_cannot_be_loaded_is_said_by_its_label() -> None:
    with pytest.raises(BackendError, match=r"^mine: backend option 'step_mss'|^mine: .*step_mss"):
        FarPlayer(Subject("mine", "echo", "null", options={"step_mss": 1.0}), PLAN, lambda *_: None)
    assert not [child for child in multiprocessing.active_children() if child.name == "mine"]


def test_short_memory_is_told_and_not_raised_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(player, "load_subject", no_memory)
    ours, theirs = multiprocessing.Pipe()
    before = signal.getsignal(signal.SIGINT)
    try:
        player.play(theirs, Subject("a", "echo", "null"), PLAN)
        assert ours.recv() == "MemoryError"
    finally:
        signal.signal(signal.SIGINT, before)
        ours.close()
        theirs.close()
