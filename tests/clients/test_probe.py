"""The command from its options to its exit code and files."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from antiphon.errors import ConfigError, SessionError
from antiphon_client.arguments import parse_arguments
from antiphon_client.pacing import Pacer
from antiphon_client.probe import main, make_clip
from tests.clients.fake_server import Behaviour, FakeServer, fake_server_in_thread


@pytest.fixture(autouse=True)
def nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of this machine all messages still leave, and their replies are waited for."""
    monkeypatch.setattr("antiphon_client.session.Pacer", functools.partial(Pacer, stale_s=60.0))
    monkeypatch.setattr("antiphon_client.load.GRACE_S", 60.0)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A tone of 5.5 frames."""
    path = tmp_path / "tone.wav"
    samples = np.arange(5 * 1920 + 960)
    write_wav(path, (0.3 * np.sin(samples * 0.1)).astype(np.float32), sample_rate=24_000)
    return path


def probe(server: FakeServer, *words: object) -> int:
    return main([server.address.http, "--quiet", *map(str, words)])


def test_the_whole_report_is_printed_and_written(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_in_thread() as server:
        limits = ("--max-lost", 0, "--max-p99-ms", 5000)
        files = ("--json", tmp_path / "a.json", "--plot", tmp_path / "a.png", "--out", tmp_path / "a.wav")
        code = probe(server, "--audio", recording, "--sessions", 2, *limits, *files)
    printed = capsys.readouterr().out
    assert code == 0
    assert "2 asked, 2 answered, 0 rejected, 0 failed" in printed
    assert "12 in, 12 due, 12 answered (100.0% of 12 planned)" in printed
    assert "Benchmark card" in printed
    assert "2 sessions of 0.5 s (6 frames), opus in 20 ms messages" in printed
    values = json.loads((tmp_path / "a.json").read_text())
    assert values["schema"] == "antiphon.probe/1"
    assert values["report"]["counts"]["answered"] == 12
    assert values["card"]["model"]["name"] == "fake"
    assert values["card"]["memory_bytes"] == {"process": 3 * 2**20}  # of the server under its two sessions
    assert values["broken_limits"] == []
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    reply = read_audio(tmp_path / "a.wav")
    assert reply.size == 6 * 1920
    assert 0.1 < float(np.sqrt(np.mean(reply[2400:-2400] ** 2))) < 0.3


def test_a_broken_limit_is_exit_code_1_and_a_line_that_names_it(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_in_thread(Behaviour(delay_s=lambda frame: None if frame == 3 else 0.03)) as server:
        code = probe(server, "--audio", recording, "--max-lost", 0, "--max-p99-ms", 1, "--max-late", 100)
    errors = capsys.readouterr().err.splitlines()
    assert code == 1
    assert errors[1] == "antiphon probe: limit exceeded: lost frames: 1, limit 0"
    assert errors[0].startswith("antiphon probe: limit exceeded: p99 frame latency: ")
    assert errors[0].endswith(" ms, limit 1 ms")
    # A busy machine makes the probe late, which it says, too.
    assert [it for it in errors[2:] if "the probe itself was late" not in it] == []


def test_rejected_sessions_are_counted_and_forbidden_unless_allowed(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_in_thread(Behaviour(slots=1)) as server:
        words = ("--audio", recording, "--sessions", 3)
        assert probe(server, *words, "--max-p99-ms", 5000, "--max-lost", 0) == 1
        assert probe(server, *words, "--max-rejected", 2) == 0
        assert "50.0%" not in capsys.readouterr().out
    with fake_server_in_thread(Behaviour(slots=0)) as full:
        assert probe(full, "--audio", recording) == 1
    assert "none of 1 sessions was admitted: the server is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "words", "sentence"),
    [
        ({"ears": "stt"}, (), "has no model for chat: ears (stt); give --protocol stt"),
        (
            {"ears": "stt", "mouth": "tts"},
            (),
            "has no model for chat: ears (stt), mouth (tts); give --protocol stt or --protocol tts",
        ),
        ({"fake": "duplex"}, ("--protocol", "tts"), "no model for tts: fake (duplex); give --protocol chat"),
    ],
)
def test_a_protocol_that_no_model_speaks_is_named_with_the_one_that_one_does(
    models: dict[str, str], words: tuple[str, ...], sentence: str
) -> None:
    with (
        fake_server_in_thread(Behaviour(models=models)) as server,
        pytest.raises(SessionError, match=re.escape(sentence)),
    ):
        probe(server, *words)
    assert server.sessions == 0


def test_where_nothing_was_answered_there_is_no_card(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_in_thread(Behaviour(slots=0)) as server:
        assert probe(server, "--audio", recording) == 1
    captured = capsys.readouterr()
    assert "1 asked, 0 answered, 1 rejected" in captured.out
    assert "Benchmark card" not in captured.out


def test_without_a_recording_a_question_is_asked_and_its_answer_awaited() -> None:
    clip = make_clip(parse_arguments(["--format", "pcm_f32le"]))
    assert 4.0 < clip.seconds < 6.0
    last_s = np.frombuffer(b"".join(message[1:] for message in clip.messages[-25:]), np.float32)
    assert last_s.size == 2 * 24_000
    assert not last_s.any()


def test_json_on_standard_output_is_nothing_but_json(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_in_thread() as server:
        assert probe(server, "--audio", recording, "--json", "-") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["report"]["answered"] == 1
    assert "Benchmark card" in captured.err


def test_options_reach_the_server_as_its_query(recording: Path) -> None:
    with fake_server_in_thread() as server:
        probe(server, "--audio", recording, "--format", "pcm_s16le", "--wait", 3, "--set", "text_topk=1")
        probe(server, "--audio", recording, "--stock", "--set", "text_seed=5")
    assert server.queries == [
        {"ext": "1", "format": "pcm_s16le", "wait": "3", "text_topk": "1"},
        {"text_seed": "5"},
    ]


def test_seconds_repeat_or_cut_the_recording(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server_in_thread() as server:
        probe(server, "--audio", recording, "--seconds", 0.8, "--format", "pcm_f32le")
        probe(server, "--audio", recording, "--seconds", 0.1)
    printed = capsys.readouterr().out
    assert "1 session of 0.8 s (10 frames), pcm_f32le in 80 ms messages" in printed
    assert "1 session of 0.2 s (2 frames), opus in 20 ms messages" in printed


def test_delay_frames_are_asked_from_the_server(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server_in_thread(Behaviour(delay_frames=2)) as server:
        assert probe(server, "--audio", recording, "--max-lost", 0) == 0
    assert "6 in, 4 due, 4 answered" in capsys.readouterr().out


def test_an_interrupt_still_prints_the_report(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def interrupt_once_it_speaks(server: FakeServer) -> None:
        """Any sooner nobody may wait for Ctrl-C yet, and it would end the tests."""
        deadline_s = time.monotonic() + 60
        while len(server.heard) < 8 and time.monotonic() < deadline_s and not over.wait(0.02):
            pass
        if len(server.heard) >= 8 and not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    with fake_server_in_thread() as server:
        thread = threading.Thread(target=interrupt_once_it_speaks, args=(server,))
        thread.start()
        try:
            code = probe(server, "--audio", recording, "--seconds", 60)
        finally:
            over.set()
            thread.join()
    assert code == 130
    printed = capsys.readouterr().out
    assert printed.startswith("interrupted: ")
    assert "1 asked, 1 answered" in printed


def test_the_progress_goes_to_standard_error(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server_in_thread() as server:
        assert main([server.address.http, "--audio", str(recording)]) == 0
    captured = capsys.readouterr()
    assert "1 speaking" in captured.err
    assert "1 speaking" not in captured.out


def test_no_server_is_an_error_with_the_next_command(recording: Path, unused_tcp_port: int) -> None:
    with pytest.raises(
        SessionError, match=f"start a server there with: .*antiphon serve --port {unused_tcp_port}"
    ):
        main([f"127.0.0.1:{unused_tcp_port}", "--audio", str(recording)])


@pytest.mark.parametrize("option", ["--json", "--plot", "--out"])
def test_a_file_that_cannot_be_written_is_found_before_the_run(
    recording: Path, option: str, unused_tcp_port: int
) -> None:
    with pytest.raises(ConfigError, match="cannot write /nowhere/file: there is no folder /nowhere"):
        main([f"127.0.0.1:{unused_tcp_port}", "--audio", str(recording), option, "/nowhere/file"])
