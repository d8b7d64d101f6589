"""What goes between processes comes out as it went in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.backends.base import BackendInfo, TextEntry
from antiphon.engine.decisions import AdmissionOutcome, RefusedError
from antiphon.errors import (
    AntiphonError,
    DrainingError,
    ProtocolError,
    ServerFullError,
    SessionFailedError,
    StepError,
    UnsupportedError,
)
from antiphon.ipc import messages
from antiphon.ipc.post import MESSAGE_BYTES
from antiphon.ipc.remote_link import WORDS_A_MESSAGE
from antiphon.models.catalog import load_checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.spoken_text import MAX_WORD_TOKENS


@pytest.mark.parametrize(
    "message",
    [
        messages.Open(1, "a", {"text_seed": 3}, 0.5, None),
        messages.Words("a", [((1, 2), "word", 0, True)], 7.25),
        messages.HearPadding("a", 1, 4, 3, b"\0\1", 2.0),
        messages.Close("a"),
        messages.Checked(3, None),
        messages.Ended("a", ["DrainingError", "the server is leaving", 0]),
    ],
)
def test_a_message_comes_out_as_it_went_in(message: messages.Message) -> None:
    found = messages.unpack(messages.pack(message))
    assert type(found) is type(message)
    assert messages.pack(found) == messages.pack(message)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x91\xcc\xff", b"\x91\x00", b"\x01"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"{len(data)} bytes are no message of the seam"):
        messages.unpack(data)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerFullError("full", retry_after_s=7), ServerFullError),
        (RefusedError("full", retry_after_s=7, outcome=AdmissionOutcome.FULL), ServerFullError),
        (DrainingError("leaving"), DrainingError),
        (UnsupportedError("no prompt"), UnsupportedError),
        (StepError("row 3", rows=[3]), SessionFailedError),
    ],
)
def test_an_error_keeps_its_class_and_its_words(error: AntiphonError, kind: type[AntiphonError]) -> None:
    found = messages.unpack_error(messages.pack_error(error))
    assert (type(found), str(found)) == (kind, str(error))
    if isinstance(found, ServerFullError):
        assert found.retry_after_s == 7


@pytest.mark.parametrize("model", ["echo", "tiny", "tiny-stt", "tiny-tts"])
def test_a_models_facts_fit_a_message_and_stay_the_same(model: str) -> None:
    spec = load_checkpoint(model).spec
    info = BackendInfo("null", "cpu", spec, 4, versions={"numpy": "2"}, memory={"weights": 1}, row_ms=0.5)
    hello = messages.Hello(0, [{"facts": messages.pack_facts(info)}])
    data = messages.pack(hello)
    assert len(data) < MESSAGE_BYTES / 4
    found = messages.unpack(data)
    assert isinstance(found, messages.Hello)
    facts = messages.unpack_facts(found.models[0]["facts"])
    assert messages.pack(messages.Hello(0, [{"facts": messages.pack_facts(facts)}])) == data
    assert replace(facts, spec=spec) == info
    assert (facts.spec.kind, facts.spec.frame_samples) == (spec.kind, spec.frame_samples)
    assert facts.spec.lm is None or facts.spec.lm.delays == (spec.lm and spec.lm.delays)


def test_words_and_prompts_come_out_as_they_went_in() -> None:
    words = [TextEntry((1, 2), "hey", 3), TextEntry((), is_last=True)]
    assert messages.unpack_words(messages.pack_words(words)) == words
    prompt = Prompt(np.ones((3, 2), np.int32), embedded=np.ones((2, 4), np.float32))
    parts, data = messages.pack_prompt(prompt)
    assert messages.unpack_prompt(parts, data).key == prompt.key
    with pytest.raises(ProtocolError, match="bytes are no prompt"):
        messages.unpack_prompt(parts, data[:-1])


def test_as_many_of_the_longest_words_as_go_together_fit_a_message() -> None:
    word = TextEntry((4_294_967_295,) * (MAX_WORD_TOKENS + 1), "\U0001f600" * 16 * MAX_WORD_TOKENS, 999_999)
    words = messages.pack_words([word] * WORDS_A_MESSAGE)
    assert len(messages.pack(messages.Words("0123456789abcdef", words, 1e9))) <= MESSAGE_BYTES
