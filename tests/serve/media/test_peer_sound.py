"""Sound of peer connections: what arrives with losses, and the pace of what leaves."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from antiphon.audio.opus import SAMPLE_RATE, Application, OpusDecoder, OpusEncoder
from antiphon.audio.pcm import FloatArray, float_from_s16le, s16le_from_float
from antiphon.serve.media.peer_sound import (
    KEPT_WAITING,
    MOST_AHEAD_S,
    MOST_WAITING,
    PACKET_S,
    RTP_RATE,
    IncomingSound,
    OutgoingSound,
)
from tests.audio.signals import speech

BLOCK = 480


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def packets_of(pcm: FloatArray) -> list[bytes]:
    with OpusEncoder(application=Application.SPEECH) as encoder:
        return [encoder.encode(block) for block in np.split(pcm, range(BLOCK, pcm.size, BLOCK))]


def received(packets: list[bytes], lost: set[int]) -> FloatArray:
    """What comes of packets at their pace, some of them lost."""
    clock = Clock()
    sound = IncomingSound(clock)
    pieces = []
    for number, packet in enumerate(packets):
        clock.now_s += PACKET_S
        if number not in lost:
            pieces.append(sound.packet(65_530 + number & 0xFFFF, packet))
    sound.close()
    return float_from_s16le(b"".join(pieces))


def distance_db(found: FloatArray, expected: FloatArray) -> float:
    """How far the spectra of two sounds are apart, in the mean over blocks that are not silent."""
    found, expected = (it[: it.size // BLOCK * BLOCK].reshape(-1, BLOCK) for it in (found, expected))
    levels = [20 * np.log10(np.abs(np.fft.rfft(it)) + 1e-3) for it in (found, expected)]
    is_loud = np.square(expected).mean(axis=1) > 1e-4
    return float(np.abs(levels[0] - levels[1])[is_loud].mean())


def test_lost_packets_are_concealed_and_no_time_is_lost() -> None:
    said = speech(1.92)
    packets = packets_of(said)
    whole = received(packets, set())
    lost = {10, 11, 25, 40, 41, 42, 60}
    concealed = received(packets, lost)
    assert concealed.size == whole.size == said.size
    assert np.array_equal(concealed[: 10 * BLOCK], whole[: 10 * BLOCK])
    silent = whole.copy()
    for number in lost:
        silent[number * BLOCK : (number + 1) * BLOCK] = 0.0
    assert distance_db(concealed, whole) < 0.6 * distance_db(silent, whole)


def test_sound_far_ahead_of_the_clock_is_dropped_undecoded() -> None:
    clock = Clock()
    sound = IncomingSound(clock)
    packets = packets_of(speech(1.92))
    came = sum(len(sound.packet(number, packets[number % 96])) for number in range(1000))
    assert came / 2 / 24_000 <= MOST_AHEAD_S + PACKET_S
    clock.now_s += 10.0
    assert sound.packet(1000, packets[0])
    sound.close()


def test_estimates_of_lost_packets_are_paid_like_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, made = IncomingSound(Clock()), list[int]()
    conceal, decode = OpusDecoder.conceal, OpusDecoder.decode

    def concealed(decoder: OpusDecoder, samples: int, packet: bytes = b"") -> FloatArray:
        made.append(samples)
        return conceal(decoder, samples, packet)

    def decoded(decoder: OpusDecoder, packet: bytes) -> FloatArray:
        made.append(BLOCK)
        return decode(decoder, packet)

    monkeypatch.setattr(OpusDecoder, "conceal", concealed)
    monkeypatch.setattr(OpusDecoder, "decode", decoded)
    packet = packets_of(speech(0.02))[0]
    for number in range(0, 3000, 6):
        sound.packet(number, packet)
    assert sum(made) / SAMPLE_RATE <= MOST_AHEAD_S + 6 * PACKET_S
    sound.close()


@pytest.mark.parametrize("packet", [b"\xff", b"\x03\xff", bytes(5000), b"\x78" + bytes(700)])
def test_packets_that_are_no_opus_are_left_out(packet: bytes) -> None:
    sound = IncomingSound(Clock())
    sound.packet(0, packet)
    good = packets_of(speech(0.4))
    assert b"".join(sound.packet(1 + number, it) for number, it in enumerate(good))
    sound.close()


def test_packets_without_a_length_cost_no_estimates_of_lost_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code 3 with a count of no frames: such packets are free by their length, however many there are."""
    sound, estimates = IncomingSound(Clock()), list[int]()
    sound.packet(0, packets_of(speech(0.02))[0])
    monkeypatch.setattr(OpusDecoder, "conceal", lambda _self, samples, *_: estimates.append(samples))
    for number in range(6, 600, 6):
        assert sound.packet(number, b"\x03\x00") == b""
    assert estimates == []
    sound.close()


async def test_packets_leave_each_20_ms_and_gaps_show_in_their_times() -> None:
    loop = asyncio.get_running_loop()
    begin_s, gap_s = loop.time(), 0.0
    sound = OutgoingSound(lambda: loop.time() + gap_s)
    said = speech(0.4)
    sound.put(s16le_from_float(said[:-BLOCK])[:-100])  # the last part fills no packet
    first = []
    for _ in range(18):
        first.append(await sound.next())
        assert loop.time() - begin_s > first[-1][1] / RTP_RATE - 0.002  # never before its time
    assert sound.is_sent
    times = [time for _, time in first]
    assert np.diff(times).tolist() == [round(PACKET_S * RTP_RATE)] * 17
    gap_s = 0.2 + PACKET_S / 2  # timers end a little early or late: in the middle of a packet neither counts
    sound.put(s16le_from_float(said[-BLOCK:]))
    _, later = await sound.next()
    assert (later - times[-1]) % round(PACKET_S * RTP_RATE) == 0
    assert later - times[-1] >= 0.2 * RTP_RATE
    with OpusDecoder() as decoder:
        heard = np.concatenate([decoder.decode(packet) for packet, _ in first])
    assert np.abs(heard).max() > 0.5 * np.abs(said).max()
    sound.close()


async def test_a_burst_is_cut_to_its_last_part_and_what_waits_can_be_dropped() -> None:
    clock = Clock()
    sound = OutgoingSound(clock)
    sound.put(s16le_from_float(speech(0.4)))
    sound.put(s16le_from_float(speech(0.08)))
    count = 0
    while not sound.is_sent:
        clock.now_s += PACKET_S
        await sound.next()
        count += 1
    assert MOST_WAITING < 24
    assert count == KEPT_WAITING
    sound.put(s16le_from_float(speech(0.4)))
    sound.clear()
    assert sound.is_sent
    sound.close()
