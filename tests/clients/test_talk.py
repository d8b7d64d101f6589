"""A call with a fake microphone and speaker."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from antiphon.errors import AudioError, MissingExtraError, ProtocolError, SessionError
from antiphon.protocol import events, moshi
from antiphon_client.talk import TalkCall, main, parse_arguments
from tests.clients.fake_server import Behaviour, FakeServer, fake_server_in_thread
from tests.clients.fake_sounddevice import FakeSoundDevice


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeSoundDevice:
    fake = FakeSoundDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake


def talk_until(server: FakeServer, is_enough: Callable[[], bool], *words: str) -> int:
    """Talk, and press Ctrl-C when there is enough."""
    over = threading.Event()

    def watch() -> None:
        for _ in range(3000):
            if over.wait(0.02) or is_enough():
                break
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return main([server.address.http, *words])
    finally:
        over.set()
        thread.join()


def comes_true(is_so: Callable[[], bool]) -> bool:
    """Whether something that happens on the server's thread happens within half a minute."""
    for _ in range(1500):
        if is_so():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("audio_format", ["opus", "pcm_s16le", "ogg"])
def test_what_the_microphone_hears_is_sent_and_the_reply_is_played(
    devices: FakeSoundDevice, audio_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def has_heard_a_second() -> bool:
        return sum(1 for block in devices.heard if block.any()) > 40

    with fake_server_in_thread() as server:
        code = talk_until(server, has_heard_a_second, "--format", audio_format)
        assert comes_true(lambda: server.goodbyes == 1)
    assert code == 0
    # On a busy machine there are gaps, and blocks the microphone has heard too long ago.
    heard = np.concatenate([block for block in devices.heard if block.any()])[4800:]
    assert 0.2 < float(np.sqrt(np.mean(heard**2))) < 0.45
    assert len(devices.closed) == len(devices.opened) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("connected; speak, and end with Ctrl-C\n 0 1 2 3")
    assert re.search(r"s spoken, \d+ blocks dropped by a slow network", printed)


def test_devices_are_opened_as_the_model_hears_and_by_name(devices: FakeSoundDevice) -> None:
    with fake_server_in_thread() as server:
        talk_until(server, lambda: len(devices.opened) == 2, "--microphone", "usb", "--speaker", "3")
    speaker, microphone = devices.opened
    assert (speaker.device, microphone.device) == (3, "usb")
    assert microphone.shape == {"samplerate": 24_000, "channels": 1, "dtype": "float32", "blocksize": 480}
    assert speaker.shape == microphone.shape


def test_a_stock_server_is_spoken_to_in_ogg_and_without_our_query(devices: FakeSoundDevice) -> None:
    with fake_server_in_thread(Behaviour(is_stock=True)) as server:
        code = talk_until(server, lambda: any(block.any() for block in devices.heard), "--stock")
        assert server.queries == [{}]
        assert server.goodbyes == 0
    assert code == 0


def test_a_place_in_the_queue_and_the_servers_leaving_are_told(
    devices: FakeSoundDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    says = (
        moshi.encode(events.queued(position=2, ahead=2, retry_after_s=9)),
        moshi.encode(events.draining(deadline_s=60)),
        moshi.encode(events.interrupted(3)),
    )
    with fake_server_in_thread(Behaviour(says=says)) as server:
        talk_until(server, lambda: any(block.any() for block in devices.heard))  # said after all that
    printed = capsys.readouterr().out
    assert "in the queue: 2 ahead" in printed
    assert "the server shuts down in 60 s" in printed


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(slots=0), "the server is full"),
        (Behaviour(closes_at=1), "the step failed"),
        (Behaviour(refuses_with=400), "refused with HTTP 400: text_topk is 0"),
    ],
)
def test_the_server_ending_the_call_is_an_error_in_its_words(
    devices: FakeSoundDevice, behaviour: Behaviour, words: str
) -> None:
    with fake_server_in_thread(behaviour) as server, pytest.raises(SessionError, match=words):
        main([server.address.http, "--wait", "0"])
    assert len(devices.closed) == len(devices.opened)


def test_nonsense_from_the_server_ends_the_call(devices: FakeSoundDevice) -> None:
    with (
        fake_server_in_thread(Behaviour(says=(b"\x10{}",))) as server,
        pytest.raises(ProtocolError, match="an event of type None"),
    ):
        main([server.address.http])


def test_a_device_that_cannot_be_opened_is_named_with_a_way_to_find_others(
    devices: FakeSoundDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        fake_server_in_thread() as server,
        pytest.raises(AudioError, match=r"at 24000 Hz: Error opening stream.*antiphon talk --list-devices"),
    ):
        main([server.address.http, "--microphone", "broken"])
    assert "connected" not in capsys.readouterr().out


def test_no_server_is_an_error_with_the_next_command(devices: FakeSoundDevice, unused_tcp_port: int) -> None:
    with pytest.raises(SessionError, match=r"start a server there with: .*antiphon serve"):
        main([f"127.0.0.1:{unused_tcp_port}"])


def test_a_connection_lost_in_the_call_is_not_called_a_server_that_is_not_there(
    devices: FakeSoundDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(TalkCall, "_go_on", lost)
    with (
        fake_server_in_thread() as server,
        pytest.raises(SessionError, match=r"^connection lost: Cannot write to closing transport$"),
    ):
        main([server.address.http])


def test_without_sounddevice_the_error_is_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingExtraError, match=r"a call needs .*pip install .*\[talk\]'"):
        main([])


def test_the_devices_are_listed_without_a_server(
    devices: FakeSoundDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list-devices"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "number  use                   rate  name",
        "     0  microphone           48000  Built-in Mic",
        "     1  microphone, speaker  44100  Headset",
        "Give a number or a part of a name to --microphone and --speaker.",
    ]


def test_a_machine_without_devices_is_said_in_words(
    devices: FakeSoundDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    devices.devices = []
    assert main(["--list-devices"]) == 0
    assert capsys.readouterr().out.startswith("no sound devices: PortAudio finds neither")


def test_the_url_carries_the_format_and_the_patience() -> None:
    assert parse_arguments([]).url == "ws://127.0.0.1:8998/api/chat?ext=1&format=opus&wait=30&resume=1"
    options = parse_arguments(["host:1", "--format", "pcm_f32le", "--wait", "5", "--set", "text_seed=3"])
    assert options.url == "ws://host:1/api/chat?ext=1&format=pcm_f32le&wait=5&resume=1&text_seed=3"
