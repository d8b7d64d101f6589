"""The end of speech is reported after the last word, whenever the engine reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from antiphon.backends.base import TextEntry
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.serve.calls.synthesiser import Synthesiser
from tests.serve.harness import FRAME_SAMPLES
from tests.serve.tts_client import ONE_VOICE
from tests.support.null_models import Lengths


class EndingSession:
    """Says one frame, then ends in a tick without sound: while its owner looks for the ``looks``-th time."""

    def __init__(self, looks: int) -> None:
        self.state = SessionState.ACTIVE
        self.room_entries = 8
        self._looks = looks
        self._replies = [FrameReply(0, np.ones(FRAME_SAMPLES, np.float32), 0, (), 1.0, 0.0, 0.0, 0.0)]

    @property
    def is_done(self) -> bool:
        self._looks -= 1
        return self._looks < 0 and not self._replies

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        pass

    def finish(self) -> None:
        pass

    def take(self) -> list[FrameReply]:
        replies, self._replies = self._replies, []
        return replies

    def sent(self, reply: FrameReply, sent_s: float) -> None:
        pass


@pytest.mark.parametrize("looks", range(4))
def test_the_last_word_is_told_before_the_end_is_seen(looks: int) -> None:
    checkpoint = SimpleNamespace(spec=ONE_VOICE)
    model = SimpleNamespace(
        name="speaker", tokenizer=Lengths(), checkpoint=checkpoint, engine=None, parameters=lambda: None
    )
    voicing = Synthesiser(cast("Any", model), lambda: 0.0, None)
    voicing.session = cast("Any", EndingSession(looks))
    assert len(list(voicing.read("word"))) == 1
    voicing.finish(0.0)
    told: list[Spoken] = []
    for _ in range(10):
        told += [piece for piece in voicing.advance(0.0, may_take=True) if isinstance(piece, Spoken)]
        if voicing.is_done:
            break
    assert voicing.is_done
    assert told == [Spoken("word", 0.0, 0.08)]
