"""Packets are gathered until a frame is whole, and no frame ever waits for more than its own last sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.formats import AudioDecoder
from antiphon.audio.opus import OpusEncoder
from antiphon.audio.packets import packet_ms
from antiphon.backends.base import FloatArray
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.log import Log
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol.chat import AudioFormat, ChatRequest
from antiphon.serve.media.transcoder import Transcoder
from tests.serve.harness import CODEC, FRAME_SAMPLES, speech

PACKETS = {ms: OpusEncoder().encode(speech(1)[: 24 * ms]) for ms in (20, 40, 80)}
PACKETS[5] = b"\xa8" + bytes(20)  # CELT of 5 ms: any bytes are some sound
PACKETS[0] = b"\xbb\x00"  # says that it holds nothing, and cannot be decoded


class HeardSession:
    """A session that keeps what is pushed."""

    def __init__(self) -> None:
        self.state = SessionState.ACTIVE
        self.id = "s"
        self.is_done = False
        self.pushed: list[tuple[FloatArray, float]] = []
        self.flushes = 0

    @property
    def samples(self) -> int:
        return sum(pcm.size for pcm, _ in self.pushed)

    def push(self, pcm: FloatArray, received_s: float) -> int:
        self.pushed.append((pcm, received_s))
        return 0

    def flush(self) -> int:
        self.flushes += 1
        return 0

    def take_with_gap(self) -> tuple[list[FrameReply], None]:
        return [], None


def make(kind: type[Transcoder] = Transcoder) -> tuple[Transcoder, HeardSession]:
    services = SimpleNamespace(tracer=None, clock=lambda: 0.0, log=Log())
    model = SimpleNamespace(tokenizer=None, engine=SimpleNamespace(info=SimpleNamespace(spec=CODEC)))
    request = ChatRequest(SamplingParameters(), extended=True, format=AudioFormat.OPUS)
    transcoder = kind(cast("Any", services), cast("Any", model), request, announce=lambda: None)
    session = HeardSession()
    transcoder.session = cast("Any", session)
    return transcoder, session


def put(transcoder: Transcoder, data: bytes | None, received_s: float) -> None:
    """Put, and give the lane its turns if it is to be woken."""
    if transcoder.put(data, received_s):
        while transcoder.turn():
            pass


@given(st.lists(st.sampled_from([5, 20, 20, 20, 40, 80]), max_size=40))
def test_a_frame_is_pushed_with_its_last_packet(lengths_ms: list[int]) -> None:
    transcoder, session = make()
    decoder = AudioDecoder("opus")
    sent, whole_s = 0, []
    for second, length_ms in enumerate(lengths_ms):
        put(transcoder, PACKETS[length_ms], float(second))
        before, sent = sent, sent + 24 * length_ms
        whole_s += [float(second)] * (sent // FRAME_SAMPLES - before // FRAME_SAMPLES)
        assert session.samples // FRAME_SAMPLES == sent // FRAME_SAMPLES
    complete_s, samples = [], 0
    for pcm, received_s in session.pushed:
        complete_s += [received_s] * ((samples + pcm.size) // FRAME_SAMPLES - samples // FRAME_SAMPLES)
        samples += pcm.size
    assert complete_s == whole_s
    heard = [decoder.feed(PACKETS[length_ms]) for length_ms in lengths_ms]
    if session.pushed:
        together = np.concatenate([pcm for pcm, _ in session.pushed])
        np.testing.assert_array_equal(together, np.concatenate(heard)[: together.size])


@given(st.lists(st.sampled_from([20, 40, 80, "mute", "flush", "queue"]), max_size=40))
def test_mute_flush_and_the_queue_leave_no_frame_behind(steps: list[int | str]) -> None:
    transcoder, session = make()
    heard = flushes = 0
    for step in steps:
        if step == "mute":
            transcoder.is_muted = not transcoder.is_muted
        elif step == "queue":
            # A session is active for good once it is; before, what is said is not heard.
            if session.samples == 0 and not heard:
                session.state = SessionState.QUEUED
        elif step == "flush":
            put(transcoder, None, 0.0)
            flushes += 1
            assert session.flushes == flushes
        else:
            put(transcoder, PACKETS[int(step)], 0.0)
            if session.state is SessionState.ACTIVE and not transcoder.is_muted:
                heard += 24 * int(step)
            if session.state is SessionState.QUEUED:
                session.state = SessionState.ACTIVE
            assert session.samples // FRAME_SAMPLES == heard // FRAME_SAMPLES


def test_what_cannot_be_decoded_is_found_at_once() -> None:
    transcoder, _ = make()
    put(transcoder, PACKETS[20], 0.0)
    put(transcoder, PACKETS[20], 0.0)
    assert packet_ms(PACKETS[0]) == 0
    assert transcoder.put(PACKETS[0], 0.0)


def test_four_packets_are_one_turn() -> None:
    transcoder, session = make()
    put(transcoder, PACKETS[20], 0.0)  # the first of all is heard at once: nobody knows yet what is missing
    wakes = [transcoder.put(PACKETS[20], 0.0) for _ in range(3)]
    assert wakes == [False, False, True]
    assert not transcoder.turn()
    assert [pcm.size for pcm, _ in session.pushed] == [480, 1440]


def test_who_waits_for_room_says_so_before_it_looks() -> None:
    """Or the loop makes room between the two, and wakes nobody."""
    seen: list[bool] = []

    class Watched(Transcoder):
        @property
        def is_congested(self) -> bool:
            seen.append(self._is_held)
            return True

        @is_congested.setter
        def is_congested(self, value: bool) -> None:
            pass

    transcoder, _ = make(Watched)
    transcoder._is_held = False
    transcoder.turn()
    assert seen == [True]
    assert transcoder._is_held


def test_a_recording_ends_with_the_last_turn() -> None:
    """Until then a codec thread may be in the middle of one, and keep more of what is said."""
    transcoder, _ = make()
    ends: list[str] = []
    transcoder.recording = cast("Any", SimpleNamespace(close=lambda: ends.append("closed")))
    transcoder.close()
    assert ends == []
    assert not transcoder.turn()
    assert ends == ["closed"]
