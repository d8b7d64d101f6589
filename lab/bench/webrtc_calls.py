"""Compares a call by WebRTC with one over a WebSocket: CPU of the server, and time to the first sound.

    python -m lab.bench.webrtc_calls                      about three minutes
    python -m lab.bench.webrtc_calls --calls 1 --seconds 2
    python -m lab.bench.webrtc_calls --calls 24 32 40    the most calls of a front end

Both kinds of call are `/api/chat` with the null backend, packets of 20 ms of Opus in both directions. The
server has one front end; the callers share another process. Times run from the offer, or the WebSocket's
request, to the first packet of sound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import aiortc
from av.packet import Packet

from antiphon.audio.opus import PacketEncoder
from antiphon.serve.transport.peer import tap
from lab.bench.harness import RunningServer, Values, running_server, serve_command, tell, warn_if_busy
from tests.audio.signals import speech
from tests.support.calm import CALM_OPTIONS

PACKET_S: Final = 0.02
SETTLE_S: Final = 1.0
AUDIO: Final = b"\x01"
OPTIONS: Final = (*CALM_OPTIONS, "--backend", "null", "--slots", "64", "--webrtc", "64", "--front-ends", "1")
KINDS: Final = ("WebSocket", "WebRTC")


@dataclass(slots=True)
class Heard:
    """The time of a call's first packet, in seconds since the call's start, and the number of packets."""

    first_s: float = 0.0
    packets: int = 0

    def packet(self, begun_s: float) -> None:
        if not self.packets:
            self.first_s = time.monotonic() - begun_s
        self.packets += 1


Caller: TypeAlias = Callable[[str, Sequence[bytes], Heard, asyncio.Event], Coroutine[Any, Any, None]]


class Voice(aiortc.MediaStreamTrack):
    """An audio source that repeats packets, one each 20 ms from the first request on."""

    kind = "audio"

    def __init__(self, packets: Sequence[bytes]) -> None:
        super().__init__()
        self._packets, self._number = packets, 0
        self._begun_s = 0.0

    async def recv(self) -> Packet[Any]:
        self._begun_s = self._begun_s or time.monotonic()
        await asyncio.sleep(max(0.0, self._begun_s + PACKET_S * self._number - time.monotonic()))
        packet = Packet(self._packets[self._number % len(self._packets)])
        packet.pts, packet.time_base = 960 * self._number, Fraction(1, 48_000)
        self._number += 1
        return packet


async def call_by_webrtc(url: str, packets: Sequence[bytes], heard: Heard, over: asyncio.Event) -> None:
    """Make one call by a peer connection until ``over``."""
    connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
    try:
        transceiver = connection.addTransceiver(Voice(packets), direction="sendrecv")
        await connection.setLocalDescription(await connection.createOffer())
        begun_s = time.monotonic()
        tap(transceiver.receiver, lambda _: heard.packet(begun_s))
        headers = {"Content-Type": "application/sdp"}
        offer = connection.localDescription.sdp
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/api/chat", data=offer, headers=headers) as answer,
        ):
            text = await answer.text()
            assert answer.status == 201, text
        await connection.setRemoteDescription(aiortc.RTCSessionDescription(text, "answer"))
        await over.wait()
    finally:
        await connection.close()


async def call_over_websocket(url: str, packets: Sequence[bytes], heard: Heard, over: asyncio.Event) -> None:
    """Make one call over a WebSocket until ``over``."""
    begun_s = time.monotonic()
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/api/chat?ext=1&format=opus", compress=0) as socket,
    ):

        async def speak() -> None:
            number, start_s = 0, time.monotonic()
            while True:
                await socket.send_bytes(AUDIO + packets[number % len(packets)])
                number += 1
                await asyncio.sleep(max(0.0, start_s + PACKET_S * number - time.monotonic()))

        async def listen() -> None:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x11":
                    heard.packet(begun_s)

        tasks = [asyncio.create_task(it) for it in (speak(), listen())]
        await over.wait()
        for task in tasks:
            task.cancel()


CALLERS: Final[dict[str, Caller]] = {"WebSocket": call_over_websocket, "WebRTC": call_by_webrtc}


async def measure(server: RunningServer, kind: str, calls: int, seconds: float) -> Values:
    """Measure the server's CPU time per call during ``calls`` calls of a kind, and their times to the first
    sound."""
    encoder = PacketEncoder(24_000, 24_000)
    packets = encoder.encode(speech(1.92))
    heard, over = [Heard() for _ in range(calls)], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for each in heard:
            group.create_task(CALLERS[kind](server.url, packets, each, over))
            await asyncio.sleep(0.2)
        await asyncio.sleep(SETTLE_S)
        before_s, packets_before, begun_s = server.cpu_s(), sum(it.packets for it in heard), time.monotonic()
        await asyncio.sleep(seconds)
        passed_s = time.monotonic() - begun_s
        cpu_s = server.cpu_s() - before_s
        came = sum(it.packets for it in heard) - packets_before
        over.set()
    return {
        "kind": kind,
        "calls": calls,
        "cpu_percent_a_call": round(100 * cpu_s / passed_s / calls, 2),
        "first_sound_ms": round(1000 * statistics.median(it.first_s for it in heard)),
        "packets_share": round(came * PACKET_S / passed_s / calls, 3),
    }


def main() -> None:
    """Measure, and print a JSON line for each kind and number of calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        for calls in given.calls:
            for kind in KINDS:
                log = Path(folder) / f"{kind}-{calls}.log"
                with running_server(serve_command(*OPTIONS), log) as server:
                    tell(f"{calls} calls, {kind}")
                    found = asyncio.run(measure(server, kind, calls, given.seconds))
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
