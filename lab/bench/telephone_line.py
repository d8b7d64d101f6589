"""Simulates a telephone line with jitter, bursts, a gap and a fast clock, and measures the playback of
answers and its delay.

    python -m lab.bench.telephone_line                     ten minutes of a line, in seconds
    python -m lab.bench.telephone_line --minutes 60 --fast 0 --seed 3

:mod:`lab.bench.telephone_call` has the same line before a server, in real time. Here the dialect, the input
clock, the codecs and the resamplers are the server's; the line, the model, which says what it hears 40 ms
after a frame is whole, and the telephone have a clock of the simulation. The caller sends 20 ms a packet, in
order, each held up for 0 to 120 ms; every 20 s packets are held up for 400 ms, and once for 3 s. The
telephone plays what comes one after the other, from 160 ms after it had nothing on.
"""

from __future__ import annotations

import argparse
import base64
import heapq
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Final, cast

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio import g711
from antiphon.audio.clock import InputClock
from antiphon.audio.g711 import Law
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from antiphon.protocol import media_streams as wire
from antiphon.serve.calls.values import PushAudio
from antiphon.serve.dialects.media_stream import MediaStreamLine
from antiphon.serve.dialects.telephone import TelephoneDialect
from antiphon.serve.hosting.served import ServedModel

PACKET_S: Final = 0.02
FRAME_S: Final = 0.08
FRAME_SAMPLES: Final = 1920
MODEL_S: Final = 0.04
PLAYOUT_S: Final = 0.16
JITTER_S: Final = 0.12
HOLD_EVERY_S: Final = 20.0
HOLD_S: Final = 0.4
GAP_S: Final = 3.0
SPEAKS_S: Final = 2.0
LOUD: Final = 0.02
FULL: Final = 0.15
"""Mean of a frame that is speech from start to end: a partly silent frame has no clear pitch."""

TURN_S: Final = 3.0
"""The caller speaks for two seconds of three, each time at another pitch, which identifies the answer."""

PLAIN_S: Final = 15.0
"""Seconds of a line without faults, for comparison."""

PITCHES: Final = 40
PITCH_HZ: Final = 50
LOWEST_HZ: Final = 300


@dataclass(slots=True)
class Telephone:
    """A telephone that plays sound in the order of its arrival, and records when each turn begins to play."""

    ends_s: float = 0.0
    underruns: int = 0
    turn: int = 0
    turns_s: dict[int, float] = field(default_factory=dict)
    was_loud: bool = False

    @property
    def delays_s(self) -> tuple[float, ...]:
        """The seconds from each turn's beginning to the playback of its first audible frame, without the
        frame's length."""
        return tuple(heard_s - turn * TURN_S - FRAME_S for turn, heard_s in self.turns_s.items())

    def take(self, pcm: FloatArray, now_s: float) -> None:
        """Add sound to play, float32 ``[N]`` at 8 kHz."""
        is_loud = bool(np.abs(pcm).max() > LOUD)
        begins_s = self.ends_s
        if now_s > self.ends_s:
            begins_s = now_s + PLAYOUT_S
            self.underruns += self.was_loud and is_loud
        if float(np.abs(pcm).mean()) > FULL:
            later = (pitch_of(pcm) - self.turn) % PITCHES
            self.turn += later if later < PITCHES // 2 else 0
            self.turns_s.setdefault(self.turn, begins_s)
        self.was_loud = is_loud
        self.ends_s = begins_s + pcm.size / wire.SAMPLE_RATE


def tone(pitch: int) -> FloatArray:
    """Return a packet of this pitch, float32 ``[160]`` at 8 kHz; it has whole waves, so that packets join."""
    waves = (LOWEST_HZ + PITCH_HZ * pitch) * np.arange(round(PACKET_S * wire.SAMPLE_RATE)) / wire.SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * waves)).astype(np.float32)


