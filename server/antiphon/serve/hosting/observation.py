"""Measurements that judge a running call: a few counts, its last words, and a recogniser's transcript."""

from __future__ import annotations

import difflib
import re
from collections import deque
from dataclasses import replace
from typing import Final

import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.canary.signals import CallSignals
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.output_listener import OutputListener
from antiphon.serve.hosting.served import ServedModel

LATE_SHARE: Final = 0.05
"""The fraction of late frames from which a call counts as the worst; at this fraction admission stops."""

HANG_UP_S: Final = 10.0
"""Length in seconds below which a call counts as a hang-up. The alert on quality uses the same limit."""

MIN_JUDGED_S: Final = 2.0
"""Length in seconds below which a call cannot count as silent."""

SPOKEN_SHARE: Final = 0.1
WRITTEN_SHARE: Final = 0.02
"""The expected fraction of frames with speech (with text for models without audio): one word in four seconds.
Below it a call counts as partly silent; at 0 it counts as fully silent.
"""

SPEECH_POWER: Final = 10 ** (-50 / 10)
"""The power from which a frame counts as speech; it is the same as for the output gate."""

REPEATED_TOKENS: Final = 4
KEPT_TOKENS: Final = 256
"""Number of last tokens in which repeated sequences of four tokens are counted."""

LISTEN_FRAMES: Final = 250
"""Seconds at the start of a call that a recogniser transcribes."""

WORD: Final = re.compile(r"\w+")


class Observation:
    """The measurements of one call of a version on trial, used on the event loop only."""

    def __init__(self, model: ServedModel, listener: OutputListener | None) -> None:
        """Begin with the call; ``listener`` transcribes its start, if there is one."""
        self._model, self._listener = model, listener
        self._frames = self._active = 0
        self._tokens: deque[int] = deque(maxlen=KEPT_TOKENS)
        self._text: list[str] = []

    def see(self, reply: FrameReply) -> None:
        """Count a reply that was sent."""
        if reply.is_padding:
            return
        text = self._piece(reply.text_token)
        self._frames += 1
        self._active += bool(text) if reply.pcm is None else _is_speech(reply.pcm)
        if text and reply.text_token is not None:
            self._tokens.append(reply.text_token)
        if self._listener is not None and self._frames <= LISTEN_FRAMES and reply.pcm is not None:
            self._listener.hear(reply.pcm)
            self._text.append(text)
            if self._frames == LISTEN_FRAMES:
                self._listener.stop()

    def signals(self, stats: SessionStats, error: AntiphonError | None) -> CallSignals:
        """The call's measurements, without the recogniser's measurements; ``error`` is the error that ended
        the call, if any.
        """
        frame_s = self._model.engine.info.spec.frame_ms / 1000
        seconds = stats.frames_taken * frame_s
        late_share = (stats.late + stats.lost) / max(1, stats.frames_taken)
        is_live = self._model.kind.is_live
        is_judged = self._frames * frame_s >= MIN_JUDGED_S
        return CallSignals(
            late=min(1.0, late_share / LATE_SHARE),
            silence=self._silence() if is_judged else None,
            repetition=repetition(self._tokens),
            hang_up=float(error is None and seconds < HANG_UP_S) if is_live else None,
            failure=float(error is not None and wire_form(error).close is CloseCode.INTERNAL_ERROR),
        )

    async def with_transcript(self, signals: CallSignals) -> CallSignals:
        """The measurements with the recogniser's measurements, once these are known."""
        if self._listener is None:
            return signals
        try:
            transcript = await self._listener.finish()
        finally:
            self._listener.close()
        text = "".join(self._text)
        return (
            signals if transcript is None else replace(signals, disagreement=disagreement(text, transcript))
        )

    def forget(self) -> None:
        """Stop observing, because the call continues elsewhere."""
        if self._listener is not None:
            self._listener.close()

    @property
    def has_listener(self) -> bool:
        """Whether a recogniser transcribes the call."""
        return self._listener is not None

    def _silence(self) -> float:
        share = SPOKEN_SHARE if self._model.kind.gives_audio else WRITTEN_SHARE
        return 1.0 - min(1.0, self._active / (share * self._frames))

    def _piece(self, token: int | None) -> str:
        tokenizer = self._model.tokenizer
        # A tts model's counts are those of its input words.
        if token is None or tokenizer is None or not self._model.kind.takes_audio:
            return ""
        return tokenizer.piece(token)


def _is_speech(pcm: FloatArray) -> bool:
    return float(np.dot(pcm, pcm)) > SPEECH_POWER * pcm.size


def repetition(tokens: deque[int]) -> float:
    """The fraction of sequences of four tokens that occurred before; 0 for fewer than sixteen tokens."""
    kept = tuple(tokens)
    sequences = [kept[at : at + REPEATED_TOKENS] for at in range(len(kept) - REPEATED_TOKENS + 1)]
    if len(kept) < 4 * REPEATED_TOKENS:
        return 0.0
    return 1.0 - len(set(sequences)) / len(sequences)


def disagreement(text: str, transcript: str) -> float | None:
    """The fraction of both texts' words that do not occur in the other text in the same order; None if
    ``text`` has no words.
    """
    said, heard = (WORD.findall(each.lower()) for each in (text, transcript))
    if not said:
        return None
    return 1.0 - difflib.SequenceMatcher(None, said, heard, autojunk=False).ratio()
