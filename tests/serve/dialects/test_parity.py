"""Concurrent callers compared with upstream's loop for each alone, with the same Ogg bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import sentencepiece
import sphn
import torch

from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.backends.base import FloatArray
from antiphon.backends.host import HostBackend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_quantize.reference.backend import make
from tests.backends.contract import Reply
from tests.quantize.reference import upstream
from tests.serve.harness import FRAME_SAMPLES, Client, Server, serving
from tests.support.make_checkpoint import make_checkpoint
from tests.support.small_models import trial_signal

pytestmark = pytest.mark.product  # a model is run

SLOTS = 4
FRAMES = 52
"""Past twice the language model's context of 24 frames, and six times Mimi's of 8."""

GREEDY = "text_temperature=0&audio_temperature=0"
TOLERANCE = 1e-5
"""Of samples within [-1, 1]: two Opus decoders and two batch sizes round differently."""


@dataclass(frozen=True)
class Speech:
    """What one caller says, as the bytes it sends, and what upstream's reader hears in them."""

    pieces: list[bytes]
    frames: FloatArray


def speak(seed: int) -> Speech:
    """``FRAMES`` frames through upstream's own writer, cut up at random, and through its own reader."""
    torch.manual_seed(seed)
    pcm = trial_signal((FRAMES + 1) * FRAME_SAMPLES).numpy()
    writer, reader = sphn.OpusStreamWriter(24000), sphn.OpusStreamReader(24000)
    stream = b"".join(writer.append_pcm(block) for block in pcm.reshape(-1, FRAME_SAMPLES))
    cuts = sorted(np.random.default_rng(seed).integers(1, len(stream), 40).tolist())
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    heard = np.concatenate([reader.append_bytes(piece) for piece in pieces])
    whole = len(heard) // FRAME_SAMPLES
    assert whole >= FRAMES
    return Speech(pieces, heard[: whole * FRAME_SAMPLES].reshape(whole, FRAME_SAMPLES))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(str(make_checkpoint(tmp_path_factory.mktemp("parity"), seed=21)))


@pytest.fixture(scope="module")
def backend(checkpoint: Checkpoint) -> Iterator[HostBackend]:
    before = torch.get_num_threads()
    backend = make(checkpoint, slots=SLOTS, device="cpu", threads=1)
    yield backend
    torch.set_num_threads(before)


async def stock_call(server: Server, speech: Speech, delay_s: float) -> tuple[list[str], FloatArray]:
    """All texts and all audio a stock client gets."""
    await asyncio.sleep(delay_s)
    async with server.call(GREEDY) as client:
        sending = asyncio.create_task(send_all(client, [moshi.Audio(piece) for piece in speech.pieces]))
        decoder = make_decoder(AudioFormat.OGG)
        texts: list[str] = []
        audio: list[FloatArray] = []
        wanted = speech.frames.size - server.engine.info.spec.delay_frames * FRAME_SAMPLES
        while sum(piece.size for piece in audio) < wanted:
            message = await client.receive()
            if isinstance(message, moshi.Audio):
                audio.append(decoder.feed(message.data))
            elif isinstance(message, moshi.Text):
                texts.append(message.text)
        await sending
        return texts, np.concatenate(audio)


async def pcm_call(server: Server, speech: Speech, delay_s: float) -> FloatArray:
    """The replies to the same audio as float PCM, exactly as the model made them: ``[N, 1920]``."""
    await asyncio.sleep(delay_s)
    async with server.caller(GREEDY) as client:
        messages = [moshi.Audio(frame.astype("<f4").tobytes()) for frame in speech.frames]
        sending = asyncio.create_task(send_all(client, messages))
        silent = server.engine.info.spec.delay_frames
        replies = [await client.reply() for _ in range(len(speech.frames) - silent)]
        await sending
        assert [stamped.frame for stamped, _ in replies] == list(range(silent, len(speech.frames)))
        return np.stack([pcm for _, pcm in replies])


async def send_all(client: Client, messages: Sequence[moshi.Message]) -> None:
    for message in messages:
        await client.send(message)
        await asyncio.sleep(0.004)


def expected_texts(checkpoint: Checkpoint, replies: list[Reply]) -> list[str]:
    """Upstream's rule: the piece of every token but 0 and 3, its lower ones as spaces."""
    pieces = sentencepiece.SentencePieceProcessor(str(checkpoint.file("tokenizer")))
    tokens = [reply.text_token for reply in replies if reply.emitted and reply.text_token not in (0, 3)]
    return [pieces.id_to_piece(token).replace("\u2581", " ") for token in tokens]


async def test_staggered_callers_in_one_batch_equal_upstream_alone(
    checkpoint: Checkpoint, backend: HostBackend
) -> None:
    speeches = [speak(seed) for seed in range(SLOTS)]
    async with serving(
        model=(checkpoint, backend), engine={"input_frames": 2 * FRAMES, "output_frames": 2 * FRAMES}
    ) as server:
        *stock, plain = await asyncio.gather(
            stock_call(server, speeches[0], 0.0),
            stock_call(server, speeches[1], 0.11),
            stock_call(server, speeches[2], 0.23),
            pcm_call(server, speeches[3], 0.17),
        )
    modules = upstream.load(checkpoint)
    alone = [upstream.converse(*modules, speech.frames) for speech in speeches]
    said = np.stack([reply.pcm for reply in alone[3] if reply.pcm is not None])
    np.testing.assert_allclose(plain, np.clip(said, -1, 1), atol=TOLERANCE)
    for (texts, audio), replies in zip(stock, alone[:3], strict=True):
        wanted = expected_texts(checkpoint, replies)
        assert len(set(wanted)) > 10
        assert len(texts) >= len(wanted) - 1  # the last one follows the last audio, when we have hung up
        assert texts == wanted[: len(texts)]
        assert relative_error(audio, through_opus(replies)) < 0.01


def through_opus(replies: list[Reply]) -> FloatArray:
    """What a client would hear if upstream's audio were sent with our encoder."""
    encoder, decoder = make_encoder(AudioFormat.OGG), make_decoder(AudioFormat.OGG)
    payloads = [encoder.encode(reply.pcm) for reply in replies if reply.pcm is not None]
    return np.concatenate([decoder.feed(payload) for group in payloads for payload in group])


def relative_error(got: FloatArray, wanted: FloatArray) -> float:
    assert got.shape == wanted.shape
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
