"""A client of OpenAI Realtime that collects its events, for tests."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.serve.asr_client import sentence, spoken
from tests.serve.harness import Server
from tests.serve.live_client import LiveClient

PATH = "/v1/realtime"


class RealtimeClient(LiveClient):
    """One WebSocket; ``events`` are all that came."""

    async def update(self, **session: Any) -> dict[str, Any]:
        """Change the session; returns it as it is then."""
        await self.send("session.update", session=session)
        return (await self.event("session.updated"))["session"]  # type: ignore[no-any-return]

    async def append(self, data: bytes, **fields: Any) -> None:
        await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode(), **fields)

    @property
    def kinds(self) -> list[str]:
        """The types that came, repeats in a row left out."""
        kinds = [event["type"] for event in self.events]
        return [kind for place, kind in enumerate(kinds) if not place or kinds[place - 1] != kind]


@asynccontextmanager
async def realtime_client(
    server: Server, path: str = PATH, *, protocols: Sequence[str] = (), **headers: str
) -> AsyncIterator[RealtimeClient]:
    """A client whose session has begun, where ``path`` leads to one."""
    async with server.http.ws_connect(
        server.url(path, "ws"), headers=headers, max_msg_size=0, protocols=protocols
    ) as ws:
        yield RealtimeClient(ws)


COMPLETED = "conversation.item.input_audio_transcription.completed"


MANUAL: dict[str, Any] = {"turn_detection": None, "transcription": {"model": "scribe"}}


async def dictate(client: RealtimeClient, words: int) -> tuple[dict[str, Any], list[str]]:
    """Say words and commit; what is completed, and what was said."""
    tokens, texts = sentence(words)
    await client.speak(spoken([*tokens, 0]))
    await client.send("input_audio_buffer.commit")
    return await client.event(COMPLETED), texts
