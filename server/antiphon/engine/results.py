"""The results of a tick: replies are published, frames are counted, sessions end."""

from __future__ import annotations

import numpy as np

from antiphon.backends.base import NO_TOKEN, BoolArray, StepOutputs
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.rows import Rows
from antiphon.engine.tick import EVERY, Chosen, Tick, TickTimes, chosen
from antiphon.ipc.arena import Counts, Times
from antiphon.ipc.rings import RingReplies
from antiphon.models.spec import ModelSpec


class Results:
    """Publishes the results of ticks over :class:`antiphon.engine.rows.Rows`; the engine thread's."""

    def __init__(self, rows: Rows, spec: ModelSpec, metrics: EngineMetrics) -> None:
        """Publish into the leases of ``rows``."""
        self._rows, self._metrics = rows, metrics
        self._takes_audio = spec.kind.takes_audio
        self._has_deadlines = spec.kind.has_deadlines
        self._delay_frames = spec.delay_frames

    def end(self, tick: Tick, outputs: StepOutputs | None, times: TickTimes) -> None:
        """Publish a tick's replies and count what became of its frames; ``outputs`` None: the step failed."""
        leases = tick.leases
        self._rows.arena.read_client_counters()
        self._rows.arena.engine.ticks[leases] += 1
        step_ms = 1000.0 * (times.end_s - times.start_s)
        wait_s = times.start_s - tick.complete_s
        wait_ms = 1000.0 * wait_s
        is_here = ~self._rows.is_closed[leases]
        is_live = is_here & (tick.frame >= 0) if tick.padding else is_here
        live = chosen(is_live)
        with self._rows.arena.writing():
            live_leases = leases[live]
            taken = self._rows.ledger.taken[live_leases]
            self._rows.ledger.time(live_leases, taken, wait_ms[live], step_ms)
            replies = 0
            if outputs is None:
                self._count_silent(live_leases, np.zeros(taken.size, np.bool_))
            else:
                if not self._takes_audio:
                    self._settle_texts(tick, outputs)
                replies = self._reply(tick, outputs, is_here, is_live, wait_ms, times)
            self._end_sessions(live_leases, taken)
            self._rows.in_tick[leases] = False
        self._rows.arena.publish()
        if self._has_deadlines:
            self._metrics.frame_wait_seconds.observe_many(wait_s[live])
        self._metrics.replies.inc(replies)

    def _reply(
        self,
        tick: Tick,
        outputs: StepOutputs,
        is_here: BoolArray,
        is_live: BoolArray,
        wait_ms: Times,
        times: TickTimes,
    ) -> int:
        """Publish what is wanted and count what is not; returns the replies to what callers sent."""
        is_kept = tick.frame >= self._rows.first_kept[tick.leases]
        is_wanted = is_live & outputs.emitted & is_kept
        wanted = int(np.count_nonzero(is_wanted))
        if wanted == is_wanted.size:  # nearly always
            self._publish(tick, outputs, EVERY, wait_ms, times)
            return wanted
        is_silent = is_live & ~outputs.emitted
        self._count_silent(tick.leases[is_silent], outputs.consumed[is_silent])
        self._rows.ledger.flushed_out[tick.leases[is_live & outputs.emitted & ~is_kept]] += 1
        is_published = is_wanted | (is_here & ~is_live & outputs.emitted)  # what answers flush padding, too
        if np.count_nonzero(is_published):
            self._publish(tick, outputs, is_published, wait_ms, times)
        return wanted

    def _settle_texts(self, tick: Tick, outputs: StepOutputs) -> None:
        finished = np.zeros(tick.leases.size, np.bool_) if outputs.finished is None else outputs.finished
        flags = zip(outputs.consumed.tolist(), outputs.emitted.tolist(), finished.tolist(), strict=True)
        for lease, (consumed, emitted, is_finished) in zip(tick.leases.tolist(), flags, strict=True):
            self._rows.session(lease).text.settle(consumed=consumed, emitted=emitted, finished=is_finished)
            self._show_text(lease)

    def _show_text(self, lease: int) -> None:
        counts, text = self._rows.arena.engine, self._rows.session(lease).text
        # In this order: a row is seen to speak before a word stops waiting.
        counts.is_speaking[lease], counts.has_spoken_all[lease] = text.is_busy, text.has_spoken_all
        counts.words_taken[lease] = text.taken

    def _count_silent(self, leases: Counts, consumed: BoolArray) -> None:
        """Frames without a reply: by design in a duplex row's first frames and for tts, else lost."""
        by_design = consumed & (self._rows.ledger.taken[leases] <= self._delay_frames)
        if not self._has_deadlines:
            by_design = np.ones(leases.size, np.bool_)
        self._rows.ledger.silent[leases[by_design]] += 1
        lost = leases[~by_design]
        self._rows.ledger.lost[lost] += 1
        if lost.size:
            self._metrics.lost_frames.inc(int(lost.size))

    def _publish(
        self, tick: Tick, outputs: StepOutputs, wanted: Chosen, wait_ms: Times, times: TickTimes
    ) -> None:
        tokens = NO_TOKEN if outputs.text_tokens is None else outputs.text_tokens[wanted]
        pcm = None if outputs.pcm is None else outputs.pcm[wanted]
        vad = None if outputs.vad is None else outputs.vad[wanted]
        replies = RingReplies.of(tick.frame[wanted], tick.run[wanted], tokens, pcm, vad)
        said = replies.times
        said[:, 0], said[:, 1] = 1000.0 * (times.end_s - times.start_s), wait_ms[wanted]
        said[:, 2], said[:, 3] = tick.complete_s[wanted], times.end_s
        given_up = self._rows.outputs.publish(tick.leases[wanted], replies)
        if given_up:
            self._metrics.dropped_out.inc(given_up)

    def _end_sessions(self, leases: Counts, taken: Counts) -> None:
        """Sessions that took as many steps as they may: input that still waits is thrown away."""
        is_over = taken >= self._rows.max_steps[leases]
        if not np.count_nonzero(is_over):
            return
        over = leases[is_over]
        self._rows.is_over[over] = self._rows.has_ended[over] = True
        if self._takes_audio:
            self._rows.flush(over, self._rows.inputs.written[over])
            return
        for lease in over.tolist():
            self._rows.session(lease).text.clear()
            self._show_text(lease)
