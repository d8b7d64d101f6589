"""``antiphon probe --protocol tts`` with a server on a thread."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from antiphon_client.arguments import parse_arguments
from antiphon_client.probe import main
from antiphon_client.tts_probe import TtsRecord, TtsReport, broken_limits, render, speak_all
from tests.serve.tts_client import count_frames, levels, speaking
from tests.support.wav import read_wav


async def test_every_session_is_told_the_text_and_measured() -> None:
    async with speaking(slots=2, step_s=0.02, engine={"max_queue": 0}) as (server, _):
        url = f"127.0.0.1:{server.port}"
        options = parse_arguments([url, "--protocol", "tts", "--text", "abc de", "--sessions", "2"])
        speeches = await speak_all(options)
        report = TtsReport.of(speeches)
        assert (report.sessions, report.rejected, report.failed, report.words) == (2, 0, 0, 4)
        assert report.audio_s == 2 * count_frames("abc de") * 0.08
        assert report.first_audio_ms is not None
        assert report.first_audio_ms.max > 0
        assert report.real_time_factor is not None
        assert "2, 0 not admitted" in render(report)
        assert broken_limits(options, report) == []
        crowd = parse_arguments(
            [url, "--protocol", "tts", "--sessions", "5", "--max-first-audio-ms", "0.001"]
        )
        report = TtsReport.of(await speak_all(crowd))
        assert (report.rejected, report.errors) == (3, ("no free channels",))
        assert [sentence.partition(":")[0] for sentence in broken_limits(crowd, report)] == [
            "longest time to first audio", "sessions not admitted",
        ]  # fmt: skip


async def test_the_command_writes_what_it_heard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "said.wav", tmp_path / "report.json"
    async with speaking() as (server, _):
        argv = [f"127.0.0.1:{server.port}", "--protocol", "tts", "--text", "abc", "--out", str(out)]
        assert await asyncio.to_thread(main, [*argv, "--json", str(report)]) == 0
    assert levels(read_wav(out)[0][0]) == [3, 3, 3]
    document = json.loads(report.read_text())
    assert document["schema"] == "antiphon.probe-tts/1"
    assert document["report"]["audio_s"] == 0.08 * count_frames("abc")
    assert "to first audio" in capsys.readouterr().out


async def test_nobody_there_is_a_session_not_let_in() -> None:
    options = parse_arguments(["127.0.0.1:1", "--protocol", "tts"])
    report = TtsReport.of(await speak_all(options))
    assert report.rejected == 1
    assert "onnect" in report.errors[0]
    assert report.first_audio_ms is None
    assert TtsRecord().gaps == 0


@pytest.mark.parametrize("option", [["--audio", "x.wav"], ["--stock"], ["--seconds", "3"]])
def test_options_of_no_use_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--protocol", "tts", *option])
    assert "has no effect with --protocol tts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--text", "x"])
    assert "--text has no effect with --protocol chat" in capsys.readouterr().err
