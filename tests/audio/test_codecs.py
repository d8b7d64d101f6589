"""The table of codecs has a decoder and an encoder for each audio format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import sphn
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.codecs import CODECS, WireFormat, make_decoder, make_encoder
from antiphon.audio.ogg import OggOpusReader, OggOpusWriter
from antiphon.audio.opus import OpusEncoder
from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import Resampler
from antiphon.errors import AudioError
from antiphon.protocol import speech_request
from antiphon.protocol.chat import AudioFormat
from antiphon.serve.dialects import event_audio
from tests.audio.signals import speech
from tests.support.held import held_bytes

FORMATS = tuple(AudioFormat)
LINES = [
    WireFormat("pcm_s16le"),
    WireFormat("pcm_s16le", 16_000),
    WireFormat("pcmu", 8_000),
    WireFormat("pcma", 8_000),
]
FRAMES = np.split(speech(1.6), 20)
PAYLOADS = {"ogg": 1, "opus": 4, "pcm_s16le": 1, "pcm_f32le": 1}


@functools.cache
def sent(name: str) -> tuple[bytes, ...]:
    encoder = make_encoder(name)
    payloads = [payload for frame in FRAMES for payload in encoder.encode(frame)]
    payloads += encoder.finish()
    encoder.close()
    return tuple(payloads)


def heard(name: str, payloads: Sequence[bytes]) -> FloatArray:
    decoder = make_decoder(name)
    pcm = np.concatenate([decoder.feed(payload) for payload in payloads])
    decoder.close()
    return pcm


def test_every_protocol_names_codecs_of_the_table() -> None:
    assert {name for name in FORMATS if CODECS[name].decoder} == set(AudioFormat)
    assert {name for name in FORMATS if not CODECS[name].is_framed} == {AudioFormat.OGG}  # no call resumes it
    assert {*FORMATS, *event_audio.CODECS.values(), *speech_request.CODECS.values()} == set(CODECS)
    written = {word: CODECS[name].content_type for word, name in speech_request.CODECS.items()}
    assert written == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
    assert all(CODECS[name].content_type == word for word, name in event_audio.CODECS.items())


@pytest.mark.parametrize("name", FORMATS)
def test_every_frame_that_is_sent_is_heard(name: str) -> None:
    encoder, decoder = make_encoder(name), make_decoder(name)
    for frame in FRAMES:
        payloads = encoder.encode(frame)
        assert len(payloads) == PAYLOADS[name]
        pcm = np.concatenate([decoder.feed(payload) for payload in payloads])
        assert pcm.dtype == np.float32
        assert pcm.shape == (1920,)


def test_pcm_is_exact_and_opus_is_close() -> None:
    said = np.concatenate(FRAMES)
    np.testing.assert_array_equal(heard("pcm_f32le", sent("pcm_f32le")), said)
    np.testing.assert_allclose(heard("pcm_s16le", sent("pcm_s16le")), said, atol=0.5 / 32768)
    for name in ("ogg", "opus"):
        pcm = heard(name, sent(name))[60:]  # the encoder's lookahead
        assert np.corrcoef(pcm, said[: pcm.size])[0, 1] > 0.9


def test_an_ogg_stream_suits_the_stock_clients() -> None:
    """The web client's decoder takes whole pages in each message, headers on pages 0 and 1, audio from 2 on,
    and packets of at most 4000 bytes; moshi.client reads with sphn."""
    messages = sent("ogg")
    numbers = [
        [int.from_bytes(page[14:18], "little") for page in message.split(b"OggS")[1:]] for message in messages
    ]
    assert numbers == [[0, 1, 2], *([number] for number in range(3, 23))]
    reader = OggOpusReader()
    for message in messages[:-1]:
        (packet,) = reader.feed(message)
        assert len(packet) <= 4000
        assert held_bytes(reader) < 4100
    assert reader.head is not None
    assert reader.head.pre_skip == 120
    stock = sphn.OpusStreamReader(24_000)
    theirs = np.concatenate([stock.append_bytes(message) for message in messages])
    np.testing.assert_allclose(heard("ogg", messages), theirs, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_any_bytes_are_audio_or_an_audio_error(name: str, payloads: list[bytes]) -> None:
    decoder = make_decoder(name)
    for payload in payloads:
        try:
            pcm = decoder.feed(payload)
        except AudioError:
            continue
        assert pcm.dtype == np.float32
        assert np.isfinite(pcm).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_decoder_goes_on_after_what_it_refused(name: str) -> None:
    decoder = make_decoder(name)
    refused = {"ogg": bytes(70_000), "opus": b"\xff\xff", "pcm_s16le": b"\0", "pcm_f32le": b"\0\0\xc0\x7f"}
    with pytest.raises(AudioError):
        decoder.feed(refused[name])
    assert sum(decoder.feed(payload).size for payload in sent(name)) == len(FRAMES) * 1920


@pytest.mark.parametrize("name", FORMATS)
def test_samples_are_clipped_and_must_be_finite(name: str) -> None:
    loud, bad = 5 * FRAMES[1], FRAMES[1].copy()
    bad[3] = np.inf
    assert make_encoder(name).encode(loud) == make_encoder(name).encode(np.clip(loud, -1, 1))
    with pytest.raises(AudioError, match="sample 3 of"):
        make_encoder(name).encode(bad)


@pytest.mark.parametrize(("name", "samples"), [("opus", 0), ("opus", 500), ("ogg", 500), ("ogg", 2400)])
def test_a_length_that_makes_no_packets_is_refused(name: str, samples: int) -> None:
    with pytest.raises(AudioError, match=f"{samples} samples"):
        make_encoder(name).encode(np.zeros(samples, np.float32))


def test_a_refused_frame_does_not_cost_the_headers() -> None:
    encoder = make_encoder("ogg")
    with pytest.raises(AudioError):
        encoder.encode(np.zeros(7, np.float32))
    assert encoder.encode(FRAMES[0]) == [sent("ogg")[0]]


def test_an_ogg_stream_that_never_began_has_no_end() -> None:
    for name in FORMATS:
        assert make_encoder(name).finish() == []
    assert len(sent("ogg")) == len(FRAMES) + 1


def test_a_small_message_may_not_hold_hours() -> None:
    """Two bytes of Opus can stand for 120 ms of silence."""
    two_bytes = b"\xfb\x06"  # code 3, six frames of 20 ms, all empty
    writer = OggOpusWriter(1)
    pages = b"".join(writer.page([two_bytes] * 255, 255 * 2880) for _ in range(2))
    decoder = make_decoder("ogg")
    with pytest.raises(AudioError, match="holds more than 1440000 samples"):
        decoder.feed(writer.headers() + pages)
    assert decoder.step() is None  # nothing of it waits for the next message


def test_packets_of_a_page_are_decoded_in_order() -> None:
    writer = OggOpusWriter(1)
    with OpusEncoder() as encoder:
        packets = [[encoder.encode(part) for part in np.split(frame, 4)] for frame in FRAMES]
    pages = [writer.headers(), *(writer.page(group, 1920) for group in packets)]
    one_by_one = [packet for group in packets for packet in group]
    np.testing.assert_array_equal(heard("ogg", pages), heard("opus", one_by_one))


@pytest.mark.parametrize("make", [make_decoder, make_encoder])
def test_an_unknown_codec_is_refused(make: Callable[[str], object]) -> None:
    with pytest.raises(
        AudioError, match=r"no audio format 'm4b'.*; there is: ogg, opus, pcm_s16le, pcm_f32le"
    ):
        make("m4b")
    with pytest.raises(AudioError, match="no audio format 'mp3' is read"):
        make_decoder("mp3")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("piece", [160, 1920, 777])
def test_a_tone_comes_through_there_and_back(line: WireFormat, piece: int) -> None:
    encoder, decoder = make_encoder(line), make_decoder(line)
    tone = (0.4 * np.sin(2 * np.pi * 700 * np.arange(48_000) / 24_000)).astype(np.float32)
    wire = [
        data for start in range(0, tone.size, piece) for data in encoder.encode(tone[start : start + piece])
    ]
    heard = np.concatenate([decoder.feed(data) for data in wire])
    delay = Resampler(24_000, line.rate).delay_s + Resampler(line.rate, 24_000).delay_s
    assert abs((tone.size - heard.size) / 24_000 - delay) < 0.001
    error = heard[1000:] - tone[1000 : heard.size]
    noise_db = 10 * np.log10(np.square(error).mean() / np.square(tone).mean())
    assert noise_db < (-80 if line.codec == "pcm_s16le" else -30)  # G.711 has 38 dB at best


def test_a_sample_takes_its_bytes() -> None:
    frame = np.zeros(192_000, np.float32)
    sizes = [sum(map(len, make_encoder(line).encode(frame))) for line in LINES]
    assert [round(size / 8, -2) for size in sizes] == [48_000, 32_000, 8_000, 8_000]


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(AudioError, match="3 bytes are no whole number of s16le samples of 2 bytes"):
        make_decoder("pcm_s16le").feed(b"abc")
