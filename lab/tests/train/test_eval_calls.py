"""The evaluation of calls of the recogniser and the synthesiser."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from antiphon_client.tts_probe import TtsRecord
from lab.train import eval_calls
from lab.train.domain import Turn
from lab.train.eval_calls import LEAD_S, Dictated, dictation_report, held_out_texts, sounds_of
from lab.train.questions import Utterance
from lab.train.synthetic_voices import Voice

END_FRAME = round(LEAD_S * 12.5) + 25
"""End of a question of two seconds."""


def overheard(intent: str, written: str) -> Dictated:
    """A sentence outside the domain, and its transcript."""
    one = Utterance(
        Turn(intent, "tell me a joke", "", True), Voice("flite", "rms"), 1.0, np.zeros(9, np.float32)
    )
    told = [(1.0 + place, word) for place, word in enumerate(written.split())]
    return Dictated(one, False, [], told, np.zeros((0, 4), np.float32))


def dictated(written: str, pauses: list[int], *, is_noisy: bool = False) -> Dictated:
    """A question of two words; ``pauses`` are frames with a pause by head 0; the other heads never detect
    one."""
    turn = Turn("add", "two plus", "", True)
    one = Utterance(turn, Voice("flite", "rms"), 1.0, np.zeros(2 * 24_000, np.float32))
    heard = np.zeros((END_FRAME + 30, 4), np.float32)
    heard[pauses, 0] = 0.9
    said = [(1.0, "two"), (1.5, "plus")]
    told = [(1.12 + 0.5 * place, word) for place, word in enumerate(written.split())]
    return Dictated(one, is_noisy, said, told, heard)


def test_a_pause_is_timed_from_the_end_of_the_question() -> None:
    last = END_FRAME + 30
    assert dictated("two plus", list(range(END_FRAME + 3, last))).pause_after_s(0) == pytest.approx(
        0.32, abs=0.05
    )
    assert dictated("two plus", [3, 4, *range(END_FRAME - 10, last)]).pause_after_s(0) == pytest.approx(
        -0.72, abs=0.05
    )
    assert dictated("two plus", [3, 4]).pause_after_s(0) is None


def test_a_report_counts_words_times_and_pauses() -> None:
    late = list(range(END_FRAME + 3, END_FRAME + 30))
    report = dictation_report(
        [dictated("two plus", late), dictated("ten plus", [], is_noisy=True), dictated("two plus", late)]
    )
    assert report["questions"] == 3
    assert report["word_error"] == pytest.approx(1 / 6, abs=1e-4)
    assert (report["clean"], report["noise_20_db"]) == (0.0, 0.5)
    assert report["start_error_ms"] == pytest.approx(120)
    assert report["pauses"]["0.5"]["heard"] == pytest.approx(2 / 3, abs=1e-4)
    assert report["pauses"]["0.5"]["too_soon"] == 0.0
    assert report["pauses"]["3.0"] == {"heard": 0.0, "too_soon": 0.0, "median_ms": None}
    assert report["wrong"] == [{"said": "two plus", "voice": "rms", "written": "ten plus"}]


def test_words_written_of_other_speech_are_counted_by_themselves() -> None:
    late = list(range(END_FRAME + 3, END_FRAME + 30))
    others = [overheard("small talk", "two plus"), overheard("small talk", ""), overheard("prose", "")]
    report = dictation_report([dictated("two plus", late), *others])
    assert (report["questions"], report["word_error"], report["wrong"]) == (1, 0.0, [])
    assert report["outside"] == {
        "all": {"turns": 3, "silent": 0.6667, "words": 2},
        "prose": {"turns": 1, "silent": 1.0, "words": 0},
        "small talk": {"turns": 2, "silent": 0.5, "words": 2},
    }


def test_words_written_twice_and_questions_written_not_at_all_are_counted() -> None:
    assert dictation_report([dictated("two two plus", []), dictated("plus plus plus", [])])["doubled"] == 3
    report = dictation_report([dictated("two plus", []), dictated("", []), overheard("prose", "")])
    assert (report["doubled"], report["lost_to_silence"]) == (0, 0.5)


def test_texts_are_repeated_until_there_are_enough() -> None:
    texts = held_out_texts(100)
    assert len(texts) == 100
    assert len(set(texts)) < 100


def test_a_text_without_a_word_that_is_known_is_an_error_or_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> TtsRecord:
        return TtsRecord(error="this model can say nothing of this text: 'come', 'here'")

    def read(*, may_refuse: bool) -> list[TtsRecord]:
        return asyncio.run(
            eval_calls.read_all(
                "http://127.0.0.1:1", ["come here"], 2, lambda *_: None, "slt", may_refuse=may_refuse
            )
        )

    monkeypatch.setattr(eval_calls, "_read", refused)
    with pytest.raises(RuntimeError, match=r"^the server answered with an error: this model can say nothing"):
        read(may_refuse=False)
    assert [sound.tolist() for sound in sounds_of(read(may_refuse=True))] == [[0.0]]
