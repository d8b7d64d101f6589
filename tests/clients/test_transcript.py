"""The probe of speech to text: words and steps of a session, and a probe of a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.wav import write_wav
from antiphon.errors import ConfigError
from antiphon.protocol import kyutai
from antiphon_client import probe
from antiphon_client.address import ServerAddress
from antiphon_client.arguments import Protocol, parse_arguments
from antiphon_client.clip import encode_speech
from antiphon_client.transcript import LAST_MARKER, HeardWord, TranscriptReceiver
from tests.serve.asr_client import sentence, spoken, transcribing
from tests.support.calm import PROBE

FRAME = 1920


def hearing(frames: int) -> TranscriptReceiver:
    """An ear that has been let in, and whose caller sent so many frames, one each 80 ms from 100 s on."""
    ear = TranscriptReceiver()
    ear.hear(kyutai.encode(kyutai.Ready()), 99.0)
    for frame in range(frames):
        ear.recorder.sent(FRAME, 100.0 + 0.08 * frame, 0.0)
    return ear


@pytest.mark.parametrize("first", [1, 70_001])
def test_steps_answer_frames_from_wherever_they_are_counted(first: int) -> None:
    ear = hearing(3)
    for index in range(3):
        ear.hear(kyutai.encode(kyutai.Step(first + index, (0.5,), 0)), 100.01 + 0.08 * index)
    timeline = ear.recorder.timeline()
    assert timeline.replied_s - timeline.sent_s == pytest.approx([0.01] * 3)
    assert timeline.arrived_samples.tolist() == [0, 0, 0]
    assert ear.recorder.misplaced == 0
    ear.hear(kyutai.encode(kyutai.Step(first + 1, (0.5,), 0)), 101.0)
    assert ear.recorder.misplaced == 1


def test_without_steps_the_last_marker_answers_everything() -> None:
    ear = hearing(3)
    ear.hear(kyutai.encode(kyutai.Marker(LAST_MARKER + 1)), 101.0)
    assert not ear.is_answered
    ear.hear(kyutai.encode(kyutai.Marker(LAST_MARKER)), 102.0)
    assert ear.is_answered
    assert ear.recorder.timeline().replied_s.tolist() == [102.0] * 3


def test_a_words_latency_runs_from_when_its_beginning_was_sent() -> None:
    ear = hearing(5)
    ear.hear(kyutai.encode(kyutai.Word("two", 0.17)), 101.0)
    ear.hear(kyutai.encode(kyutai.Word("words", 9.0)), 101.5)
    assert ear.words == [HeardWord("two", 0.17, 101.0), HeardWord("words", 9.0, 101.5)]
    assert ear.text == "two words"
    assert ear.word_latencies_ms() == pytest.approx((1000 * (101.0 - 100.16),))


def test_the_servers_last_words_are_kept() -> None:
    ear = TranscriptReceiver()
    ear.hear(kyutai.encode(kyutai.Error("no free channels")), 1.0)
    assert (ear.ready_s, ear.error) == (None, "no free channels")


@pytest.mark.parametrize("message_ms", [20, 80, 1000])
def test_a_clip_becomes_audio_messages(message_ms: int) -> None:
    pcm = np.linspace(-1, 1, 25 * FRAME, dtype=np.float32)
    clip = encode_speech(pcm, message_ms=message_ms)
    heard = [kyutai.decode_client(message) for message in clip.messages]
    assert np.concatenate([it.pcm for it in heard if isinstance(it, kyutai.Audio)]).tolist() == pcm.tolist()
    assert (clip.frames, clip.message_samples) == (25, 24 * message_ms)


def test_messages_are_no_longer_than_a_second() -> None:
    with pytest.raises(ConfigError, match="1 to 1000 ms of audio, got 1001 ms"):
        encode_speech(np.zeros(FRAME, np.float32), message_ms=1001)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--protocol", "stt", "--stock"], "--stock has no effect with --protocol stt"),
        (["--protocol", "stt", "--out", "x.wav"], "--out has no effect"),
        (["--protocol", "stt", "--format", "opus"], "--format has no effect"),
        (["--as-fast-as-possible"], "needs --protocol stt"),
        (["--protocol", "telegraph"], "invalid Protocol value"),
    ],
)
def test_what_a_protocol_has_no_use_for_is_refused(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(argv)
    assert says in capsys.readouterr().err


def test_the_address_and_the_query_are_those_of_speech() -> None:
    options = parse_arguments(["host:1", "--protocol", "stt", "--wait", "5", "--model", "m"])
    assert options.protocol is Protocol.STT
    assert probe.probe_url(options) == "ws://host:1/api/asr-streaming?wait=5&model=m"
    assert ServerAddress.parse("http://host:1/api/asr-streaming").prefix == ""


@pytest.mark.parametrize("pace", [[], ["--as-fast-as-possible"]])
async def test_a_probe_of_a_server_counts_words_and_frames(pace: list[str], tmp_path: Path) -> None:
    is_fast = bool(pace)
    tokens, texts = sentence(5)
    tokens += [3] * (355 if is_fast else 5)  # 30 s each, which may take a slow machine 20
    recording, report = tmp_path / "speech.wav", tmp_path / "report.json"
    write_wav(recording, spoken(tokens), 24_000, is_float=True)
    async with transcribing() as (server, _):
        argv = [
            f"127.0.0.1:{server.port}",
            "--protocol",
            "stt",
            "--audio",
            str(recording),
            "--quiet",
        ]
        argv += ["--sessions", "2", "--json", str(report), "--max-lost", "0", "--max-misplaced", "0", *pace]
        process = await asyncio.create_subprocess_exec(*PROBE, *argv, stdout=asyncio.subprocess.DEVNULL)
        assert await process.wait() == 0
    found = json.loads(report.read_text())
    assert found["schema"] == "antiphon.probe/1"
    counts = found["report"]["counts"]
    frames = 2 * len(tokens)
    assert (counts["planned"], counts["answered"], counts["lost"], counts["gaps"]) == (frames, frames, 0, 0)
    assert [session["text"] for session in found["report"]["per_session"]] == [" ".join(texts)] * 2
    assert found["report"]["word_latency_ms"]["count"] == 10
    assert (found["report"]["realtime_factor"] > 3) is is_fast
    assert ("as fast as possible" in found["card"]["load"]) is is_fast
