"""Speech on its way out: what cannot be encoded is no end."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from antiphon.errors import SessionFailedError
from antiphon.protocol.kyutai_tts import SpeechFormat
from antiphon.serve.hosting.lanes import Fault, Lane, Turn
from antiphon.serve.media.speech_output import SpeechOutput


class Hand:
    """A worker that takes turns when it is told to."""

    def __init__(self) -> None:
        self.lanes = 0
        self._queue: deque[Lane] = deque()

    def put(self, lane: Lane) -> None:
        self._queue.append(lane)

    def work(self) -> None:
        while self._queue:
            self._queue.popleft().run()

    def thread_lane(self, turn: Turn, fault: Fault) -> Lane:
        return Lane(self, turn, fault)


def test_all_that_was_put_in_comes_out_before_it_is_drained() -> None:
    hand = Hand()
    output = SpeechOutput(SpeechFormat.OGG, cast("Any", hand), lambda: None)
    output.put([np.zeros(1920, np.float32)] * 3)
    output.finish()
    assert not output.is_drained
    hand.work()
    assert not output.is_drained
    assert output.collect().count(b"OggS") >= 3
    assert output.is_drained


def test_what_could_not_be_encoded_is_never_drained() -> None:
    hand = Hand()
    output = SpeechOutput(SpeechFormat.OGG, cast("Any", hand), lambda: None)

    def broken() -> bytes:
        raise ValueError("no more memory")

    output._encoder = cast("Any", SimpleNamespace(finish=broken, close=lambda: None))
    output.finish()
    hand.work()
    assert isinstance(output.error, SessionFailedError)
    assert str(output.error) == "the server could not encode: ValueError: no more memory"
    assert not output.is_drained
