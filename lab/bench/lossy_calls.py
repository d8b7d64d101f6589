"""Compares calls over a WebSocket with calls by WebRTC on a line that loses and delays IP packets.

    unshare -rn .venv/bin/python -m lab.bench.lossy_calls             fifteen minutes
    unshare -rn .venv/bin/python -m lab.bench.lossy_calls --rounds 1

In each round two callers ask the built-in talker the six questions of :mod:`tests.support.ask` at the same
time, one of each kind. The line of :mod:`lab.bench.lossy_line` is between them and the server; the first
rounds have a line without faults. Audio is Opus in packets of 20 ms in both directions; by WebRTC the
caller's packets have a copy of the one before, as those of browsers. A caller plays what it receives from
160 ms after the first packet. Over a WebSocket it continues after a pause where it stopped, from 160 ms
after the next packet, so each pause delays the rest; by WebRTC it leaves out a packet that is not there in
time, as an RTP receiver does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import aiortc
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from antiphon.audio.opus import PacketEncoder, packet_ms
from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.protocol import moshi
from antiphon.serve.transport.peer import tap
from lab.bench.harness import Values, running_server, serve_command, tell, warn_if_busy
from lab.bench.lossy_line import NEAR, lossy_line, shares
from lab.bench.webrtc_calls import AUDIO, PACKET_S, Voice
from tests.support.ask import SEED, script
from tests.support.calm import CALM_OPTIONS

LOSS: Final = 0.05
DELAY_S: Final = 0.1
PLAYOUT_S: Final = 0.16
LONG_S: Final = 0.1
"""Pauses above this are heard: receivers conceal shorter ones."""

REST_S: Final = 3.0
"""Seconds after the last question's answer for what the line delays."""

QUIET: Final = 1000
"""Packets of silence after the questions."""

PATIENCE_S: Final = 20.0
RATE: Final = 24_000
PACKET_SAMPLES: Final = 480
BITRATE: Final = 32_000
"""Bits a second, as browsers choose for speech."""

OPTIONS: Final = (*CALM_OPTIONS, "--model", "tiny", "--slots", "3", "--webrtc", "2", "--host", "0.0.0.0")
WEBSOCKET: Final = "WebSocket"
WEBRTC: Final = "WebRTC"
QUERY: Final = f"ext=1&text_seed={SEED}&audio_seed={SEED}"


@dataclass(slots=True)
class Received:
    """What one caller received: text, and packets as (arrival, position in the sound, length) in seconds.

    ``failed``: connections that were not up in time.
    """

    text: str = ""
    packets: list[tuple[float, float, float]] = field(default_factory=list)
    first_s: float = 0.0
    failed: int = 0

    def packet(self, at_s: float, place_s: float, data: bytes) -> None:
        self.packets.append((at_s, place_s, packet_ms(data) / 1000))

    def message(self, data: bytes) -> moshi.Message:
        message = moshi.decode(data)
        if isinstance(message, moshi.Text):
            self.text += message.text
        return message


def browser_packets(pcm: FloatArray) -> list[bytes]:
    """Encode packets of 20 ms as a browser sends them by WebRTC: each has a copy of the one before, for
    losses."""
    codec = AudioCodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format = RATE, "mono", "s16"
    codec.bit_rate = BITRATE
    codec.options = {"application": "voip", "fec": "1", "packet_loss": str(round(100 * LOSS))}
    packets: list[bytes] = []
    for start in range(0, pcm.size, PACKET_SAMPLES):
        frame = AudioFrame(format="s16", layout="mono", samples=PACKET_SAMPLES)
        frame.planes[0].update(s16le_from_float(pcm[start : start + PACKET_SAMPLES]))
        frame.sample_rate = RATE
        packets += [bytes(packet) for packet in codec.encode(frame)]
    return packets


def pauses_in_order(packets: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return the seconds of each pause if packets are played in order and playback waits for the next one."""
    found, ends_s = [], packets[0][0] + PLAYOUT_S
    for at_s, _, length_s in packets:
        if at_s > ends_s:
            found.append(at_s + PLAYOUT_S - ends_s)
            ends_s = at_s + PLAYOUT_S
        ends_s += length_s
    return found


def pauses_by_place(packets: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return the seconds of each pause if packets are played at their positions and late ones are left
    out."""
    first_s, first_place_s, _ = packets[0]
    in_time = sorted(
        (place_s - first_place_s, length_s)
        for at_s, place_s, length_s in packets
        if at_s <= first_s + PLAYOUT_S + place_s - first_place_s
    )
    found, ends_s = [], 0.0
    for place_s, length_s in in_time:
        if place_s - ends_s > PACKET_S / 2:
            found.append(place_s - ends_s)
        ends_s = max(ends_s, place_s + length_s)
    return found


async def over_websocket(url: str, packets: Sequence[bytes]) -> Received:
    """Make one call with these packets over a WebSocket."""
    received, begun_s, place_s = Received(), time.monotonic(), 0.0
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/api/chat?{QUERY}&format=opus", compress=0) as socket,
    ):

        async def speak() -> None:
            start_s = time.monotonic()
            for number, packet in enumerate(packets):
                await asyncio.sleep(max(0.0, start_s + PACKET_S * number - time.monotonic()))
                await socket.send_bytes(AUDIO + packet)
            await asyncio.sleep(REST_S)
            await socket.close()

        speaking = asyncio.create_task(speak())
        async for message in socket:
            now_s = time.monotonic()
            found = received.message(message.data)
            if isinstance(found, moshi.StampedAudio):
                received.first_s = received.first_s or now_s - begun_s
                received.packet(now_s, place_s, found.data)
                place_s += packet_ms(found.data) / 1000
        await speaking
    return received


