"""Chunked files in audio events, as from a browser's recorder: refused without an effect on the model."""

from __future__ import annotations

import base64
import json
from contextlib import AsyncExitStack
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import FieldError
from antiphon.serve.calls.values import PushAudio
from antiphon.serve.dialects.event_audio import EventAudio
from tests.audio.recordings import encoded
from tests.serve.harness import serving
from tests.serve.live_client import PATH as LIVE
from tests.serve.live_client import beside_a_talker, live_client
from tests.serve.realtime_client import PATH, realtime_client
from tests.support.null_models import HIBIKI

CODECS = {
    "WebM": ("webm", "libopus"),
    "Ogg": ("ogg", "libopus"),
    "FLAC": ("flac", "flac"),
    "MP4": ("mp4", "aac"),
    "MP3": ("mp3", "libmp3lame"),
}


HEADS = (b"OggS", b"RIFF", b"fLaC", b"\x1a\x45\xdf\xa3")


@cache
def file_of(kind: str) -> bytes:
    """A second of noise, in a file."""
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (1, 48_000)).astype(np.float32)
    return encoded(noise, 48_000, *CODECS[kind])


def dropped_words(kind: str, renewal: str) -> str:
    return (
        f"audio is a file, {kind}; bare samples are needed, in the session's format: audio/pcm, "
        f"audio/pcmu or audio/pcma. All audio until {renewal} is dropped"
    )


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(CODECS)), st.integers(64, 5000))
def test_no_chunk_of_a_file_is_samples_and_one_error_says_so(kind: str, size: int) -> None:
    audio, file = EventAudio("session.update"), file_of(kind)
    for _ in range(2):
        first, *rest = (file[at : at + size] for at in range(0, len(file), size))
        with pytest.raises(FieldError) as told:
            audio.is_file(first, "a")
        assert str(told.value) == dropped_words(kind, "session.update")
        assert all(audio.is_file(chunk, None) for chunk in (*rest, bytes(3840), first))
        audio.renew()
        assert not audio.is_file(bytes(3840), None)


@settings(max_examples=200)
@given(st.binary(max_size=400).filter(lambda it: it[:4] not in HEADS and it[:3] not in (b"ID3", bytes(3))))
def test_bare_samples_are_no_file(samples: bytes) -> None:
    assert not EventAudio("session.update").is_file(samples, None)


@pytest.mark.parametrize(
    ("path", "append", "renewals"),
    [
        (LIVE, "session.input_audio.append", ["session.update"]),
        (PATH, "input_audio_buffer.append", ["input_audio_buffer.clear", "session.update"]),
        (f"{PATH}?model=scribe", "input_audio_buffer.append", ["input_audio_buffer.clear", "session.update"]),
        (f"{PATH}/translations", "session.input_audio_buffer.append", ["session.update"]),
    ],
)
async def test_no_sample_of_a_recorders_chunks_reaches_a_model(
    path: str, append: str, renewals: list[str]
) -> None:
    """The chunks of WebM are those that a recorder makes: a header, and pieces of clusters."""

    def appended(audio: bytes) -> str:
        return json.dumps({"type": append, "audio": base64.b64encode(audio).decode()})

    webm = file_of("WebM")
    chunks = [webm[at : at + 1000] for at in range(0, len(webm), 1000)]
    place = serving(spec=HIBIKI) if "translations" in path else beside_a_talker()
    async with place as served, AsyncExitStack() as stack:
        server = served[0] if isinstance(served, tuple) else served
        if path == LIVE:
            await (await stack.enter_async_context(live_client(server))).start()
        else:
            client = await stack.enter_async_context(realtime_client(server, path))
            await client.event("session.created")
        (call,) = server.calls
        for renewal in renewals:
            with pytest.raises(FieldError) as told:
                call.dialect.feed(appended(chunks[0]))
            assert str(told.value) == dropped_words("WebM", " or ".join(renewals))
            assert not any(call.dialect.feed(appended(chunk)) for chunk in (*chunks[1:], bytes(3840)))
            kind = "transcription" if "scribe" in path else "realtime"
            session = {} if kind == "realtime" else {"type": kind}
            call.dialect.feed(json.dumps({"type": renewal, "session": session}))
            (pushed,) = call.dialect.feed(appended(bytes(3840)))
            assert isinstance(pushed, PushAudio)
            assert pushed.pcm.size > 1000


@pytest.mark.parametrize("path", [LIVE, PATH, f"{PATH}?model=scribe"])
async def test_a_long_message_is_decoded_in_short_steps(path: str) -> None:
    async with beside_a_talker() as (server, _), AsyncExitStack() as stack:
        law = {"type": "audio/pcmu"}
        if path == LIVE:
            append = "session.input_audio.append"
            await (await stack.enter_async_context(live_client(server))).start(audio={"format": law})
        else:
            append = "input_audio_buffer.append"
            client = await stack.enter_async_context(realtime_client(server, path))
            await client.event("session.created")
            kind = "transcription" if "scribe" in path else "realtime"
            await client.update(type=kind, audio={"input": {"format": law}})
        (call,) = server.calls
        message = {"type": append, "audio": base64.b64encode(b"\xff" * 160_000).decode()}
        heard = [it for it in call.dialect.feed(json.dumps(message)) if isinstance(it, PushAudio)]
        while call.dialect.has_more:
            heard += [it for it in call.dialect.feed("") if isinstance(it, PushAudio)]
        assert max(it.seconds for it in heard) < 0.6
        assert sum(it.seconds for it in heard) == pytest.approx(20.0, abs=0.01)
