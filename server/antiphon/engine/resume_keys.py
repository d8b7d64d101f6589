"""The tokens that resume calls, as hashes: which call each is good for, and why others are not."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final

from antiphon.engine.resumable_call import MOVED, ResumableCall
from antiphon.errors import MovedError, ResumeError, SessionError
from antiphon.ipc.resumption import ResumeClaim

GONE_KEYS: Final = 4096
"""Tokens that are remembered with why they are good no more."""


class ResumeKeys:
    """The tokens of one engine's calls; used under the lock of :class:`antiphon.engine.resuming.Resuming`."""

    def __init__(self, window_s: float) -> None:
        """Begin without any; a call without a connection is kept for ``window_s``."""
        self._window_s = window_s
        self._calls: dict[bytes, ResumableCall] = {}
        self._gone: OrderedDict[bytes, str] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        """Whether it is good for a call."""
        return key in self._calls

    @property
    def calls(self) -> tuple[ResumableCall, ...]:
        """Every call that can be resumed, once."""
        return tuple(dict.fromkeys(self._calls.values()))

    def was_here(self, key: bytes) -> bool:
        """Whether it is, or was, good for a call here that did not go to another worker."""
        return key in self or not self._gone.get(key, MOVED).startswith(MOVED)

    def add(self, call: ResumableCall) -> None:
        """All tokens of a call are good from now on."""
        for key in call.keys:
            self._calls[key] = call
            self._gone.pop(key, None)

    def renew(self, call: ResumableCall, claim: ResumeClaim) -> None:
        """Another connection has shown a token and has a new one; the one it showed stays good for now."""
        if claim.key == call.key:
            self.drop_former(call)
            call.former_key = call.key
        else:  # the client never got the answer with the last token
            self._calls.pop(call.key)
        call.key = claim.new_key
        self._calls[call.key] = call

    def drop_former(self, call: ResumableCall) -> None:
        """The token before the last is good no more."""
        if call.former_key is not None:
            self._give_up(call.former_key, "replaced")
            call.former_key = None

    def give_up(self, call: ResumableCall, reason: str) -> None:
        """No token of a call is good from now on."""
        for key in call.keys:
            self._give_up(key, reason)

    def find(self, claim: ResumeClaim) -> ResumableCall:
        """The call that a token is good for.

        Raises:
            ResumeError, MovedError: there is none, or it is another client's; the message says why.
        """
        call = self._calls.get(claim.key)
        if call is None or not any(hmac.compare_digest(claim.key, key) for key in call.keys):
            raise self._why_not(self._gone.get(claim.key, "unknown"))
        if call.owner != claim.owner:
            raise ResumeError("unknown: this call was begun with another API key")
        if claim.seq >= call.next_seq:
            raise ResumeError(
                f"unknown: the client has message {claim.seq}, of {call.next_seq} that were noted"
            )
        if call.successor is not None:
            raise ResumeError("replaced: the call is being resumed through another connection")
        return call

    def _give_up(self, key: bytes, reason: str) -> None:
        self._calls.pop(key, None)
        self._gone[key] = reason
        if len(self._gone) > GONE_KEYS:
            self._gone.popitem(last=False)

    def _why_not(self, reason: str) -> SessionError:
        """Why a token is good no more."""
        if reason.startswith(MOVED):
            return MovedError(f"{reason.removeprefix(MOVED)}: the call goes on at this worker")
        match reason:
            case "expired":
                words = f"expired: a call without a connection is kept for {self._window_s:g} s at most"
            case "replaced":
                words = "replaced: this token was used, and its call goes on with another"
            case _:
                words = "unknown: no call that can be resumed has this token"
        return ResumeError(words)
