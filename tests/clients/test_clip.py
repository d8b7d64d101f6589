"""Speech cut to whole frames and encoded as messages that a server decodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.codecs import make_decoder
from antiphon.audio.wav import write_wav
from antiphon.errors import AudioError, ConfigError
from antiphon.protocol import moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import default_clips, encode_clip, fit_clip, load_clip
from antiphon_client.record import Samples
from antiphon_client.replies import ReplyMeter, decode_replies, opus_packet_samples


def tone(samples: int) -> Samples:
    return (0.3 * np.sin(np.arange(samples) * 2 * np.pi * 300 / 24_000)).astype(np.float32)


@given(samples=st.integers(1, 20_000), seconds=st.none() | st.floats(0.01, 3))
def test_a_clip_is_whole_frames_of_the_recording_over_and_over(samples: int, seconds: float | None) -> None:
    pcm = np.arange(1, samples + 1, dtype=np.float32)
    fitted = fit_clip(pcm, seconds)
    wanted = samples if seconds is None else max(1, round(seconds * 24_000))
    assert fitted.dtype == np.float32
    assert fitted.size % 1920 == 0
    assert wanted <= fitted.size < wanted + 1920
    assert fitted[:wanted].tolist() == [1.0 + k % samples for k in range(wanted)]
    assert not fitted[wanted:].any()


@pytest.mark.parametrize("message_ms", [20, 40, 80])
@pytest.mark.parametrize("audio_format", list(AudioFormat))
def test_the_messages_decode_to_the_clip_and_are_metered_without_decoding(
    audio_format: AudioFormat, message_ms: int
) -> None:
    pcm = fit_clip(tone(24_000), None)
    clip = encode_clip(pcm, audio_format, message_ms=message_ms)
    assert clip.message_samples == 24 * message_ms
    payloads = []
    for message in clip.messages:
        decoded = moshi.decode(message)
        assert isinstance(decoded, moshi.Audio)
        payloads.append(decoded.data)
    decoder, meter = make_decoder(audio_format), ReplyMeter(audio_format)
    for payload in payloads:
        assert decoder.feed(payload).size == meter.samples(payload) == clip.message_samples
    assert clip.frames * 1920 == len(clip.messages) * clip.message_samples == pcm.size
    assert clip.seconds == pytest.approx(pcm.size / 24_000)
    heard = decode_replies(payloads, audio_format)
    lag = (
        0
        if audio_format.value.startswith("pcm")
        else int(np.argmax(np.correlate(heard, pcm[:4800], "valid")))
    )
    error = heard[lag:] - pcm[: pcm.size - lag]
    assert float(np.sqrt(np.mean(error[2400:-2400] ** 2))) < 0.05


@pytest.mark.parametrize(
    ("audio_format", "message_ms", "sentence"),
    [
        (AudioFormat.OPUS, 60, "opus messages hold 20, 40 or 80 ms of audio, got 60 ms"),
        (AudioFormat.OGG, 30, "ogg messages hold 20, 40 or 80 ms of audio, got 30 ms"),
        (AudioFormat.PCM_S16LE, 160, "pcm_s16le messages hold 20, 40 or 80 ms of audio, got 160 ms"),
    ],
)
def test_messages_divide_a_frame(audio_format: AudioFormat, message_ms: int, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        encode_clip(tone(1920), audio_format, message_ms=message_ms)


def test_a_recording_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    write_wav(path, tone(5000), sample_rate=24_000)
    assert np.abs(load_clip(path) - tone(5000)).max() < 1e-4


def test_the_package_has_clips_of_its_own() -> None:
    assert [clip.name for clip in default_clips()]
    pcm = load_clip(None)
    assert 2 * 24_000 < pcm.size < 60 * 24_000
    assert 0.01 < float(np.sqrt(np.mean(pcm**2))) < 0.5


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.wav"
    write_wav(path, tone(0), sample_rate=24_000)
    with pytest.raises(AudioError, match=r"empty\.wav"):
        load_clip(path)


@pytest.mark.parametrize(
    ("packet", "samples"),
    [
        (bytes([0x00]), 240),  # SILK, 10 ms, one frame
        (bytes([0x18]), 1440),  # SILK, 60 ms
        (bytes([0x61]), 480),  # hybrid, two of 10 ms
        (bytes([0xFC]), 480),  # CELT, 20 ms
        (bytes([0xE0]), 60),  # CELT, 2.5 ms
        (bytes([0xFB, 0x04]), 4 * 480),  # four of 20 ms, counted in the second byte
    ],
)
def test_a_packets_length_stands_in_its_first_bytes(packet: bytes, samples: int) -> None:
    assert opus_packet_samples(packet) == samples


@pytest.mark.parametrize("packet", [b"", bytes([0xFB])])
def test_a_packet_without_its_length_is_an_error(packet: bytes) -> None:
    with pytest.raises(AudioError, match=f"an Opus packet of {len(packet)} byte"):
        opus_packet_samples(packet)


def test_half_a_sample_is_an_error() -> None:
    with pytest.raises(AudioError, match="3 bytes are no whole number of pcm_s16le samples"):
        ReplyMeter(AudioFormat.PCM_S16LE).samples(b"abc")


def test_no_reply_is_no_sound() -> None:
    assert decode_replies([], AudioFormat.OPUS).size == 0
