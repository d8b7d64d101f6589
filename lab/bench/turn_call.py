"""Calls a server by WebRTC through a TURN server and on no other path.

    python -m lab.bench.turn_call /usr/bin/turnserver                  Debian's coturn

The caller uses the relayed candidate of the server's answer only. Shows that candidate, the packets that the
caller received, and the answer to a question.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp
import aiortc

from antiphon.audio.files import read_audio
from antiphon.audio.opus import PacketEncoder
from antiphon.serve.transport.peer import tap
from antiphon_client.clip import default_clips
from lab.bench.harness import BenchError, Values, running_server, serve_command
from lab.bench.lossy_calls import Received
from lab.bench.webrtc_calls import Voice
from tests.support.ask import QUESTIONS, SEED
from tests.support.calm import CALM_OPTIONS
from tests.support.launch import free_port, started

ADDRESS: Final = "127.0.0.1"
CLIP: Final = "question-name"
PATIENCE_S: Final = 30.0
REST_S: Final = 6.0


def relayed(answer: str) -> tuple[str, str]:
    """Return an answer with its relayed candidate only, and that candidate's line.

    Raises:
        BenchError: there is none.
    """
    lines = answer.split("\r\n")
    candidates = [line for line in lines if line.startswith("a=candidate:")]
    found = [line for line in candidates if " typ relay " in line]
    if not found:
        raise BenchError(f"no relayed candidate: {candidates}")
    kept = [line for line in lines if line not in candidates or line in found]
    return "\r\n".join(kept), found[0]


async def call(url: str) -> Values:
    """Make one call with a question."""
    clip = next(clip for clip in default_clips() if Path(clip.name).stem == CLIP)
    packets = PacketEncoder(24_000, 24_000).encode(read_audio(Path(str(clip))))
    silence = PacketEncoder(24_000, 24_000).encode(0 * read_audio(Path(str(clip))))
    received, numbers = Received(), list[int]()
    connection = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
    try:
        opened = asyncio.Event()
        channel = connection.createDataChannel("events")
        channel.on("open", opened.set)
        channel.on("message", received.message)
        transceiver = connection.addTransceiver(
            Voice([*silence[:50], *packets, *(10 * silence)]), direction="sendrecv"
        )

        def hear(packet: Any) -> None:
            numbers.append(packet.sequence_number)

        tap(transceiver.receiver, hear)
        await connection.setLocalDescription(await connection.createOffer())
        headers = {"Content-Type": "application/sdp"}
        offer, query = connection.localDescription.sdp, f"ext=1&text_seed={SEED}&audio_seed={SEED}"
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/api/chat?{query}", data=offer, headers=headers) as response,
        ):
            answer, candidate = relayed(await response.text())
        await connection.setRemoteDescription(aiortc.RTCSessionDescription(answer, "answer"))
        async with asyncio.timeout(PATIENCE_S):
            await opened.wait()
        await asyncio.sleep(len(packets) / 50 + REST_S)
    finally:
        await connection.close()
    right = QUESTIONS[CLIP][1]
    return {
        "candidate": candidate,
        "packets": len(numbers),
        "text": received.text.strip(),
        "is_right": right in " ".join(received.text.split()),
    }


def measure(program: Path) -> Values:
    """Make the call with a TURN server and an Antiphon server, and return its results."""
    port = free_port()
    turn = [
        *(str(program), "-n", "--no-cli", "--no-tls", "--no-dtls", "--lt-cred-mech", "--realm=antiphon"),
        *(f"--listening-ip={ADDRESS}", f"--relay-ip={ADDRESS}", f"--listening-port={port}"),
        *("--user=antiphon:secret", "--allow-loopback-peers", "--log-file=stdout"),
    ]
    options = (*CALM_OPTIONS, "--model", "tiny", "--slots", "1", "--webrtc", "1")
    ice = ("--ice-server", f"turn://antiphon:secret@{ADDRESS}:{port}")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(turn, stdout=subprocess.DEVNULL, cwd=folder),
        running_server(serve_command(*options, *ice), Path(folder) / "log") as server,
    ):
        return asyncio.run(call(server.url))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))) + "\n")
