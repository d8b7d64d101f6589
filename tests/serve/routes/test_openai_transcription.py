"""``/v1/audio/transcriptions`` over sockets: formats, limits, streams, hostile files during a call."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from antiphon.audio.wav import encode_wav
from antiphon.protocol import kyutai, moshi
from antiphon.protocol.transcription_request import PATH
from antiphon.serve.hosting import uploads
from antiphon.serve.hosting.app import BURST_LINES
from antiphon.serve.hosting.uploads import MAX_UPLOADS
from tests.audio.recordings import encoded
from tests.audio.test_mp4 import bomb
from tests.serve.asr_client import STT, sentence, spoken, transcribing
from tests.serve.harness import PATIENCE_S, Server, serving, speech
from tests.serve.hostile_bodies import BOUNDARY, FORM, form_of

WAV = encode_wav(spoken(sentence(4)[0]), 24_000)
TEXTS = sentence(4)[1]


def form(file: bytes = WAV, **fields: str) -> aiohttp.FormData:
    """A form as aiohttp makes it."""
    data = aiohttp.FormData()
    for name, value in fields.items():
        data.add_field(name, value)
    data.add_field("file", io.BytesIO(file), filename="a.wav", content_type="audio/wav")
    return data


async def post(server: Server, data: Any, **headers: str) -> tuple[int, Any]:
    sent = io.BytesIO(data) if isinstance(data, bytes) else data
    async with server.http.post(server.url(PATH), data=sent, headers=headers) as response:
        body = await response.read()
        return response.status, json.loads(body) if response.content_type == "application/json" else body


def error_of(answer: tuple[int, Any]) -> tuple[int, str, str | None, str]:
    status, body = answer
    error = body["error"]
    return status, error["code"], error["param"], error["message"]


async def test_words_and_segments_have_the_times_of_the_recording() -> None:
    async with transcribing() as (server, _):
        data = form(response_format="verbose_json")
        for name in ("word", "segment"):
            data.add_field("timestamp_granularities[]", name)
        status, found = await post(server, data)
        assert status == 200
        assert [it["word"] for it in found["words"]] == TEXTS
        assert [it["start"] for it in found["words"]] == pytest.approx([0.16, 0.48, 0.8, 1.12])
        assert found["segments"][0]["text"] == " ".join(TEXTS)
        assert found["duration"] == pytest.approx(16 * 0.08, abs=0.01)
        await server.is_empty()


async def test_a_word_before_a_pause_ends_with_its_sound_and_its_subtitle_too() -> None:
    tokens, texts = sentence(2)
    pause = [*tokens[:4], *[3] * 180, *tokens[4:]]  # 14.4 s between two words
    file = encode_wav(spoken(pause), 24_000)
    async with transcribing() as (server, _):
        data = form(file, response_format="verbose_json", **{"timestamp_granularities[]": "word"})
        first, second = (await post(server, data))[1]["words"]
        assert (first["word"], second["word"]) == tuple(texts)
        assert first["end"] == pytest.approx(0.24)  # where its last frame with sound ends
        assert second["start"] > 14
        srt = (await post(server, form(file, response_format="srt")))[1].decode()
    assert srt.startswith(f"1\n00:00:00,160 --> 00:00:00,240\n{texts[0]}\n\n2\n00:00:14,")


async def test_a_stream_of_verbose_json_has_the_rest_in_its_last_event() -> None:
    async with transcribing() as (server, _):
        options: dict[str, Any] = {
            "response_format": "verbose_json",
            "timestamp_granularities[]": "word",
        }
        whole = (await post(server, form(**options)))[1]
        _, body = await post(server, form(stream="true", **options))
    events = [json.loads(it.removeprefix(b"data: ")) for it in body.split(b"\n\n") if it]
    assert [it["delta"].strip() for it in events[:-1]] == TEXTS
    assert events[-1] == {"type": "transcript.text.done", **whole}


async def test_plain_formats_have_their_types() -> None:
    async with transcribing() as (server, _):
        for name, content_type in (
            ("json", "application/json; charset=utf-8"),
            ("text", "text/plain; charset=utf-8"),
            ("srt", "application/x-subrip; charset=utf-8"),
            ("vtt", "text/vtt; charset=utf-8"),
        ):
            data = form(response_format=name, prompt="x", temperature="0")
            async with server.http.post(server.url(PATH), data=data) as response:
                assert response.headers["Content-Type"] == content_type
                assert response.headers["Antiphon-Ignored"] == "prompt, temperature"
                assert TEXTS[0] in await response.text()


async def test_a_stream_tells_words_before_the_end() -> None:
    long = encode_wav(spoken(sentence(60)[0]), 24_000)
    async with transcribing() as (server, steps):
        steps.held_at = 120  # half of it
        async with server.http.post(server.url(PATH), data=form(long, stream="true")) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            first = await response.content.readuntil(b"\n\n")
            steps.go_on()
            rest = await response.read()
    events = [json.loads(it.removeprefix(b"data: ")) for it in (first + rest).split(b"\n\n") if it]
    assert "".join(it["delta"] for it in events[:-1]) == " ".join(sentence(60)[1]) == events[-1]["text"]
    assert events[-1]["type"] == "transcript.text.done"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_what_fails_midway_says_so(is_stream: bool) -> None:
    tokens, _ = sentence(40)
    async with transcribing(poison=tokens[101]) as (server, _):
        data = form(encode_wav(spoken(tokens), 24_000), stream=str(is_stream))
        status, body = await post(server, data)
        if is_stream:
            last = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))
            assert (status, last["error"]["type"]) == (200, "server_error")
        else:
            assert error_of((status, body))[:2] == (500, "server_error")
        await server.is_empty()


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [("mp4", "aac", 44_100), ("webm", "libopus", 48_000), ("adts", "aac", 24_000), ("flac", "flac", 8000)],
)
async def test_every_container_is_heard_whole(container: str, codec: str, rate: int) -> None:
    data = encoded(np.zeros((1, 24_000 * 3), np.float32), 24_000, container, codec, rate)
    async with transcribing() as (server, steps):
        assert (await post(server, form(data)))[1]["text"] == ""
        assert 1 + 37 <= steps.taken <= 1 + 37 + 3 + 7


@pytest.mark.parametrize(
    ("data", "headers", "refused"),
    [
        (
            form_of(language=b"en"),
            {"Content-Type": FORM},
            (400, "missing_required_parameter", "file", "file is missing"),
        ),
        (
            form(response_format="diarized_json"),
            {},
            (400, "invalid_value", "response_format", "response_format is 'diarized_json', not one of"),
        ),
        (
            WAV,
            {"Content-Type": "audio/wav"},
            (400, "invalid_value", "file", "the body is audio/wav, multipart"),
        ),
        (
            form_of(file=WAV)[:-9],
            {"Content-Type": FORM},
            (400, "invalid_value", "file", "this form ends before"),
        ),
        (
            form_of(file=b"")[:-14] + form_of(file=WAV),
            {"Content-Type": FORM},
            (400, "invalid_value", "file", "this form has two files; one is transcribed at a time"),
        ),
        (
            form_of(file=b""),
            {"Content-Type": FORM},
            (400, "invalid_value", "file", "file is empty, 0 bytes came"),
        ),
        (
            form_of(file=WAV).replace(b'name="file"', b'name="audio"'),
            {"Content-Type": FORM},
            (
                400,
                "missing_required_parameter",
                "file",
                "file is missing; this form has a file as 'audio', send it as 'file'",
            ),
        ),
        (
            form_of(file=b"https://example.org/clip.wav").replace(b'; filename="a.wav"', b""),
            {"Content-Type": FORM},
            (400, "invalid_value", "file", "file is a field of text, a file is needed, such as curl -F"),
        ),
        (
            form_of(file=WAV),
            {"Content-Type": "multipart/form-data"},
            (
                400,
                "invalid_value",
                "file",
                "the Content-Type is multipart/form-data without a boundary; leave",
            ),
        ),
        (
            form_of(prompt=b"x" * 70_000, file=WAV),
            {"Content-Type": FORM},
            (400, "invalid_value", "file", "fields of over 65536 bytes together"),
        ),
        (
            form(model="nobody"),
            {},
            (404, "model_not_found", "model", "no model 'nobody' here; there is: scribe"),
        ),
        (form(b"#EXTM3U\nfile:///etc/passwd\n"), {}, (400, "invalid_value", "file", "this is no recording")),
        (form(bomb(2**26)), {}, (400, "invalid_value", "file", "this mp4 file states 67108864 samples")),
    ],
)
async def test_what_cannot_be_transcribed_is_refused_before_there_is_a_row(
    data: Any, headers: dict[str, str], refused: tuple[int, str, str | None, str]
) -> None:
    async with transcribing() as (server, steps):
        status, code, param, message = error_of(await post(server, data, **headers))
        assert (status, code, param) == refused[:3]
        assert message.startswith(refused[3])
        assert steps.taken == 0
        await server.is_empty()


async def test_limits_of_bytes_and_of_length() -> None:
    limits = {"max_upload_bytes": 200_000, "max_upload_s": 2.0}
    silence = np.zeros((1, 24_000 * 5), np.float32)
    stated = encoded(silence, 24_000, "flac", "flac")
    unstated = encoded(silence, 24_000, "ogg", "libopus", 48_000)
    async with transcribing(limits=limits) as (server, _):
        for data, message in (
            (form(bytes(300_000)), "a recording of more bytes than it may have, the limit is 200000"),
            (form(bytes(3_000_000)), "a recording of 3000"),
            (form(bytes(3_000_000)), "the limit is 200000"),
            (form(stated), "this recording lasts 5.0 s, the limit is 2 s"),
            (form(unstated), "this recording lasts longer than 2 s, the limit is 2 s"),
        ):
            status, code, _, found = error_of(await post(server, data))
            assert (status, code) == (413, "request_too_large")
            assert message in found
        await server.is_empty()


async def test_a_form_that_trickles_in_is_408() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield form_of(file=WAV)[:200]
        await asyncio.sleep(PATIENCE_S)

    async with transcribing(limits={"upload_timeout_s": 1.0}) as (server, _):
        status, code, _, message = error_of(await post(server, trickle(), **{"Content-Type": FORM}))
        assert (status, code) == (408, "request_timeout")
        assert re.search(r"200 bytes came in \d+\.\d s; a body has 1 s", message), message


async def test_only_so_many_are_received_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.routes.upload.UPLOAD_GRACE_S", PATIENCE_S)
    has_begun = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield form_of(file=WAV)[:200]
        await has_begun.wait()
        yield form_of(file=WAV)[200:]

    async with transcribing(limits={"max_uploads_per_address": 0}) as (server, _):
        waiting = [
            asyncio.create_task(post(server, slowly(), **{"Content-Type": FORM})) for _ in range(MAX_UPLOADS)
        ]
        await server.eventually(lambda: server.services.uploads.count == MAX_UPLOADS)
        async with server.http.post(server.url(PATH), data=form()) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "10")
            assert (await response.json())["error"]["code"] == "server_full"
        has_begun.set()
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings beyond those in memory go to a device that has no room."""
    device = partial(Path("/dev/full").open, "w+b", buffering=0)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: device())


