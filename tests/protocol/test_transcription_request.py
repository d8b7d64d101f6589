"""Requests and responses of ``/v1/audio/transcriptions``."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import FieldError
from antiphon.protocol.captions import MAX_CHARS, PAUSE_S, TimedWord, as_srt, as_vtt, segments_of
from antiphon.protocol.transcript_file import CONTENT_TYPES, Written, encode_transcript, text_delta, text_done
from antiphon.protocol.transcription_request import FORMATS, IGNORED, TranscriptionRequest, parse_form


def order(**fields: str | list[str]) -> TranscriptionRequest:
    values = {name: [it] if isinstance(it, str) else it for name, it in fields.items()}
    return parse_form(values, has_file=True)


def test_a_file_is_enough() -> None:
    assert order() == TranscriptionRequest()
    assert order(model="", language="", stream="", response_format="") == TranscriptionRequest()


def test_every_field_is_read() -> None:
    found = parse_form(
        {
            "model": ["tiny-stt"],
            "language": ["en"],
            "response_format": ["verbose_json"],
            "timestamp_granularities[]": ["word", "segment"],
            "include[]": ["logprobs"],
            "chunking_strategy[type]": ["server_vad"],
            "temperature": ["0.2"],
            "anything": ["else"],
        },
        has_file=True,
    )
    ignored = ("anything", "chunking_strategy", "include", "temperature")
    assert found == TranscriptionRequest(
        "tiny-stt", "en", "verbose_json", ("word", "segment"), is_stream=False, ignored=ignored
    )
    assert order(**dict.fromkeys(IGNORED, "x")).ignored == tuple(sorted(IGNORED))
    assert order(stream="True").is_stream
    without_brackets = order(response_format="verbose_json", timestamp_granularities="word")
    assert without_brackets.granularities == ("word",)


@pytest.mark.parametrize(
    "spelled",
    [
        {"timestamp_granularities[0]": "word", "timestamp_granularities[1]": "segment"},
        {"timestamp_granularities": '["word", "segment"]'},
        {"timestamp_granularities[]": '["word","segment"]'},
        {"timestamp-granularities[]": ["word", "segment"]},
    ],
)
def test_other_spellings_mean_the_same(spelled: dict[str, str | list[str]]) -> None:
    found = order(**{"response-format": "verbose_json"}, **spelled)
    assert found == TranscriptionRequest(format="verbose_json", granularities=("word", "segment"))


def test_unknown_fields_are_named_where_they_can_be() -> None:
    assert order(**{"beam_size": "5", "a\r\nb": "1", "hotwords[]": "x"}).ignored == ("beam_size", "hotwords")
    assert len(order(**{f"x{number}": "1" for number in range(60)}).ignored) == 16


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        (
            {"response_format": "diarized_json"},
            "response_format",
            "is 'diarized_json', not one of json, text",
        ),
        ({"stream": "maybe"}, "stream", "stream is 'maybe', true or false is needed"),
        (
            {"stream": "true", "response_format": "srt"},
            "stream",
            "needs response_format json, text, verbose_json, got srt",
        ),
        (
            {"timestamp_granularities[]": "word"},
            "timestamp_granularities",
            "needs response_format verbose_json",
        ),
        (
            {"timestamp_granularities": "word"},
            "timestamp_granularities",
            "needs response_format verbose_json",
        ),
        (
            {"timestamp_granularities[]": "line"},
            "timestamp_granularities",
            "is 'line', not one of segment, word",
        ),
        ({"model": ["a", "b"]}, "model", "model is both 'a' and 'b'"),
        (
            {"response_format": "json", "response-format": "srt"},
            "response_format",
            "response_format is both 'json' and 'srt'",
        ),
        (
            {"timestamp_granularities": "[1, 2", "response_format": "verbose_json"},
            "timestamp_granularities",
            r"is '\[1, 2', not one of",
        ),
        ({"language": "e" * 41}, "language", "language has 41 characters, the limit is 40"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(
    fields: dict[str, str], param: str, sentence: str
) -> None:
    with pytest.raises(FieldError, match=sentence) as refused:
        order(**fields)
    assert refused.value.param == param


def test_a_form_without_a_file_is_refused() -> None:
    with pytest.raises(FieldError, match="file is missing"):
        parse_form({}, has_file=False)


words = st.lists(
    st.tuples(
        st.text(st.characters(categories=["L", "P", "S"]), min_size=1, max_size=90),
        st.floats(0, 3),
        st.floats(0, 3),
    )
).map(lambda gaps: _in_time(gaps))


def _in_time(gaps: list[tuple[str, float, float]]) -> list[TimedWord]:
    found, now_s = [], 0.0
    for text, pause_s, length_s in gaps:
        start_s = now_s + pause_s
        now_s = start_s + length_s
        found.append(TimedWord(text, round(start_s, 3), round(now_s, 3)))
    return found


@given(words)
def test_segments_hold_every_word_in_order_and_end_at_pauses(found: list[TimedWord]) -> None:
    segments = segments_of(found)
    assert [word for segment in segments for word in segment.words] == found
    for segment in segments:
        assert len(segment.text) <= MAX_CHARS or len(segment.words) == 1
        inner = zip(segment.words, segment.words[1:], strict=False)
        assert all(after.start_s - before.stop_s <= PAUSE_S for before, after in inner)


@given(words)
def test_subtitles_are_as_their_formats_say(found: list[TimedWord]) -> None:
    segments = segments_of(found)
    blocks = as_srt(segments).split("\n\n") if segments else []
    for number, block in enumerate(blocks, 1):
        assert re.fullmatch(
            rf"{number}\n\d\d:\d\d:\d\d,\d{{3}} --> \d\d:\d\d:\d\d,\d{{3}}\n.+\n?", block, re.DOTALL
        )
    assert len(blocks) == len(segments)
    head, *cues = as_vtt(segments).split("\n\n")
    assert head.strip() == "WEBVTT"
    assert len([cue for cue in cues if cue]) == len(segments)
    assert all("-->" not in cue.split("\n", 1)[1] for cue in cues if cue)


SPOKEN = [TimedWord(" what", 0.5, 0.7), TimedWord("is", 0.7, 0.9), TimedWord("<that>", 3661.2, 3661.5)]


def test_the_files_are_exactly_so() -> None:
    segments = segments_of(SPOKEN)
    assert as_srt(segments) == (
        "1\n00:00:00,500 --> 00:00:00,900\nwhat is\n\n2\n01:01:01,200 --> 01:01:01,500\n<that>\n"
    )
    assert as_vtt(segments) == (
        "WEBVTT\n\n00:00:00.500 --> 00:00:00.900\nwhat is\n\n01:01:01.200 --> 01:01:01.500\n&lt;that&gt;\n"
    )


def answered(**fields: Any) -> Any:
    return json.loads(encode_transcript(TranscriptionRequest(**fields), Written(SPOKEN, 3662.0)))


def test_a_verbose_transcript_has_what_was_asked_for() -> None:
    found = answered(format="verbose_json", language="en")
    assert (found["text"], found["duration"], found["language"]) == ("what is <that>", 3662.0, "en")
    assert [(it["id"], it["start"], it["end"], it["text"]) for it in found["segments"]] == [
        (0, 0.5, 0.9, "what is"),
        (1, 3661.2, 3661.5, "<that>"),
    ]
    assert "words" not in found
    found = answered(format="verbose_json", granularities=("word",))
    assert found["language"] == "und"
    assert found["words"][0] == {"word": "what", "start": 0.5, "end": 0.7}
    assert "segments" not in found


def test_a_plain_transcript_has_its_text_and_its_length() -> None:
    assert answered() == {"text": "what is <that>", "usage": {"type": "duration", "seconds": 3662.0}}
    assert set(CONTENT_TYPES) == set(FORMATS)


def test_events_add_up_to_the_text() -> None:
    deltas = [text_delta("what", is_first=True), text_delta("is", is_first=False)]
    assert "".join(json.loads(it.removeprefix(b"data: "))["delta"] for it in deltas) == "what is"
    assert (
        json.loads(text_done(TranscriptionRequest(), Written(SPOKEN, 1.0)).removeprefix(b"data: "))["text"]
        == "what is <that>"
    )
