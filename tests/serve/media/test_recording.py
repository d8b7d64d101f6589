"""Recordings: only with both consents, complete, and within the limits."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path

import numpy as np
import pytest

from antiphon.backends.base import FloatArray
from antiphon.errors import ConfigError, ProtocolError
from antiphon.models.sampling import SamplingParameters
from antiphon.protocol.chat import parse_chat_query
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.media import recording as recording_module
from antiphon.serve.media.recording import CallRecorder, CallRecording
from antiphon.serve.media.retention import RecordingLimits
from tests.serve.harness import PATIENCE_S, Server, serving, speech
from tests.support.wav import read_wav

GENEROUS = RecordingLimits(max_s=60.0, max_bytes=10**8)


async def held_call(server: Server, query: str, frames: int) -> tuple[bool, FloatArray, FloatArray]:
    """A call of so many frames: whether it was told of a recording, what it said and what it heard."""
    said, heard = speech(frames), []
    async with server.call(f"ext=1&format=pcm_f32le&{query}") as client:
        ready = await client.event("ready")
        for frame in np.split(said, frames):
            await client.speak(frame)
            heard.append((await client.reply())[1])
    await server.is_empty()
    return bool(ready.fields.get("recorded")), said, np.concatenate(heard)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize(("query", "records"), [("", True), ("consent=", True), ("consent=record", False)])
async def test_without_both_consents_nothing_is_kept(tmp_path: Path, query: str, records: bool) -> None:
    async with serving() as server:
        recorder = CallRecorder(tmp_path, GENEROUS) if records else None
        server.app[SERVICES].recorder = recorder
        is_told, _, _ = await held_call(server, query, 3)
        assert not is_told
        if recorder is not None:
            recorder.close()
            server.app[SERVICES].recorder = None
    assert files_in(tmp_path) == []


async def test_with_both_consents_the_call_is_kept_as_it_was(tmp_path: Path) -> None:
    async with serving() as server:
        recorder = server.app[SERVICES].recorder = CallRecorder(tmp_path, GENEROUS)
        is_told, said, heard = await held_call(server, "consent=record", 5)
        assert is_told
        recorder.close()
        server.app[SERVICES].recorder = None
    caller, model = files_in(tmp_path)
    for path, pcm in ((caller, said), (model, heard)):
        kept, rate = read_wav(path)
        assert rate == 24000
        np.testing.assert_allclose(kept[0], np.clip(pcm, -1, 1), atol=1 / 32000)


def test_consent_is_a_word_and_nothing_else() -> None:
    defaults = SamplingParameters()
    assert parse_chat_query({"ext": "1", "consent": "record"}, defaults=defaults, max_wait_s=600.0).may_record
    assert not parse_chat_query({"ext": "1"}, defaults=defaults, max_wait_s=600.0).may_record
    assert not parse_chat_query(
        {"consent": "record"}, defaults=defaults, max_wait_s=600.0
    ).may_record  # not of the extension
    with pytest.raises(ProtocolError, match="consent='yes' is not known: record is consent to a recording"):
        parse_chat_query({"ext": "1", "consent": "yes"}, defaults=defaults, max_wait_s=600.0)


def test_a_call_is_recorded_for_so_long_and_the_oldest_give_way(tmp_path: Path) -> None:
    now = iter(range(1000, 2000))
    seconds = 24000 * 2
    other = tmp_path / "notes.wav"
    other.write_bytes(b"not ours" * 100_000)
    recorder = CallRecorder(
        tmp_path, RecordingLimits(max_s=1.0, max_bytes=3 * seconds), clock=lambda: next(now)
    )
    for call in range(5):
        recording = recorder.open(f"{call:04x}")
        for _ in range(30):  # 2.4 s, of which one is kept
            recording.heard(speech(1))
        recording.close()
    recorder.close()
    kept = sorted(path.name for path in tmp_path.iterdir() if path != other)
    assert [name.split("-")[1] for name in kept] == ["0003", "0004"]
    assert {read_wav(tmp_path / name)[0].size for name in kept} == {24000}
    assert other.is_file()


def test_a_disk_that_does_not_keep_up_costs_the_recording_not_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, swept = threading.Event(), 0

    def held_up(*_: object, **__: object) -> None:
        nonlocal swept
        gate.wait()
        swept += 1

    monkeypatch.setattr(recording_module, "sweep", held_up)
    recorder = CallRecorder(tmp_path, GENEROUS)
    recording = recorder.open("ab")
    for _ in range(2000):
        recording.heard(speech(1)[:240])
    assert 900 <= recorder.left_out <= 1000
    recording.close()  # the end is not left out: the file is whole, and not open for ever
    gate.set()
    wait_until(lambda: swept == 3)  # at the start, and as the file begins and ends
    (path,) = files_in(tmp_path)
    assert read_wav(path)[0].size == (2000 - recorder.left_out) * 240
    recorder.close()


def test_a_file_is_a_whole_recording_after_every_piece(tmp_path: Path) -> None:
    """So what a power cut leaves can be played: it is what is read here, while the file is open."""
    recorder = CallRecorder(tmp_path, GENEROUS)
    stem = recorder.open("ab").stem
    recording, path = CallRecording(recorder, stem, 10**6), tmp_path / f"{stem}-heard.wav"

    def has_bytes(size: int) -> bool:
        return path.is_file() and path.stat().st_size == size

    def has_samples(samples: int) -> bool:
        return bool(read_wav(path)[0].size == samples)

    for pieces in (1, 2, 3):
        recording.heard(speech(1))
        wait_until(partial(has_bytes, 44 + pieces * 3840))
        wait_until(partial(has_samples, pieces * 1920))
    recorder.close()
    assert read_wav(path)[0].size == 3 * 1920


@pytest.mark.parametrize(("most_bytes", "samples"), [(500_001, 249_978), (44, None), (20, None)])
def test_a_file_that_a_full_disk_cuts_short_says_what_it_holds(
    tmp_path: Path, most_bytes: int, samples: int | None
) -> None:
    recorder = CallRecorder(tmp_path, GENEROUS)
    recording = recorder.open("ab")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process may be longer, which a writer sees as it would a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        for _ in range(200):
            recording.heard(speech(1))
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorder.failed_files == 1
    assert [read_wav(path)[0].size for path in files_in(tmp_path)] == ([] if samples is None else [samples])


async def test_what_recordings_miss_is_told_to_prometheus(tmp_path: Path) -> None:
    async with serving(record=str(tmp_path)) as server:
        recorder = server.services.recorder
        assert recorder is not None
        recorder.left_out = 7
        recording = recorder.open("ab")  # its name has the second
        (tmp_path / f"{recording.stem}-heard.wav").touch()  # somebody has it already
        recording.heard(speech(1))
        await server.eventually(lambda: recorder.failed_files == 1)
        _, text, _ = await server.get("/metrics")
    assert "\nantiphon_recording_left_out_pieces_total 7.0\n" in text
    assert "\nantiphon_failed_recordings_total 1.0\n" in text


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.01)


def test_a_recording_that_fails_is_not_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = CallRecorder(tmp_path, GENEROUS)
    stem = recorder.open("ab").stem
    (tmp_path / f"{stem}-heard.wav").touch()  # somebody has it already
    recording = CallRecording(recorder, stem, 10**6)
    for _ in range(5):
        recording.heard(speech(1))
        recording.said(speech(1))
    recording.close()
    recorder.close()
    assert [record.message for record in caplog.records].count("recording failed") == 1
    assert read_wav(tmp_path / f"{stem}-said.wav")[0].size == 5 * 1920


def test_recordings_are_for_their_owner_alone(tmp_path: Path) -> None:
    recorder = CallRecorder(tmp_path, GENEROUS)
    recording = recorder.open("ab")
    recording.heard(speech(1))
    recording.close()
    recorder.close()
    (path,) = files_in(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match=r"cannot record into .*file"):
        CallRecorder(file / "below", GENEROUS)


@pytest.mark.parametrize("is_late", [False, True], ids=["in its turn", "after a full queue"])
def test_a_disk_that_is_full_at_the_end_costs_one_recording_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    gate = threading.Event()

    class Full(FileIO):
        def close(self) -> None:
            super().close()
            if "first" in str(self.name):
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording_module, "FileIO", Full)
    monkeypatch.setattr(recording_module, "sweep", lambda *_, **__: gate.wait())
    recorder = CallRecorder(tmp_path, GENEROUS)
    for name in ("second.wav", "first.wav"):
        recorder.put(name, b"\0\0" * 240)
    while is_late and not recorder.left_out:
        recorder.put("first.wav", b"\0\0")
    for name in ("first.wav", "second.wav"):
        recorder.put(name, None)
    gate.set()
    recorder.close()
    assert recorder.failed_files == 1
    assert read_wav(tmp_path / "second.wav")[0].size == 240