@pytest.mark.usefixtures("full_disk")
async def test_a_full_disk_is_a_refusal_to_try_again_after(caplog: pytest.LogCaptureFixture) -> None:
    large = WAV[:44] + bytes(2_000_000)
    async with transcribing() as (server, _):
        for _ in range(BURST_LINES + 3):
            async with server.http.post(server.url(PATH), data=form(large)) as response:
                error = (await response.json())["error"]
                assert (response.status, response.headers["Retry-After"]) == (503, "10")
                assert (error["type"], error["code"]) == ("server_error", "server_full")
                assert "no space for this recording: No space left on device" in error["message"]
        async with server.http.post(server.url(kyutai.PATH), data=io.BytesIO(large)) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "10")
            assert "No space left on device" in (await response.json())["error"]
        status, _ = await post(server, form(WAV))
        assert status == 200, "a small recording needs no disk"
        async with server.http.get(server.url("/metrics")) as response:
            text = await response.text()
    assert f"antiphon_spool_refusals_total {BURST_LINES + 4}.0" in text
    assert "antiphon_spooled_upload_bytes 0.0" in text
    assert caplog.text.count("no space for a recording") == BURST_LINES
    assert "Traceback" not in caplog.text


async def test_recordings_on_disk_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "IN_MEMORY_BYTES", 1000)
    size, may_end = 100_000, asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield (whole := form_of(file=WAV[:44] + bytes(size)))[:-10]
        await may_end.wait()
        yield whole[-10:]

    def on_disk(server: Server) -> float:
        return server.services.uploads.disk_bytes

    async with transcribing(limits={"max_upload_bytes": size + 1000}) as (server, _):
        waiting = [
            asyncio.create_task(post(server, slowly(), **{"Content-Type": FORM}))
            for _ in range(uploads.LARGEST_ON_DISK)
        ]
        await server.eventually(lambda: on_disk(server) > 3.9 * size)
        for data in (form(WAV[:44] + bytes(size)), slowly()):  # with and without a stated length
            kind = {} if isinstance(data, aiohttp.FormData) else {"Content-Type": FORM}
            status, code, _, message = error_of(await post(server, data, **kind))
            assert (status, code) == (503, "server_full")
            assert re.search(r"no space for this recording: \d+ of 404000 bytes are in use", message), message
        may_end.set()
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
        await server.eventually(lambda: on_disk(server) == 0)


