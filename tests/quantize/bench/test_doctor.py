"""``antiphon doctor``: each line with its remedy, and an exit code for a server that cannot start."""

from __future__ import annotations

import asyncio
import shlex
import socket
import sys
import threading
from argparse import Namespace
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from antiphon import __version__, cli
from antiphon.agent.text_model import Endpoint
from antiphon.backends.machine import Gpu
from antiphon.errors import AudioError
from antiphon.install import antiphon_command
from antiphon.serve.hosting.ports import tls_context
from antiphon_quantize.bench import doctor
from antiphon_quantize.bench.doctor import (
    DoctorLine,
    DoctorState,
    check_cores,
    check_cpu,
    check_extras,
    check_files,
    check_gpus,
    check_libopus,
    check_memory,
    check_port,
    check_python,
    check_sound,
    check_text_model,
    running_antiphon,
)
from antiphon_quantize.bench.player import TickTurn
from antiphon_quantize.bench.slots import Found
from tests.clients.fake_sounddevice import FakeSoundDevice
from tests.serve.harness import serving
from tests.support.text_model import TextModelServer

TLS = Path(__file__).parents[2] / "serve" / "tls"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_a_machine_that_is_ready_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert cli.run(["doctor", "--no-speed", "--model", "echo", "--port", str(port)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert names[:9] == ["python", "libopus", "cpu", "cores", "memory", "gpu", "files", "sound", "extras"]
    assert lines[-1] == "ready: " + antiphon_command(f"serve --model echo --port {port}")
    assert any(
        line.startswith("model      ok       echo (codec, 2.9 M parameters) runs on ") for line in lines
    )


def test_a_taken_port_is_missing_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.run(["doctor", "--no-speed", "--model", "echo", "--port", str(port)]) == 1
        assert check_port("127.0.0.1", port).remedy == "choose another with --port"
    assert capsys.readouterr().out.endswith("\n\nnot ready: port\n")


@pytest.mark.parametrize("has_tls", [False, True])
async def test_an_antiphon_that_has_the_port_is_named(
    has_tls: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = tls_context(str(TLS / "test-cert.pem"), str(TLS / "test-key.pem")) if has_tls else None
    async with serving(tls=tls) as server:
        argv = ["doctor", "--no-speed", "--model", "echo", "--port", str(server.port)]
        assert await asyncio.to_thread(cli.run, argv) == 0
        url = f"http{'s' * has_tls}://127.0.0.1:{server.port}"
    printed = capsys.readouterr().out
    assert (
        f"port       note     antiphon {__version__} answers at {url}\n{'':<19} -> "
        "to serve again, choose another port with --port, or stop that server\n"
    ) in printed
    assert printed.endswith(f"\n\nready: antiphon {__version__} answers at {url}\n")


class Stranger(BaseHTTPRequestHandler):
    """Answers every GET with the same bytes."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "antiphon", "version": "\\u001b[2J"}',
        b'{"name": "antiphon"}',
        b'{"name": "other", "version": "1"}',
        b"[" * 90_000,
    ],
)
def test_what_another_server_answers_is_not_printed(body: bytes) -> None:
    with HTTPServer(("127.0.0.1", 0), type("Fixed", (Stranger,), {"body": body})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = check_port("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()
    assert (found.state, found.remedy) == (DoctorState.MISSING, "choose another with --port")


def test_an_address_of_ipv6_has_brackets_for_the_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str | None]()

    class Other(Stranger):
        body = b'{"name": "antiphon", "version": "1.2"}'

        def do_GET(self) -> None:
            asked.append(self.headers["Host"])
            super().do_GET()

    connect = asyncio.open_connection
    monkeypatch.setattr(asyncio, "open_connection", lambda _, port, **how: connect("127.0.0.1", port, **how))
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = running_antiphon("::1", server.server_port)
        server.shutdown()
        thread.join()
    assert asked == [f"[::1]:{server.server_port}"]
    assert found == f"antiphon 1.2 answers at http://[::1]:{server.server_port}"


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n", b"\x16\x03\x03"])
def test_a_server_that_answers_byte_by_byte_is_not_waited_for(
    begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ASK_S", 0.2)
    left = list[bool]()

    def answer(listener: socket.socket) -> None:
        for _ in range(2):  # HTTP and HTTPS
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(0.05)
                try:
                    for byte in [begin, *[b"a"] * 400]:
                        connection.sendall(byte)
                        with suppress(TimeoutError):
                            while connection.recv(1000):
                                pass
                            raise BrokenPipeError
                except OSError:
                    left.append(True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        found = check_port("127.0.0.1", listener.getsockname()[1])
        thread.join()
    assert (found.state, found.remedy) == (DoctorState.MISSING, "choose another with --port")
    assert left == [True, True], "the listener would have gone on for 20 s"


def test_no_server_of_another_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "running_antiphon", lambda *_: "antiphon 1 answers")
    assert check_port("192.0.2.1", 8998).state is DoctorState.MISSING


def test_the_command_that_serves_is_typed_as_it_is() -> None:
    asked = Namespace(model="./my model", host="0.0.0.0", port=8999)
    words = ["serve", "--model", "./my model", "--host", "0.0.0.0", "--port", "8999"]
    assert shlex.split(doctor.serve_command(asked))[1:] == words


def test_a_model_that_is_not_there_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--model", "./none", "--port", str(free_port())]) == 1
    printed = capsys.readouterr().out
    assert "model      MISSING  no model './none'" in printed
    assert printed.endswith("not ready: model\n")


def test_the_default_model_is_run_and_its_calls_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 0.3)
    finding = doctor.check_default("echo", is_timed=True)
    assert finding.state in (DoctorState.OK, DoctorState.NOTE)  # a busy machine may be late
    assert "calls at once; a tick of their ready rows takes" in finding.words


@pytest.mark.parametrize(("tick_s", "state"), [(0.01, DoctorState.OK), (0.06, DoctorState.NOTE)])
def test_late_ticks_get_fewer_slots(tick_s: float, state: DoctorState) -> None:
    found = Found(8, 80.0, TickTurn(8, (tick_s,) * 10, 0, 80, 1.0))
    finding = doctor.judge("tiny on onnx", found)
    assert finding.state is state
    assert ("--slots 4" in finding.remedy) is (state is DoctorState.NOTE)


def test_what_is_short_has_a_remedy() -> None:
    for finding, remedy in (
        (check_python((3, 9, 1)), "install Python 3.11 or newer"),
        (check_cores(1), "use two"),
        (check_cpu("Some CPU, AVX2 without VNNI"), "use a processor with VNNI"),
        (check_memory(500_000_000), "give it 1 GB"),
        (check_files(256), "LimitNOFILE=65536"),
        (check_gpus([Gpu("a card", 80 * 10**9)], find=lambda _: None), "[torch]"),
        (check_gpus([Gpu("T4", 16 * 10**9, (7, 5))], find=lambda _: object()), "capability 8.0 or above"),
    ):
        assert finding.state is not DoctorState.OK
        assert remedy in finding.remedy
        assert str(finding).splitlines()[1].strip() == f"-> {finding.remedy}"
    for finding in (
        check_cores(2),
        check_cpu("Some CPU, AVX-VNNI"),
        check_memory(8 * 10**9),
        check_files(65536),
    ):
        assert (finding.state, finding.remedy) == (DoctorState.OK, "")
    assert check_python((3, 9, 1)).state is DoctorState.MISSING


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)
    assert check_cores().words == "3: 2 for the model, 1 for sockets and Opus"


def test_absent_extras_are_named_with_their_commands() -> None:
    first, *absent = check_extras(lambda _: None)
    assert first.words == "installed: none, which is all the default model needs"
    by_name = {finding.name.strip(): finding for finding in absent}
    assert by_name["torch"].remedy.endswith("[torch]'") or "torch" in by_name["torch"].remedy
    assert {finding.state for finding in absent} == {DoctorState.OK}
    assert [it.words for it in check_extras(lambda _: object())] == [
        "installed: torch, mlx, pocket, tts, quantize, talk, plot, otel"
    ]


def test_no_libopus_is_missing_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise AudioError("no libopus: the Python package 'av' contains it (pip install av)")

    monkeypatch.setattr(doctor, "load_libopus", none)
    assert check_libopus() == DoctorLine(
        "libopus", DoctorState.MISSING, "no libopus", "the Python package 'av' contains it (pip install av)"
    )


def test_the_sound_card_is_looked_at_where_talk_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSoundDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    assert check_sound(lambda _: object()).words == f"2 devices: {antiphon_command('talk --list-devices')}"
    fake.devices = []
    assert check_sound(lambda _: object()).words.startswith("no devices")
    assert "extra talk" in check_sound(lambda _: None).words


async def test_an_agents_text_model_is_looked_at() -> None:
    async with TextModelServer().serve() as server:
        found = await check_text_model(Endpoint(server.url))
        assert (found.state, found.words) == (DoctorState.OK, f"{server.url[7:-3]} has scripted")
        wrong = await check_text_model(Endpoint(server.url, "scribe"))
        assert (wrong.state, wrong.remedy) == (DoctorState.MISSING, "did you mean 'scripted'?")
    gone = await check_text_model(Endpoint(server.url))
    assert gone.state is DoctorState.MISSING
    assert "cannot be reached" in gone.words
