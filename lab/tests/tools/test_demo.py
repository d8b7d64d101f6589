"""`make demo`: its verdict is the exit code, and it leaves no server running."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import psutil
import pytest

from lab.tools.demo import caller

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 500


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """A second of loud sound, 13 frames."""
    path = tmp_path / "speech.wav"
    samples = 8000 * np.sin(np.arange(24_000) / 10)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def _demo(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lab.tools.demo", "--out", str(tmp_path / "reply.wav"), *options]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        process_group=0,
    )


def _is_open(url: str) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", int(url.rsplit(":", 1)[1]))) == 0


def test_the_reply_is_kept_and_the_server_ends(tmp_path: Path, speech: Path) -> None:
    options = ("--backend", "null", "--null-step-ms", "1", "--slots", "1", "--audio", str(speech))
    output, errors = _demo(tmp_path, *options).communicate(timeout=TIMEOUT_S)
    assert "the reply:" in output, errors
    with wave.open(str(tmp_path / "reply.wav")) as reply:
        # A talker has no reply to the first of 13 frames; a busy machine loses some of the others.
        assert reply.getnframes() in {frames * 1920 for frames in range(1, 13)}
    (url,) = re.findall(r"speaking to (\S+)", output)
    assert not _is_open(url)


def test_late_frames_are_failure(tmp_path: Path, speech: Path) -> None:
    options = ("--backend", "null", "--null-step-ms", "100", "--slots", "1", "--audio", str(speech))
    demo = _demo(tmp_path, *options)
    output, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 1
    assert "the demonstration failed" in output
    assert "late frames" in errors


def test_a_server_that_does_not_start_is_failure_with_its_words(tmp_path: Path) -> None:
    demo = _demo(tmp_path, "--backend", "nul")
    _, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 1
    assert "the server ended with exit code 2" in errors
    assert "null" in errors


def test_missing_audio_is_named(tmp_path: Path) -> None:
    demo = _demo(tmp_path, "--audio", str(tmp_path / "gone.wav"))
    _, errors = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 2
    assert "gone.wav" in errors


@pytest.mark.parametrize(
    ("number", "goal", "code"),
    [(signal.SIGTERM, "", 143), (signal.SIGINT, "", 130), (signal.SIGINT, "demo", 0)],
)
def test_an_interrupted_demo_takes_its_server_with_it_in_silence(
    number: signal.Signals, goal: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends SIGINT to each process of the group; make calls each code but 0 an error."""
    monkeypatch.setenv("ANTIPHON_MAKE_GOAL", goal)
    demo = _demo(tmp_path, "--backend", "null", "--slots", "1")
    assert demo.stdout is not None
    lines = iter(demo.stdout.readline, "")
    url = next(line.split()[-1] for line in lines if "speaking to" in line)
    assert _is_open(url)
    servers = [it for it in psutil.Process(demo.pid).children() if "serve" in it.cmdline()]
    # Not of the group: a server that ends before its caller would make the caller speak.
    assert [os.getpgid(it.pid) for it in servers] == [it.pid for it in servers] != []
    os.killpg(demo.pid, number)
    _, errors = demo.communicate(timeout=TIMEOUT_S)
    assert (demo.returncode, errors) == (code, "")
    assert not _is_open(url)


def test_the_default_model_is_asked_and_another_is_probed(tmp_path: Path) -> None:
    speech, out = tmp_path / "speech.wav", tmp_path / "reply.wav"
    assert caller("http://h", None, out, ["--backend", "onnx"])[1:] == [
        *("-m", "tests.support.ask", "http://h", "--out", str(out))
    ]
    for audio, options in ((speech, []), (None, ["--model=echo"]), (None, ["--config", "a.toml"])):
        command = caller("http://h", audio, out, options)
        assert "probe" in command
        assert ("--audio" in command) == (audio is not None)