def hostile_files() -> dict[str, Any]:
    """Forms by what is wrong with them, and their headers."""
    one_hz = bytearray(WAV)
    one_hz[24:28] = (1).to_bytes(4, "little")
    flac = encoded(np.zeros((1, 24_000 * 60), np.float32), 24_000, "flac", "flac")
    zeros = form_of(file=WAV[:44] + bytes(30_000_000))
    head = f"--{BOUNDARY}\r\n".encode()
    plain, zipped = {"Content-Type": FORM}, {"Content-Type": FORM, "Content-Encoding": "gzip"}
    return {
        "truncated": (form_of(file=WAV[:200]), plain),
        "1 Hz": (form_of(file=bytes(one_hz)), plain),
        "states more than it has": (form_of(file=bomb(2**26)), plain),
        "a minute in a few bytes": (form_of(file=flac), plain),
        "zipped zeros": (gzip.compress(zeros), zipped),
        "headers without end": (head + b"X-Long: " + b"x" * 1_000_000, plain),
        "a thousand parts": ((head + b'Content-Disposition: form-data; name="a"\r\n\r\n\r\n') * 1000, plain),
        "nothing but borders": ((head[:-2] + b"\r\n") * 100_000, plain),
        "lines before it": (b"\n" * 1_000_000 + form_of(file=WAV), plain),
        "noise": (form_of(file=b"\xff\xfb\x90\x00" + np.random.default_rng(1).bytes(500_000)), plain),
        "a movie of nothing": (form_of(file=b"\x1a\x45\xdf\xa3" + bytes(1_000_000)), plain),
    }


