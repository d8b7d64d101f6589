"""Recordings by POST: every container, the limits, and refusals."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.audio.wav import encode_wav
from antiphon.protocol.kyutai import PATH, Ready
from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from antiphon.serve.routes.asr_file import FREE_S, MIN_BYTES_PER_S
from tests.audio.recordings import encoded
from tests.serve.asr_client import scribe, sentence, spoken, transcribing
from tests.serve.harness import PATIENCE_S, Server, serving
from tests.serve.tts_client import speaker


async def post(server: Server, data: Any, **headers: str) -> tuple[int, Any]:
    body = io.BytesIO(data) if isinstance(data, bytes) else data
    async with server.http.post(server.url(PATH), data=body, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text) if text[:1] in "[{" else text


def words(answer: list[dict[str, str]]) -> list[str]:
    return [entry["text"] for entry in answer if entry["type"] == "Word"]


async def test_the_answer_is_words_and_their_ends_in_order() -> None:
    tokens, texts = sentence(20)
    async with transcribing() as (server, _):
        status, answer = await post(server, encode_wav(spoken(tokens), 24_000))
        assert status == 200
        assert words(answer) == texts
        assert [list(entry) for entry in answer[:2]] == [
            ["type", "text", "start_time"],
            ["type", "stop_time"],
        ]
        assert [entry["type"] for entry in answer] == ["Word", "EndWord"] * 20
        starts = [entry["start_time"] for entry in answer if entry["type"] == "Word"]
        assert starts == pytest.approx([(4 * word + 2) * 0.08 for word in range(20)])
        assert answer[-1]["stop_time"] <= len(tokens) * 0.08 + 1e-6
        await server.is_empty()


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        *(("wav", "pcm_s16le", 24_000), ("wav", "pcm_f32le", 48_000), ("wav", "pcm_mulaw", 8000)),
        *(("flac", "flac", 44_100), ("mp3", "libmp3lame", 44_100), ("ogg", "libopus", 48_000)),
    ],
)
async def test_every_container_is_heard_whole(container: str, codec: str, rate: int) -> None:
    pcm = np.zeros(24_000 * 3, np.float32)
    async with transcribing() as (server, steps):
        status, answer = await post(server, encoded(pcm[None], 24_000, container, codec, rate))
        assert (status, answer) == (200, [])
        assert 1 + 37 <= steps.taken <= 1 + 37 + 3 + 7  # its frames, perhaps a codec's padding, the delay


@pytest.mark.parametrize("container", ["wav", "flac"])
async def test_what_loses_nothing_has_all_its_words(container: str) -> None:
    tokens, texts = sentence(10)
    codec = {"wav": "pcm_f32le", "flac": "flac"}[container]
    async with transcribing() as (server, _):
        status, answer = await post(server, encoded(spoken(tokens)[None], 24_000, container, codec))
        assert status == 200
        assert words(answer) == texts


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no recording that can be read"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "no recording that can be read"),
        (b"RIFF\xff\xff\xff\xffWAVE" + bytes(3000), "this wav file cannot be read"),
        (b"fLaC" + b"\x7f" * 3000, "this flac file cannot be read"),
        (b"OggS" + b"\x00" * 3000, "this ogg file cannot be read"),
        (b"ID3" + b"\x01" * 3000, "this mp3 file cannot be read"),
    ],
)
async def test_what_is_no_recording_is_refused(data: bytes, says: str) -> None:
    async with transcribing() as (server, _):
        status, answer = await post(server, data)
        assert status == 415
        assert says in answer
        await server.is_empty()


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_recording_of_too_many_bytes_is_refused(is_announced: bool) -> None:
    wav = encode_wav(np.zeros(24_000, np.float32), 24_000)

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(wav), 5000):
            yield wav[start : start + 5000]

    async with transcribing(limits={"max_upload_bytes": 20_000}) as (server, steps):
        status, answer = await post(server, wav if is_announced else stream())
        assert status == 413
        assert "the limit is 20000" in answer
        assert steps.taken == 0


async def test_a_recording_that_lasts_too_long_is_refused() -> None:
    async with transcribing(limits={"max_upload_s": 2.0}) as (server, _):
        status, answer = await post(server, encode_wav(np.zeros(24_000 * 5, np.float32), 24_000))
        assert status == 413
        assert answer == "this recording lasts 5.0 s, the limit is 2 s\n"
        await server.is_empty()
        status, _ = await post(server, encode_wav(np.zeros(24_000 * 2, np.float32), 24_000))
        assert status == 200


async def test_silence_in_few_bytes_holds_no_row_for_long() -> None:
    """An hour of it is 28 KB; here a header states 200 s."""
    flac = bytearray(encoded(np.zeros((1, 24_000), np.float32), 24_000, "flac", "flac"))
    flac[22:26] = (200 * 24_000).to_bytes(4, "big")
    async with transcribing() as (server, steps):
        status, answer = await post(server, bytes(flac))
        assert status == 413
        limit_s = FREE_S + len(flac) // MIN_BYTES_PER_S
        assert answer == f"this recording lasts 200.0 s, the limit is {limit_s:g} s for so few bytes\n"
        assert steps.taken == 0


async def test_a_damaged_recording_is_heard_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    tokens, texts = sentence(20)
    flac = encoded(spoken(tokens)[None], 24_000, "flac", "flac")
    middle = len(flac) // 2
    async with transcribing() as (server, _):
        status, answer = await post(server, flac[:middle] + bytes(500) + flac[middle + 500 :])
        assert status == 200
        found = words(answer)
    assert found[:8] == texts[:8]
    assert found[-8:] == texts[-8:], "the words behind the damage"
    starts = [entry["start_time"] for entry in answer if entry["type"] == "Word"]
    assert starts[-1] == pytest.approx((4 * 19 + 2) * 0.08, abs=0.09), "at their time"
    assert "recording is damaged" in caplog.text


async def test_a_length_that_no_header_states_is_bounded_while_it_is_heard() -> None:
    data = encoded(np.zeros((1, 24_000 * 5), np.float32), 24_000, "ogg", "libopus", 48_000)
    async with transcribing(limits={"max_upload_s": 2.0}) as (server, steps):
        status, answer = await post(server, data)
        assert status == 413
        assert answer == "this recording lasts longer than 2 s, the limit is 2 s\n"
        assert steps.taken <= 1 + 3 * 13 + 8
        await server.is_empty()


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (24, (1).to_bytes(4, "little"), "audio at 1 Hz is not supported; there is: 4000 to 384000 Hz\n"),
        (
            24,
            (10**6).to_bytes(4, "little"),
            "audio at 1000000 Hz is not supported; there is: 4000 to 384000 Hz\n",
        ),
        (22, (9).to_bytes(2, "little"), "audio of 9 channels is not supported; there is: 1 to 8\n"),
    ],
)
async def test_a_header_out_of_range_is_refused_before_there_is_a_row(
    at: int, value: bytes, says: str
) -> None:
    """At 1 Hz, these 2 s would have been 13 hours."""
    wav = bytearray(encode_wav(np.zeros(24_000 * 2, np.float32), 24_000))
    wav[at : at + len(value)] = value
    async with transcribing() as (server, steps):
        assert await post(server, bytes(wav)) == (415, says)
        assert steps.taken == 0


async def test_a_recording_that_trickles_in_is_refused_and_takes_no_row() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"RIFF"
            await asyncio.sleep(0.05)

    async with transcribing(limits={"upload_timeout_s": 0.3}) as (server, steps):
        status, answer = await post(server, trickle())
        assert status == 408
        assert re.search(r"bytes came in \d+\.\d s; a body has 0\.3 s", answer), answer
        assert steps.taken == 0


@pytest.mark.parametrize(
    "path", ["/v1/audio/speech", "/api/tts_streaming", "/v1/realtime/client_secrets", "/"]
)
async def test_a_small_body_has_to_keep_that_pace_too(
    path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("antiphon.serve.routes.upload.UPLOAD_GRACE_S", 0.3)
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "keys").write_text(format_key(KeyEntry("alice", digest_of("k"))) + "\n")

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" "
            await asyncio.sleep(0.05)

    protected: dict[str, Any] = {"api_keys": str(tmp_path / "keys"), "protect": ("page",)}
    headers = {"Authorization": "Bearer k"}
    async with serving(beside=[speaker()], page=tmp_path, **protected) as server:
        async with server.http.post(server.url(path), data=trickle(), headers=headers) as response:
            answer = await response.text()
            assert response.status == 408
        words = r"\d bytes came in \d+\.\d s; a body has 60 s, and at least 16384 bytes come each second"
        assert re.search(words, answer), answer


async def test_a_recording_has_to_keep_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.routes.upload.UPLOAD_GRACE_S", 0.3)

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"RIFF" * 10
            await asyncio.sleep(0.05)

    async with transcribing(limits={"min_upload_bytes_per_s": 100_000}) as (server, steps):
        status, answer = await post(server, trickle())
        assert status == 408
        assert "has 60 s, and at least 100000 bytes come each second after 0.3 s" in answer
        assert steps.taken == 0


async def test_an_address_has_so_many_recordings_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.routes.upload.UPLOAD_GRACE_S", PATIENCE_S)
    is_refused = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"RIFF"
        await is_refused.wait()

    async with transcribing(limits={"max_uploads_per_address": 1}) as (server, _):
        first = asyncio.ensure_future(post(server, slow()))
        await server.eventually(lambda: server.services.uploads.count == 1)
        status, answer = await post(server, slow())
        assert status == 429
        assert "your address 127.0.0.1 has 1 of 1 recordings" in str(answer)
        is_refused.set()
        await first


async def test_a_recording_waits_for_a_row_unless_it_may_go_elsewhere() -> None:
    tokens, texts = sentence(2)
    wav = encode_wav(spoken(tokens), 24_000)
    async with transcribing(slots=1) as (server, _), scribe(server) as first:
        assert await first.receive() == Ready()
        assert (await post(server, wav, **{"X-Antiphon-Elsewhere": "1"}))[0] == 503
        waiting = asyncio.create_task(post(server, wav))
        await server.eventually(lambda: server.engine.health().queued == 1)
        await first.ws.close()
        status, answer = await waiting
        assert status == 200
        assert words(answer) == texts


async def test_who_leaves_before_the_answer_gives_the_row_back() -> None:
    wav = encode_wav(np.zeros(24_000 * 60, np.float32), 24_000)
    async with transcribing(step_s=0.01) as (server, _):
        asking = asyncio.create_task(post(server, wav))
        await server.eventually(lambda: server.engine.health().active == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await server.is_empty()


async def test_a_recording_is_heard_while_a_live_caller_speaks() -> None:
    tokens, texts = sentence(10)
    async with transcribing(step_s=0.002) as (server, _), scribe(server) as live:
        long = encode_wav(np.zeros(24_000 * 20, np.float32), 24_000)
        uploading = asyncio.create_task(post(server, long))
        await live.speak(spoken([*tokens, *[3] * 10]), pause_s=0.01)
        while len(live.texts) < len(texts):
            await live.receive()
        assert live.texts == texts
        assert (await uploading)[0] == 200