async def by_webrtc(url: str, packets: Sequence[bytes]) -> Received:
    """Make one call with these packets over WebRTC; a connection that is not up in time is tried again."""
    received, begun_s = Received(), time.monotonic()
    while not await _connected(url, packets, received, begun_s):
        received.failed += 1
    return received


async def _connected(url: str, packets: Sequence[bytes], received: Received, begun_s: float) -> bool:
    connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
    opened = asyncio.Event()
    try:
        channel = connection.createDataChannel("events")
        channel.on("open", opened.set)
        channel.on("message", received.message)
        transceiver = connection.addTransceiver(Voice(packets[:1]), direction="sendrecv")
        await connection.setLocalDescription(await connection.createOffer())

        def hear(packet: Any) -> None:
            now_s = time.monotonic()
            if packet.payload:
                received.first_s = received.first_s or now_s - begun_s
                received.packet(now_s, packet.timestamp / 48_000, packet.payload)

        tap(transceiver.receiver, hear)
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                f"{url}/api/chat?{QUERY}",
                data=connection.localDescription.sdp,
                headers={"Content-Type": "application/sdp"},
            ) as answer,
        ):
            text = await answer.text()
            assert answer.status == 201, text
        await connection.setRemoteDescription(aiortc.RTCSessionDescription(text, "answer"))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await opened.wait()
        except TimeoutError:
            return False
        transceiver.sender.replaceTrack(Voice([*packets, *[packets[0]] * QUIET]))  # the call has begun
        await asyncio.sleep(PACKET_S * len(packets) + REST_S)
        return True
    finally:
        await connection.close()


CALLS: Final[dict[str, Callable[[str, Sequence[bytes]], Coroutine[Any, Any, Received]]]] = {
    WEBSOCKET: over_websocket,
    WEBRTC: by_webrtc,
}
PAUSES: Final = {WEBSOCKET: pauses_in_order, WEBRTC: pauses_by_place}


async def ask(url: str, rounds: int) -> list[Values]:
    """Run the WebSocket caller and the WebRTC caller at the same time; returns the result of each kind."""
    pcm, questions = script()
    packets = {WEBSOCKET: PacketEncoder(RATE, RATE).encode(pcm), WEBRTC: browser_packets(pcm)}
    found: dict[str, list[Received]] = {kind: [] for kind in CALLS}
    for _ in range(rounds):
        calls = [call(url, packets[kind]) for kind, call in CALLS.items()]
        for kind, received in zip(CALLS, await asyncio.gather(*calls), strict=True):
            found[kind].append(received)
    answers = [question.answer for question in questions]
    return [summary(kind, each, answers) for kind, each in found.items()]


def summary(kind: str, calls: Sequence[Received], answers: Sequence[str]) -> Values:
    """Summarise the correct answers and the pauses of the calls of a kind."""
    pauses = [pause_s for each in calls for pause_s in PAUSES[kind](each.packets)]
    grows = kind == WEBSOCKET
    delays_s = [PLAYOUT_S + grows * sum(pauses_in_order(each.packets)) for each in calls]
    played_s = sum(length_s for each in calls for _, _, length_s in each.packets)
    return {
        "kind": kind,
        "questions": len(answers) * len(calls),
        "right": sum(answered(each.text, answers) for each in calls),
        "failed_connections": sum(each.failed for each in calls),
        "first_sound_ms": round(1000 * statistics.median(each.first_s for each in calls)),
        "minutes": round((played_s + sum(pauses)) / 60, 1),
        "pauses": len(pauses),
        "long_pauses": sum(pause_s > LONG_S for pause_s in pauses),
        "delay_at_end_ms": round(1000 * statistics.median(delays_s)),
        "longest_ms": round(1000 * max(pauses, default=0.0)),
        "silent_percent": round(100 * sum(pauses) / (played_s + sum(pauses)), 2),
    }


def answered(text: str, answers: Sequence[str]) -> int:
    """Return the number of answers that the text has in this order."""
    words, right, at = " ".join(text.split()), 0, 0
    for answer in answers:
        if (place := words.find(answer, at)) >= 0:
            right, at = right + 1, place + len(answer)
    return right


async def measure(log: Path, rounds: int, seed: int, *, loss: float, delay_s: float) -> list[Values]:
    """Run a server, and the WebSocket caller and the WebRTC caller at the far end of a lossy line; returns
    the results of each caller.
    """
    async with lossy_line(seed, loss=loss, delay_s=delay_s) as line:
        with running_server(serve_command(*OPTIONS), log) as server:
            port = server.url.rpartition(":")[2]
            words = ("--caller", f"http://{NEAR}:{port}", "--rounds", str(rounds))
            found: list[Values] = json.loads(await line.python("-m", "lab.bench.lossy_calls", *words))
        tell(shares(line.directions))
    return found


def main() -> None:
    """Measure, and print a JSON line for each line and kind of call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15, help="of six questions [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--caller", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.caller:
        sys.stdout.write(json.dumps(asyncio.run(ask(given.caller, given.rounds))))
        return
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        for loss, delay_s, rounds in ((0.0, 0.0, max(1, given.rounds // 5)), (LOSS, DELAY_S, given.rounds)):
            log = Path(folder) / f"{loss}.log"
            found = asyncio.run(measure(log, rounds, given.seed, loss=loss, delay_s=delay_s))
            for values in found:
                print(json.dumps({"loss": loss, "delay_ms": round(1000 * delay_s), **values}), flush=True)


if __name__ == "__main__":
    main()