async def test_hostile_files_beside_a_talker_cost_it_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The talker speaks in real time for as long as files come, and no frame is lost or dropped."""
    limits = {"max_upload_bytes": 2_000_000, "max_upload_s": 5.0}
    async with (
        serving(also=[(STT.name, STT)], limits=limits, slots=2) as server,
        server.caller() as talker,
    ):
        found: dict[str, int] = {}

        async def attack() -> None:
            for _ in range(2):
                for name, (body, headers) in hostile_files().items():
                    try:
                        found[name] = (await post(server, body, **headers))[0]
                    except aiohttp.ClientConnectionError:
                        found.setdefault(name, 0)  # refused while it was still being sent

        attacking = asyncio.create_task(attack())
        said = 0
        while not attacking.done() or said < 25:
            await talker.speak(speech(1, seed=said))
            stamped, _ = await talker.reply()
            assert stamped.frame == said
            said += 1
            await asyncio.sleep(0.02)
        await attacking
        stats = next(iter(server.calls)).participant.stats()
        assert (stats.frames_out, stats.lost, stats.dropped_in) == (said, 0, 0)
        await talker.send(moshi.Event("bye", {}))
        await talker.closed()
        await server.is_empty()
    answers = {0, 400, 413}
    assert found.pop("truncated") == 200, "it is heard as far as it goes"
    assert found.pop("noise") in {200, 400}
    assert set(found.values()) <= answers, found
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
