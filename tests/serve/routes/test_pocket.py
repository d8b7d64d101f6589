"""Pocket-TTS behind the server: both routes, named voices, a queue that reports positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.errors import CheckpointFormatError
from antiphon.models.catalog import load_checkpoint
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import Eos, Spoken, Text, Voice
from antiphon.serve.media.tts_voices import find_tts_voices
from tests.backends.pocket.small import small_backend
from tests.serve.harness import Closed, Server, serving
from tests.serve.tts_client import Listener, listening
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint
from tests.support.wav import decode_wav

pytestmark = pytest.mark.product  # a model is run

TEXT = "Good morning to you. It rains in the north, and the wind is cold: very cold."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pocket_checkpoint(tmp_path_factory.mktemp("served") / "small")


@asynccontextmanager
async def speaking(folder: Path, slots: int = 2, **options: Any) -> AsyncIterator[Server]:
    model = load_checkpoint(str(folder)), small_backend(folder, slots=slots)
    async with serving(model=model, slots=slots, **options) as server:
        yield server


async def converse(client: Listener, *texts: str) -> Closed:
    for text in texts:
        await client.send(Text(text))
    await client.send(Eos())
    closed: Closed = await client.until(Closed)
    return closed


async def test_words_one_by_one_are_told_by_the_sentence(folder: Path) -> None:
    async with speaking(folder) as server, listening(server, voice="calm") as client:
        assert (await converse(client, *TEXT.split())).code == 1000
        await server.is_empty()
    assert isinstance(client.messages[0], kyutai.Ready)
    assert [word.text for word in client.told(Spoken)] == [TEXT]
    assert client.told(Spoken)[0].stop_s == pytest.approx(client.audio.size / 24_000)
    assert np.abs(client.audio).max() > 0.05


async def test_a_post_streams_a_wav_and_voices_are_named(folder: Path) -> None:
    async with speaking(folder) as server:
        _, listed, _ = await server.get("/v1/voices")
        assert [f'"name": "{name}"' in listed for name in ("calm", "ring", "nobody")] == [True, True, False]
        url = server.url(kyutai_tts.PATH)
        lengths = []
        for voice in ("calm", "ring"):
            async with server.http.post(url, json={"text": TEXT, "voice": voice}) as response:
                assert (response.status, response.content_type) == (200, "audio/wav")
                pcm, rate = decode_wav(await response.read())
                assert rate == 24_000
                lengths.append(pcm.shape[1])
        assert min(lengths) > 6 * 1920
        await server.is_empty()


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"text": "seven" * 200}, 400, "tokens, the limit is 256"),
        ({"text": "x" * 70_000}, 400, "the limit is 65536"),
    ],
)
async def test_what_cannot_be_said_is_an_error_with_numbers(
    folder: Path, body: dict[str, str], status: int, sentence: str
) -> None:
    async with speaking(folder) as server:
        async with server.http.post(server.url(kyutai_tts.PATH), json=body) as response:
            assert response.status == status
            assert sentence in await response.text()
        await server.is_empty()


async def test_a_voice_of_ones_own_is_refused(folder: Path) -> None:
    async with speaking(folder) as server, listening(server) as client:
        await client.send(Voice(np.zeros(12, np.float32), (1, 4, 3)))
        assert "accepts no other" in (await client.until(kyutai.Error)).message
        assert (await client.until(Closed)).code == 1007


async def test_full_says_when_to_come_again_and_who_leaves_midway_frees_the_row(folder: Path) -> None:
    """One row: who waits for it gets it as soon as the first has gone."""
    async with speaking(folder, slots=1) as server, listening(server, "Pcm") as first:
        await first.send(Text(f"{TEXT} " * 40))
        await first.receive()
        url, here = server.url(kyutai_tts.PATH), {"X-Antiphon-Elsewhere": "1"}
        async with server.http.post(url, json={"text": "One."}, headers=here) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
        async with listening(server) as refused:
            assert (await refused.until(kyutai.Error)).message == "no free channels"
            assert (await refused.until(Closed)).code == 1013
        waiting = asyncio.create_task(server.http.post(url, json={"text": "One."}))
        await server.eventually(lambda: server.engine.health().queued == 1)
        first.transport.abort()
        async with await waiting as response:
            assert decode_wav(await response.read())[0].shape[1] >= 1920
        await server.is_empty()


def test_a_recording_is_a_voice_where_the_weights_can_make_one_of_it(folder: Path, tmp_path: Path) -> None:
    bare = make_pocket_checkpoint(tmp_path / "bare", clones=False)
    for each, names in ((folder, ["calm", "ring"]), (bare, ["calm"])):
        speakers = find_tts_voices(None, load_checkpoint(str(each)))
        assert speakers is not None
        assert speakers.names() == names
    (folder / "voices" / "calm.wav").write_bytes(b"an exported voice wins over a recording of its name")
    speakers = find_tts_voices(str(folder / "voices"), load_checkpoint(str(folder)))
    (folder / "voices" / "calm.wav").unlink()
    assert speakers is not None
    voice = speakers.load("calm")
    assert voice is not None
    assert voice.keys_values is not None
    assert speakers.choose(None) == "calm"
    assert speakers.choose("nobody") == "calm"
    (tmp_path / "noise.wav").write_bytes(b"no sound")
    broken = find_tts_voices(str(tmp_path), load_checkpoint(str(folder)))
    assert broken is not None
    with pytest.raises(CheckpointFormatError, match=r"noise\.wav: .* is not audio that can be read"):
        broken.load("noise")


async def test_a_folder_without_voices_speaks_with_nobodys(folder: Path, tmp_path: Path) -> None:
    async with speaking(folder, voices=tmp_path) as server, listening(server) as client:
        assert (await converse(client, "One two.")).code == 1000
        assert client.audio.size
