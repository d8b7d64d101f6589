"""A client of OpenAI Live that keeps its recording and resumes after every cut."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp

from antiphon.backends.base import FloatArray
from tests.serve import harness
from tests.serve.harness import FRAME_SAMPLES, PATIENCE_S, Closed
from tests.serve.live_client import PATH, LiveClient
from tests.serve.resuming import IN_FLIGHT_FRAMES


class ResumingLiveCaller:
    """Speaks ``pcm``, whole frames, as fast as it is answered, over as many connections as it takes.

    Its connection is cut when a frame of ``cuts_at`` has come: ``resumed`` are the answers to what followed.
    A session that moves is followed to the address that ``workers`` has by its worker's name.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        pcm: FloatArray,
        *,
        model: str,
        delay_frames: int = 0,
        cuts_at: tuple[int, ...] = (),
    ) -> None:
        self._http, self._url, self._session = http, url, {"model": model}
        # After a cut, replies that are given again wait beside new ones: half as many reach no bound.
        self._frames, self._ahead = pcm.reshape(-1, FRAME_SAMPLES), IN_FLIGHT_FRAMES // 2 + delay_frames
        self._cuts_at = list(cuts_at)
        self.sends_until, self._following = len(self._frames), 0
        self._client: LiveClient | None = None
        self._sending = asyncio.Lock()
        self.token, self.seq, self.frame = "", -1, -1
        self.resumed: list[dict[str, Any]] = []
        self.words: list[dict[str, Any]] = []
        self.audio: list[tuple[int, str]] = []
        self.failed: list[Any] = []
        self.workers: dict[str, str] = {}
        self.moves: list[str] = []

    def claim(self) -> dict[str, Any]:
        """What a connection that resumes begins with."""
        own = {"token": self.token, "seq": self.seq, "frame": self.frame, "input_frame": 0}
        return {"type": "session.resume", "session": self._session, **own}

    async def run(self) -> None:
        """Until the last frame is answered, or the server refuses."""
        mode, first = "1", {"type": "session.start", "session": self._session}
        async with asyncio.timeout(PATIENCE_S):
            while self.frame + 1 < len(self._frames) and not self.failed:
                url = f"{self._url}{PATH}?resume={mode}"
                try:
                    async with self._http.ws_connect(url, max_msg_size=0) as ws:
                        await ws.send_json(first)
                        await self._talk(LiveClient(ws))
                except (aiohttp.ClientError, OSError):
                    await asyncio.sleep(0.02)  # it reached the front end that dies
                mode, first = ("again", self.claim()) if self.token else (mode, first)

    async def until_answered(self, frame: int) -> None:
        """Wait until everything before this frame is answered."""
        while self.frame + 1 < frame:  # noqa: ASYNC110 (it looks at a few tests' calls)
            await asyncio.sleep(0.001)

    async def go_on(self) -> None:
        """Send everything, where only ``sends_until`` frames were to be sent before."""
        self.sends_until = len(self._frames)
        with contextlib.suppress(ConnectionResetError):  # a broken connection: the next one sends it
            await self._send()

    async def _send(self) -> None:
        async with self._sending:
            while self._client is not None and self._following < min(
                self.sends_until, self.frame + 1 + self._ahead
            ):
                self._following += 1
                await self._client.speak(self._frames[self._following - 1])

    async def _talk(self, client: LiveClient) -> None:
        self._client = None
        while not isinstance(event := await client.receive(), Closed):
            if event["type"] in ("session.started", "session.resumed"):
                self.token, self._following = event["resume"]["token"], event.get("input_frame", 0)
                self._client = client
                self.resumed += [event] if event["type"] == "session.resumed" else []
            elif event["type"] == "error":
                self._follow(event["error"])
            self._keep(event)
            if self._cuts_at and self.frame >= self._cuts_at[0]:
                self._cuts_at.pop(0)
                cut(client)
                return
            await self._send()
            if self.frame + 1 >= len(self._frames):
                await client.ws.close()

    def _follow(self, error: dict[str, Any]) -> None:
        worker = error["message"].partition(":")[0]
        if error["code"] != "session_moved" or worker not in self.workers:
            self.failed.append(error)
            return
        self.moves.append(worker)
        self._url = self.workers[worker]

    def _keep(self, event: dict[str, Any]) -> None:
        if event["type"] == "session.output_audio.delta":
            self.frame = event["frame"]
            self.audio.append((self.frame, event["delta"]))
        if "seq" in event:
            assert event["seq"] == self.seq + 1
            self.seq = event["seq"]
            self.words += [event] if event["type"] == "session.output_transcript.delta" else []


def cut(client: LiveClient) -> None:
    """Break a connection, as a network does."""
    harness.cut(client.ws)
