"""The path of a frame counted by `python -m tests.repo.report` equals the traced path."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from inspect import CO_COROUTINE
from types import CodeType, FrameType

from antiphon.audio.codec import Encoder
from antiphon.audio.codecs import make_encoder
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from tests.repo.frame_path import FRAME_LINES, FRAME_PATH, ON_A_CLOCK
from tests.repo.tracked import ROOT
from tests.serve.harness import Client, Server, serving, socket_of, speech
from tests.support.null_models import DUPLEX

FRAMES = 20
SERVER = str(ROOT / "server") + "/"


class Calls:
    """Counts the calls of each function of the server, on every thread that starts later, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self._found: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or code.co_flags & CO_COROUTINE:
            return  # a coroutine is entered anew whenever anything below it has waited
        if code.co_filename.startswith(SERVER):
            self._found[code] += 1

    def lines(self, least: int) -> Counter[str]:
        """By file, the lines of all functions that were called at least ``least`` times."""
        root, found = len(str(ROOT)) + 1, Counter[str]()
        for code, calls in self._found.items():
            if calls >= least and not code.co_name.startswith("<"):  # what stands within another
                last = max(line or 0 for _, _, line in code.co_lines())
                found[code.co_filename[root:]] += last - code.co_firstlineno + 1
        return found


async def _round_trip(server: Server, client: Client, encoder: Encoder) -> None:
    """Send a frame's packets one by one, as they come from a microphone, and wait for the reply."""
    packets, (call,) = encoder.encode(speech(1)), server.calls
    for packet in packets:
        before_s = socket_of(call).seen_s
        await client.send(moshi.Audio(packet))
        await server.eventually(lambda since_s=before_s: socket_of(call).seen_s > since_s)  # type: ignore[misc]
    replies = 0
    while replies < len(packets):
        message = await client.ws.receive()
        replies += message.data[0] == moshi.Tag.STAMPED_AUDIO  # not decoded: only the server is counted


async def test_the_path_of_a_frame_is_the_listed_one() -> None:
    calls = Calls()
    threading.setprofile(calls)
    try:
        async with (
            serving(spec=DUPLEX) as server,
            server.call("ext=1&format=opus&text_temperature=0") as client,
        ):
            await client.event("ready")
            encoder = make_encoder(AudioFormat.OPUS)
            for packet in encoder.encode(speech(DUPLEX.delay_frames)):
                await client.send(moshi.Audio(packet))
            await _round_trip(server, client, encoder)
            sys.setprofile(calls)
            calls.is_on = True
            for _ in range(FRAMES):
                await _round_trip(server, client, encoder)
            calls.is_on = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    passed = {path: lines for path, lines in calls.lines(FRAMES).items() if path not in ON_A_CLOCK}
    gone, new = sorted({*FRAME_PATH} - passed.keys()), sorted(passed.keys() - {*FRAME_PATH})
    assert (gone, new) == ([], []), (
        "take the first out of FRAME_PATH of tests/repo/frame_path.py, add the others"
    )
    assert sum(passed.values()) <= FRAME_LINES, "what runs for every frame has grown"
