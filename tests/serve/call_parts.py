"""A participant without an engine and a transport without a network, as minimal implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError
from antiphon.ipc.engine_client import Notify
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.serve.calls.participant import Participant
from antiphon.serve.transport.transport import M, Message, T, Taker


class Mirror(Participant[FrameReply]):
    """Answers each message of audio with the same audio, and a word."""

    def __init__(self, token: int = 7) -> None:
        self.token, self.frames, self.is_closed = token, 0, False
        self.replies: list[FrameReply] = []

    async def open(self, notify: Notify) -> None:
        self.notify = notify

    @property
    def id(self) -> str:
        return "mirror"

    @property
    def state(self) -> SessionState:
        return SessionState.CLOSED if self.is_closed else SessionState.ACTIVE

    def put(self, pcm: FloatArray, received_s: float) -> None:
        self.replies.append(FrameReply(self.frames, pcm, self.token, (), 0.0, 0.0, received_s, received_s))
        self.frames += 1
        self.notify()

    def advance(self, now_s: float, *, may_take: bool) -> Sequence[FrameReply]:
        replies, self.replies = (self.replies, []) if may_take else ([], self.replies)
        return replies

    def finish(self, now_s: float) -> None:
        self.is_done = True

    def close(self, error: AntiphonError | None = None) -> None:
        self.is_closed = True


class Pipe:
    """Messages in memory; the peer puts its own into ``inbox``, None when it leaves."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self.sent: list[Message] = []
        self.seen_s = 0.0
        self.close_code: int | None = None
        self.has_ended = self.was_cut = self.has_unsent = False

    async def receive_any(self) -> Message | None:
        return None if self.has_ended else await self.inbox.get()

    def timed(self, work: Callable[[M], T], message: M) -> T:
        return work(message)

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        return nullcontext()

    async def wait_for(self, room: asyncio.Event) -> None:
        await room.wait()

    def send(self, messages: Sequence[Message]) -> None:
        self.sent += messages

    def is_congested(self) -> bool:
        return False

    def stalled_s(self, since_s: float) -> float:
        return 0.0

    def silent_s(self) -> float:
        return 0.0

    def ping(self) -> None:
        """Nobody sleeps."""

    def cut(self) -> None:
        self.inbox.put_nowait(None)

    async def close(self, code: int, reason: str) -> None:
        self.has_ended, self.close_code = True, code
        self.cut()
