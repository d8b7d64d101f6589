"""Statistics of a probe's records: per session, and for the whole run. No I/O.

A frame's latency is the time from when its last sample was due until its complete reply. It is measured by
the client's clock and includes the network and the generator's own delay, so it is an upper bound of the
server's latency. *Late*: latency over one frame (80 ms). *Lost*: a frame without a reply at the end of its
session, although its deadline had passed. *Gap*: an underrun of a client that starts playing at 80 ms
buffered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon_client.measures import Distribution, drift_ms, jitter_ms, playback_gaps_s
from antiphon_client.record import Seconds, SessionOutcome, SessionRecord


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the frames of one session, or of all sessions together.

    ``planned`` is the number of replies in a perfect run, including rejected sessions; ``expected`` is the
    number of replies to the frames that were sent. ``late`` is by the client's clock; ``server_late`` and
    ``server_dropped`` are the server's own counts, 0 if it reported none. ``gap_ms`` is the total length of
    the gaps.
    """

    planned: int = 0
    sent: int = 0
    expected: int = 0
    answered: int = 0
    lost: int = 0
    late: int = 0
    misplaced: int = 0
    gaps: int = 0
    gap_ms: float = 0.0
    interruptions: int = 0
    server_late: int = 0
    server_dropped: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    @classmethod
    def total(cls, counts: Sequence[Counts]) -> Counts:
        """Every count summed over sessions."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: sum(getattr(count, name) for count in counts) for name in names})


@dataclass(frozen=True, slots=True)
class Times:
    """Distributions over frames, in ms; None if there were no measurements.

    ``latency`` is by the client's clock; ``server`` is the time in the server's stamps (waiting plus step,
    without Opus and the socket), and ``wait`` and ``step`` are its parts; ``jitter`` is the deviation of the
    interval between two replies from one frame.
    """

    latency: Distribution | None
    server: Distribution | None
    wait: Distribution | None
    step: Distribution | None
    jitter: Distribution | None


@dataclass(frozen=True, slots=True)
class GeneratorReport:
    """The report on the load generator itself, whose delays limit the accuracy of all numbers about the
    server.

    ``cpu_s`` is its CPU time over all processes. ``loop_late_ms`` is the wake-up delay of its event loops,
    ``send_late_ms`` the delay of messages; ``dropped_messages`` were too old to send.
    """

    processes: int
    cores: int
    cpu_s: float
    wall_s: float
    loop_late_ms: Distribution | None
    send_late_ms: Distribution | None = None
    dropped_messages: int = 0

    @property
    def cpu_share(self) -> float:
        """The generator's share of the machine's CPU time, 0 to 1."""
        return self.cpu_s / (self.wall_s * self.cores) if self.wall_s > 0 else 0.0

    def lateness(self, frame_ms: float) -> str:
        """A sentence if the load generator was late by more than half a frame, else "".

        Frames that the generator sends or reads late appear as late or lost frames of the server.
        """
        times = {"its event loop woke": self.loop_late_ms, "its messages left": self.send_late_ms}
        found = [
            f"{what} {it.p99:.0f} ms late (p99)"
            for what, it in times.items()
            if it is not None and it.p99 > frame_ms / 2
        ]
        if self.dropped_messages:
            found.append(f"{self.dropped_messages} of its messages were too old to send")
        return ", ".join(found)


@dataclass(frozen=True, slots=True)
class SessionReport:
    """Statistics of one session.

    ``first_audio_ms`` is the time from the session's first message to the first audio received (stt: to the
    first answered frame). ``word_latency_ms`` is the time from sending the start of a word to receiving the
    word.
    """

    session: int
    outcome: SessionOutcome
    detail: str
    counts: Counts
    times: Times
    ready_ms: float | None
    first_audio_ms: float | None
    text: str
    word_latency_ms: Distribution | None = None


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Statistics of a whole probe.

    ``full_load_s`` is the time during which all answered sessions sent at once, ``drift_ms`` the growth of
    the latency over the run, ``frames_per_s`` the number of answered frames per second. ``cuts`` counts cuts
    of connections whose call was resumed. For these, ``outage_ms`` is the time from the cut until the call
    continues, and ``cut_gap_ms`` is the longest time without audio around the cut, minus a frame.
    """

    sessions: int
    answered: int
    rejected: int
    failed: int
    frame_ms: float
    duration_s: float
    full_load_s: float
    counts: Counts
    times: Times
    ready_ms: Distribution | None
    first_audio_ms: Distribution | None
    drift_ms: float | None
    frames_per_s: float
    generator: GeneratorReport
    per_session: tuple[SessionReport, ...]
    word_latency_ms: Distribution | None = None
    outage_ms: Distribution | None = None
    cut_gap_ms: Distribution | None = None
    cuts: int = 0

    @property
    def answered_share(self) -> float:
        """Frames answered divided by frames planned, of all requested sessions."""
        return self.counts.answered / self.counts.planned if self.counts.planned else 0.0

    @property
    def realtime_factor(self) -> float:
        """Seconds of audio answered per second of the run."""
        return self.frames_per_s * self.frame_ms / 1000


def latencies_ms(record: SessionRecord) -> Seconds:
    """Latency in ms of each sent frame, by the client's clock: float64 ``[frames]``, NaN without a reply."""
    return (record.timeline.replied_s - record.timeline.sent_s) * 1000


