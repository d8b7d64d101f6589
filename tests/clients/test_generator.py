"""Many sessions from one process and from several; Ctrl-C; a process that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import SessionError
from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import EncodedClip, encode_clip
from antiphon_client.generator import generate
from antiphon_client.load import ProbeLoad, Progress, spread
from antiphon_client.record import SessionOutcome
from antiphon_client.report import report_probe
from tests.clients.fake_server import FakeServer, fake_server_in_thread


def make_load(server: FakeServer, sessions: int, frames: int) -> ProbeLoad:
    plans = spread(server.address.chat({"ext": "1", "format": "opus"}), sessions, seed=1)
    patient = tuple(replace(plan, grace_s=30.0) for plan in plans)  # over as soon as all is answered
    return ProbeLoad(patient, make_clip(frames))


def make_clip(frames: int) -> EncodedClip:
    return encode_clip(np.zeros(frames * 1920, np.float32), AudioFormat.OPUS)


def test_sessions_are_spread_over_phases_and_connections() -> None:
    plans = spread("ws://host/api/chat", 50, seed=3, keeps_audio=True)
    phases_s = np.array([plan.phase_s for plan in plans])
    assert phases_s.min() >= 0
    assert phases_s.max() < 0.08
    assert np.histogram(phases_s, bins=4, range=(0, 0.08))[0].min() >= 5
    assert max(plan.connect_after_s for plan in plans) < 0.5
    assert [plan.session for plan in plans] == list(range(50))
    assert [plan.keeps_audio for plan in plans] == [True] + [False] * 49
    assert spread("ws://host/api/chat", 50, seed=3, keeps_audio=True) == plans
    assert spread("ws://host/api/chat", 50, seed=4, keeps_audio=True) != plans


@pytest.mark.parametrize("processes", [1, 2])
def test_every_session_is_held_whoever_generates_it(processes: int) -> None:
    seen: list[Progress] = []
    with fake_server_in_thread() as server:
        done = generate(make_load(server, 5, 8), processes=processes, on_progress=seen.append)
    assert [result.record.session for result in done.results] == list(range(5))
    records = [result.record for result in done.results]
    # On a busy machine some messages are too old to be sent.
    frames = sum((8 * 4 - record.dropped_messages) // 4 for record in records)
    report = report_probe(records, done.generator)
    assert (report.answered, report.counts.planned) == (5, 40)
    assert (report.counts.sent, report.counts.answered, report.counts.lost) == (frames, frames, 0)
    assert seen[-1] == Progress(speaking=0, closed=5, frames_sent=frames, frames_answered=frames)
    assert done.generator.processes == processes
    assert 0 < done.generator.cpu_share < 1
    assert done.generator.loop_late_ms is not None
    assert not done.was_interrupted


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupt_ends_the_run_and_keeps_what_was_measured(processes: int) -> None:
    interrupted = threading.Event()

    begun_s = time.monotonic()
    with fake_server_in_thread() as server:

        def interrupt_once(_: Progress) -> None:
            heard = Counter(session for session, *_ in server.heard)
            if len(heard) == 2 and min(heard.values()) >= 2 * 4 and not interrupted.is_set():
                interrupted.set()
                os.kill(os.getpid(), signal.SIGINT)

        done = generate(make_load(server, 2, 1000), processes=processes, on_progress=interrupt_once)
    assert time.monotonic() - begun_s < 60  # of the 80 s they would have spoken
    assert done.was_interrupted
    records = [result.record for result in done.results]
    assert [record.outcome for record in records] == [SessionOutcome.ANSWERED] * 2
    assert all(2 <= len(record.timeline.sent_s) < 1000 for record in records)
    assert report_probe(records, done.generator).counts.lost == 0


def test_a_process_that_dies_is_an_error_and_leaves_none_behind() -> None:
    def kill_one(_: Progress) -> None:
        for child in multiprocessing.active_children()[:1]:
            child.kill()

    with (
        fake_server_in_thread() as server,
        pytest.raises(SessionError, match="a process of the load generator died"),
    ):
        generate(make_load(server, 2, 1000), processes=2, on_progress=kill_one)
    assert multiprocessing.active_children() == []