def pitch_of(pcm: FloatArray) -> int:
    """Return the number of the loudest pitch in a frame."""
    powers = np.abs(np.fft.rfft(pcm, wire.SAMPLE_RATE // PITCH_HZ * 4))[::4]
    first = LOWEST_HZ // PITCH_HZ
    return int(np.argmax(powers[first : first + PITCHES]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation: the model's loud frames and those that were not sent, the delay of each
    turn, and the counts of the input clock."""

    said: int
    lost: int
    turns: int
    delays_s: tuple[float, ...]
    underruns: int
    filled_s: float
    dropped_s: float

    def lines(self, plain: Outcome) -> Iterator[str]:
        """Yield the result as text; ``plain`` is the result of a line without faults."""
        yield f"{self.said} frames of speech, {self.lost} not sent, {self.underruns} under-runs"
        yield f"{self.turns} turns of the caller, {len(self.delays_s)} answered"
        yield f"silence for overdue audio {self.filled_s:.1f} s, late audio dropped {self.dropped_s:.1f} s"
        yield from delay_lines(self.delays_s, plain.delays_s)


def delay_lines(delays_s: Sequence[float], plain_s: Sequence[float]) -> Iterator[str]:
    """Yield the delays of turns as text, with the difference of their median from that of a line without
    faults."""
    delays, plain = np.array(delays_s) * 1000, float(np.median(plain_s)) * 1000
    yield f"a line without faults: from said to heard p50 {plain:.0f} ms"
    for name, part in zip(("first", "second", "last"), np.array_split(delays, 3), strict=True):
        p50, p99 = np.percentile(part, (50, 99))
        yield f"{name} third: p50 {p50:.0f} ms, p99 {p99:.0f} ms; added p99 {p99 - plain:.0f} ms"
    yield f"all: added p50 {np.median(delays) - plain:.0f} ms, p99 {np.percentile(delays, 99) - plain:.0f} ms"


def spec() -> ModelSpec:
    """Return the specification of a codec at 24 kHz."""
    mimi = MimiSpec(sample_rate=24_000, frame_rate=12.5, codebooks=8, cardinality=2048)
    return ModelSpec(name="echo", kind=PipelineKind.CODEC, family="none", mimi=mimi)


def arrivals(
    seconds: float, fast: float, rng: random.Random, *, is_plain: bool = False
) -> Iterator[tuple[float, float]]:
    """Yield when each packet is sent and when it arrives, in order; at once on a line that ``is_plain``."""
    last_s = 0.0
    for number in range(round(seconds / PACKET_S)):
        said_s = (number + 1) * PACKET_S / (1 + fast)
        if is_plain:
            yield said_s, said_s
            continue
        due_s = said_s + rng.uniform(0, JITTER_S)
        for begins_s, hold_s in ((said_s // HOLD_EVERY_S * HOLD_EVERY_S, HOLD_S), (seconds / 2, GAP_S)):
            if 0 < begins_s <= said_s < begins_s + hold_s:
                due_s = max(due_s, begins_s + hold_s)
        last_s = max(last_s, due_s)
        yield said_s, last_s


def packets(
    seconds: float, fast: float, seed: int, *, is_plain: bool = False
) -> Iterator[tuple[float, Mapping[str, object]]]:
    """Yield when each packet of a call arrives, and its message."""
    loud = [base64.b64encode(g711.encode(tone(pitch), Law.MU)).decode() for pitch in range(PITCHES)]
    quiet = base64.b64encode(g711.encode(0 * tone(0), Law.MU)).decode()
    coming = arrivals(seconds, fast, random.Random(seed), is_plain=is_plain)
    for number, (said_s, comes_s) in enumerate(coming, start=1):
        turn, into_s = divmod(said_s, TURN_S)
        payload = loud[int(turn) % PITCHES] if into_s < SPEAKS_S else quiet
        yield comes_s, {"event": "media", "media": {"payload": payload, "chunk": number}}


def simulate(seconds: float, fast: float, seed: int, *, is_plain: bool = False) -> Outcome:
    """Simulate one call, and return its result."""
    now = SimpleNamespace(s=0.0)
    model = SimpleNamespace(tokenizer=None, engine=SimpleNamespace(info=SimpleNamespace(spec=spec())))
    start = wire.StreamStart("MZ1", "streamSid", "pcmu")
    dialect = TelephoneDialect(MediaStreamLine(start), cast("ServedModel", model), lambda: now.s)
    clock, telephone = InputClock(24_000, FRAME_SAMPLES, 0.0), Telephone()
    events: list[tuple[float, int, str, object]] = []
    for number, (comes_s, packet) in enumerate(packets(seconds, fast, seed, is_plain=is_plain)):
        events.append((comes_s, number, "packet", json.dumps(packet)))
    heapq.heapify(events)
    numbers = iter(range(len(events), sys.maxsize))
    waiting: FloatArray = np.zeros(0, np.float32)
    frame = said = lost = 0
    while events:
        at_s, number, kind, what = heapq.heappop(events)
        pcm: FloatArray = np.zeros(0, np.float32)
        if kind == "packet" and clock.due_s < at_s:  # what was due before
            heapq.heappush(events, (at_s, number, kind, what))
            now.s = max(now.s, clock.due_s) + 0.001  # the delay of an event loop
            pcm = clock.look(now.s)
        elif kind == "packet":
            now.s = at_s
            (push,) = dialect.feed(cast("str", what))
            assert isinstance(push, PushAudio)
            pcm = clock.arrive(push.pcm, now.s)
        else:
            now.s = at_s
            assert isinstance(what, FrameReply)
            assert what.pcm is not None
            messages = [json.loads(str(message)) for message in dialect.messages(what)]
            media = [message["media"] for message in messages if message["event"] == "media"]
            if np.abs(what.pcm).max() > LOUD:
                said, lost = said + 1, lost + (not media)
            for sound in media:
                telephone.take(g711.decode(base64.b64decode(sound["payload"]), Law.MU), now.s)
        waiting = np.concatenate((waiting, pcm))
        while waiting.size >= FRAME_SAMPLES:
            reply_s = now.s + MODEL_S
            reply = FrameReply(frame, waiting[:FRAME_SAMPLES], None, (), 0, 0, now.s, reply_s)
            heapq.heappush(events, (reply_s, next(numbers), "reply", reply))
            waiting, frame = waiting[FRAME_SAMPLES:], frame + 1
    counts = clock.counts
    return Outcome(
        said,
        lost,
        round(seconds / TURN_S),
        telephone.delays_s,
        telephone.underruns,
        counts.filled / 24_000,
        counts.dropped / 24_000,
    )


def main(argv: list[str]) -> int:
    """Simulate a line without faults and the line with faults, and print the results."""
    options = read_options("Simulate a telephone line.", argv)
    plain = simulate(PLAIN_S, 0.0, options.seed, is_plain=True)
    for line in simulate(60 * options.minutes, options.fast, options.seed).lines(plain):
        print(line)
    return 0


def read_options(about: str, argv: list[str]) -> argparse.Namespace:
    """Read the options that both telephone benchmarks have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the call [%(default)g]")
    parser.add_argument(
        "--fast", type=float, default=0.005, help="share by which the caller's clock is fast [%(default)g]"
    )
    parser.add_argument("--seed", type=int, default=1, help="[%(default)s]")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
