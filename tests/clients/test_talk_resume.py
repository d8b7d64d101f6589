"""A call in a terminal continues after a broken connection, with a message."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import Future

import pytest

from antiphon.serve.calls.call import Call
from antiphon_client.held import HeldSpeech
from antiphon_client.talk import main
from tests.clients.fake_sounddevice import FakeSoundDevice
from tests.serve.harness import Server, serving


def test_a_call_goes_on_after_its_connection_broke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = FakeSoundDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", devices)
    started: Future[int] = Future()

    def has_heard(blocks: int) -> bool:
        return sum(bool(block.any()) for block in tuple(devices.heard)) > blocks

    was_cut: list[Call] = []

    def speaking(server: Server) -> Call | None:
        """The conversation whose client speaks on, and so knows that its call goes on."""
        for call in server.calls:
            if call not in was_cut and call.seconds > 0:
                return call
        return None

    async def cut_twice_and_stop(server: Server) -> None:
        for blocks in (20, 60, 100):
            await server.eventually(lambda blocks=blocks: has_heard(blocks))  # type: ignore[misc]
            await server.eventually(lambda: speaking(server) is not None)
            call = speaking(server)
            if blocks < 100:
                assert call is not None
                assert call.exchange.transport is not None
                was_cut.append(call)
                call.exchange.transport.cut()
        os.kill(os.getpid(), signal.SIGINT)
        await server.is_empty()

    async def serve() -> None:
        async with serving() as server:
            started.set_result(server.port)
            await cut_twice_and_stop(server)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert main([f"127.0.0.1:{started.result(timeout=120)}"]) == 0
    thread.join(timeout=120)
    assert not thread.is_alive()
    printed = capsys.readouterr().out
    assert printed.count("connection lost; trying to resume the call") == 2
    assert printed.count("the call continues") == 2
    assert len(devices.opened) == 2  # the devices stay open


def test_of_what_a_microphone_heard_the_last_is_held_and_sent_again() -> None:
    held = HeldSpeech(limit=8, per_frame=4)
    for number in range(6):
        held.add(bytes((number,)))
    assert [held.take() for _ in range(7)] == [*(bytes((n,)) for n in range(6)), None]
    for number in range(6, 12):
        held.add(bytes((number,)))
    assert held.first_frame == 1  # of 12 messages, those from 4 on
    held.continue_from(1)
    assert held.take() == bytes((4,))
    held.continue_from(2)
    assert [held.take() for _ in range(5)] == [*(bytes((n,)) for n in range(8, 12)), None]
    for number in range(12, 23):
        held.add(bytes((number,)))
    assert held.first_frame == 4  # 15 is the oldest, frame 3 is not whole any more
    assert (held.take(), held.dropped) == (bytes((15,)), 3)