def report_session(record: SessionRecord) -> SessionReport:
    """Statistics of one session's record."""
    arrived_s = record.timeline.arrived_s
    first_s = float(arrived_s[0]) if arrived_s.size else None
    return SessionReport(
        session=record.session,
        outcome=record.outcome,
        detail=record.detail,
        counts=_counts(record),
        times=_times([record]),
        ready_ms=_elapsed_ms(record.connect_s, record.ready_s),
        first_audio_ms=_elapsed_ms(record.first_sent_s, first_s),
        text=record.text,
        word_latency_ms=Distribution.of(record.word_latencies_ms),
    )


def report_probe(records: Sequence[SessionRecord], generator: GeneratorReport) -> ProbeReport:
    """Statistics of all sessions' records; their sending delays are added to the report on the generator.

    Raises:
        ValueError: there are no records.
    """
    if not records:
        raise ValueError("a report needs at least 1 session, got 0")
    sessions = tuple(report_session(record) for record in records)
    counts = Counts.total([session.counts for session in sessions])
    outcomes = [record.outcome for record in records]
    return ProbeReport(
        sessions=len(records),
        answered=outcomes.count(SessionOutcome.ANSWERED),
        rejected=outcomes.count(SessionOutcome.REJECTED),
        failed=outcomes.count(SessionOutcome.FAILED),
        frame_ms=records[0].frame_s * 1000,
        duration_s=max(record.ended_s for record in records) - min(record.connect_s for record in records),
        full_load_s=_full_load_s(records),
        counts=counts,
        times=_times(records),
        ready_ms=Distribution.of([s.ready_ms for s in sessions if s.ready_ms is not None]),
        first_audio_ms=Distribution.of([s.first_audio_ms for s in sessions if s.first_audio_ms is not None]),
        drift_ms=drift_ms(
            np.concatenate([record.timeline.sent_s for record in records]),
            np.concatenate([latencies_ms(record) for record in records]),
        ),
        frames_per_s=_answered_per_s(records, counts.answered),
        generator=dataclasses.replace(
            generator,
            send_late_ms=Distribution.of(np.concatenate([r.timeline.send_late_ms for r in records])),
            dropped_messages=sum(record.dropped_messages for record in records),
        ),
        per_session=sessions,
        word_latency_ms=Distribution.of([ms for record in records for ms in record.word_latencies_ms]),
        outage_ms=Distribution.of([cut.outage_ms for record in records for cut in record.cuts]),
        cut_gap_ms=Distribution.of([cut.gap_ms for record in records for cut in record.cuts]),
        cuts=sum(len(record.cuts) for record in records),
    )


def _counts(record: SessionRecord) -> Counts:
    timeline = record.timeline
    due_s = timeline.sent_s[record.delay_frames :] + record.frame_s
    answered = ~np.isnan(timeline.replied_s[record.delay_frames :])
    gaps_s = playback_gaps_s(
        timeline.arrived_s.tolist(), timeline.arrived_samples.tolist(), sample_rate=record.sample_rate
    )
    return Counts(
        planned=max(0, record.planned_frames - record.delay_frames),
        sent=len(timeline.sent_s),
        expected=len(due_s),
        answered=int(answered.sum()),
        lost=int((~answered & (due_s <= record.ended_s)).sum()),
        late=int((latencies_ms(record) > record.frame_s * 1000).sum()),
        misplaced=record.misplaced,
        gaps=len(gaps_s),
        gap_ms=sum(gaps_s) * 1000,
        interruptions=record.interruptions,
        server_late=record.server_late,
        server_dropped=record.server_dropped,
        bytes_out=record.bytes_out,
        bytes_in=record.bytes_in,
    )


def _times(records: Sequence[SessionRecord]) -> Times:
    step_ms = np.concatenate([record.timeline.step_ms for record in records])
    wait_ms = np.concatenate([record.timeline.wait_ms for record in records])
    jitter = [jitter_ms(record.timeline.replied_s, record.frame_s) for record in records]
    return Times(
        latency=Distribution.of(np.concatenate([latencies_ms(record) for record in records])),
        server=Distribution.of(wait_ms + step_ms),
        wait=Distribution.of(wait_ms),
        step=Distribution.of(step_ms),
        jitter=Distribution.of(np.concatenate(jitter)),
    )


def _elapsed_ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else (end_s - start_s) * 1000


def _answered_per_s(records: Sequence[SessionRecord], answered: int) -> float:
    """Frames answered a second, from the first message out to the last reply in."""
    first_s = [record.first_sent_s for record in records if record.first_sent_s is not None]
    last_s = [float(record.timeline.arrived_s[-1]) for record in records if record.timeline.arrived_s.size]
    if not first_s or not last_s or max(last_s) <= min(first_s):
        return 0.0
    return answered / (max(last_s) - min(first_s))


def _full_load_s(records: Sequence[SessionRecord]) -> float:
    """Seconds during which every answered session was sending."""
    spans_s = [
        (float(record.timeline.sent_s[0]), float(record.timeline.sent_s[-1]))
        for record in records
        if record.outcome is SessionOutcome.ANSWERED and record.timeline.sent_s.size
    ]
    if not spans_s:
        return 0.0
    return max(0.0, min(last_s for _, last_s in spans_s) - max(first_s for first_s, _ in spans_s))
