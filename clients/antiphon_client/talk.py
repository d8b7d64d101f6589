"""``antiphon talk``: a conversation with a server through this machine's microphone and speaker."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from antiphon.audio.codecs import make_decoder
from antiphon.errors import SessionError
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import AudioFormat
from antiphon_client.address import DEFAULT_PORT, ServerAddress
from antiphon_client.api_key import NO_KEY, ApiKey, add_key_arguments, pop_key
from antiphon_client.arguments import name_and_value
from antiphon_client.devices import Speaker, list_devices, load_sounddevice, open_devices
from antiphon_client.encoding import FRAME_SAMPLES, PACKET_MS, SAMPLE_RATE, MessageEncoder
from antiphon_client.facts import cannot_connect
from antiphon_client.held import HeldSpeech
from antiphon_client.interrupts import on_interrupt
from antiphon_client.pacing import STALE_S
from antiphon_client.record import Samples
from antiphon_client.screen import FLOOR_DB, Screen, level_db
from antiphon_client.session import describe_refusal, until_either_ends
from antiphon_client.thread import CallThread

METER_INTERVAL_S = 0.1
STALE_BLOCKS = round(STALE_S * 1000 / PACKET_MS)
"""Number of microphone blocks that wait for the network; older blocks are dropped."""

BLOCKS_A_FRAME = FRAME_SAMPLES * 1000 // (SAMPLE_RATE * PACKET_MS)
RETRY_S = 0.3
"""Seconds between two attempts to connect again."""

EXAMPLES = """\
Wear headphones; otherwise the model gets its own voice as input. Ctrl-C ends the call.

examples:
  antiphon talk                                  the server on this machine
  antiphon talk https://voice.example --wait 60  wait in the queue for a minute
  antiphon talk host:8998 --stock                any Moshi server
"""


@dataclass(frozen=True, slots=True)
class TalkOptions:
    """All options of ``antiphon talk``."""

    address: ServerAddress
    api_key: ApiKey = NO_KEY
    model: str | None = None
    format: AudioFormat = AudioFormat.OPUS
    is_stock: bool = False
    wait_s: float = 0.0
    query: Mapping[str, str] = field(default_factory=dict)
    verifies_tls: bool = True
    microphone: str | int | None = None
    speaker: str | int | None = None
    lists_devices: bool = False

    @property
    def url(self) -> str:
        """The URL of the chat socket with its query."""
        model = {"model": self.model} if self.model is not None else {}
        if self.is_stock:
            return self.address.chat({**model, **self.query})
        resume = {} if self.format is AudioFormat.OGG else {"resume": "1"}
        ours = {"ext": "1", "format": self.format.value, "wait": f"{self.wait_s:g}", **resume, **model}
        return self.address.chat({**ours, **self.query})


def parse_arguments(argv: Sequence[str]) -> TalkOptions:
    """Read a command line; argparse ends the process with code 2 when the command line is invalid.

    Raises:
        ConfigError: the address is invalid.
    """
    parser = argparse.ArgumentParser(
        prog="antiphon talk",
        description="Talk to a server with this machine's microphone and speaker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", nargs="?", default=f"http://127.0.0.1:{DEFAULT_PORT}", metavar="URL", help="[%(default)s]")
    add("--format", type=AudioFormat, choices=list(AudioFormat), default="opus", help="audio format [opus]")
    add("--stock", action="store_true", dest="is_stock", help="use plain /api/chat, in ogg")
    add(
        "--wait",
        type=float,
        default=30.0,
        dest="wait_s",
        metavar="SECONDS",
        help="longest wait in the queue in s [30]",
    )
    add("--set", action="append", default=[], type=name_and_value, dest="query", metavar="NAME=VALUE")
    add("--model", metavar="NAME", help="model of the server [its default]")
    add_key_arguments(add)
    add("--insecure", action="store_false", dest="verifies_tls", help="accept any TLS certificate")
    add("--microphone", type=_device, metavar="NAME", help="name or number of the input device")
    add("--speaker", type=_device, metavar="NAME", help="name or number of the output device")
    add("--list-devices", action="store_true", dest="lists_devices", help="print all devices and exit")
    values = vars(parser.parse_args(argv))
    if values["is_stock"]:
        values["format"] = AudioFormat.OGG
    return TalkOptions(
        address=ServerAddress.parse(values.pop("url")),
        api_key=pop_key(values),
        query=dict(values.pop("query")),
        **values,
    )


def _device(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def main(argv: list[str]) -> int:
    """Run a call until Ctrl-C or until the server ends it; then return 0.

    Raises:
        ConfigError, MissingExtraError, AudioError, SessionError: see their messages.
    """
    options = parse_arguments(argv)
    sounddevice = load_sounddevice()
    if options.lists_devices:
        print(list_devices(sounddevice))  # noqa: T201
        return 0
    screen = Screen(sys.stdout)
    call = TalkCall(options, screen)
    with on_interrupt(call.stop):
        try:
            asyncio.run(call.hold(sounddevice))
        finally:
            screen.close()
    screen.say(call.summary())
    return 0


class _LostError(Exception):
    """The connection is lost; the call may be resumed."""


class TalkCall:
    """One call: sends the microphone's audio, plays and prints the replies."""

    def __init__(self, options: TalkOptions, screen: Screen) -> None:
        """Prepare a call without opening a device or connection."""
        self._options = options
        self._screen = screen
        self._encoder = MessageEncoder(options.format)
        self._decoder = make_decoder(options.format)
        self._speaker = Speaker()
        self._microphone_db = FLOOR_DB
        self._held = HeldSpeech(limit=STALE_BLOCKS, per_frame=BLOCKS_A_FRAME)
        self._thread = CallThread()
        self._socket: aiohttp.ClientWebSocketResponse
        self._is_ready, self._may_send, self._has_more = (asyncio.Event() for _ in range(3))
        self._is_stopped = False
        self._error = ""
        self._sent = 0

    def stop(self) -> None:
        """Request the end of the call; safe in a signal handler."""
        self._is_stopped = True

    def summary(self) -> str:
        """A summary of the call in one line."""
        buffer = self._speaker.buffer
        return (
            f"{self._sent * PACKET_MS / 1000:.1f} s spoken, "
            f"{self._held.dropped} blocks dropped by a slow network, "
            f"{buffer.underruns} gaps in playback, buffer {buffer.start_ms:.0f} ms"
        )

    async def hold(self, sounddevice: Any) -> None:
        """Connect, wait for admission, and run the call until stopped.

        Raises:
            SessionError: the server does not respond, rejects the call, or ends it with an error.
            AudioError: a device cannot be opened, or the server's audio cannot be decoded.
        """
        options = self._options
        async with aiohttp.ClientSession(headers=options.api_key.headers) as http:
            try:
                self._socket = await self._dial(http, options.url)
            except aiohttp.WSServerHandshakeError as error:
                raise SessionError(await describe_refusal(http, options.url, error)) from error
            except (aiohttp.ClientConnectorError, OSError) as error:
                raise cannot_connect(options.address, error) from error
            try:
                call = until_either_ends(self._go_on(http), self._use_devices(sounddevice))
                await until_either_ends(self._watch(), call)
                if not options.is_stock:
                    await self._socket.send_bytes(moshi.encode(events.bye()))
            except (aiohttp.ClientError, OSError) as error:
                raise SessionError(f"connection lost: {error or type(error).__name__}") from error
            finally:
                await self._socket.close()

    async def _dial(self, http: aiohttp.ClientSession, url: str) -> aiohttp.ClientWebSocketResponse:
        return await http.ws_connect(url, compress=0, ssl=self._options.verifies_tls)

    async def _watch(self) -> None:
        """Draw the meters until :attr:`stop` is set."""
        while not self._is_stopped:
            await asyncio.sleep(METER_INTERVAL_S)
            if self._is_ready.is_set():
                self._screen.levels(self._microphone_db, self._speaker.db)

    async def _go_on(self, http: aiohttp.ClientSession) -> None:
        """Run the call, over as many connections as it needs."""
        while True:
            try:
                await until_either_ends(self._listen(self._socket), self._speak(self._socket))
            except (_LostError, aiohttp.ClientError, OSError) as error:
                if not self._thread.is_resumable:
                    raise SessionError(f"connection lost: {error or type(error).__name__}") from error
            self._may_send.clear()
            if not self._thread.is_moved:
                self._screen.say("connection lost; trying to resume the call")
            await self._come_back(http)

    async def _come_back(self, http: aiohttp.ClientSession) -> None:
        thread, loop = self._thread, asyncio.get_running_loop()
        until_s = loop.time() + thread.window_s
        while True:
            try:
                self._socket = await self._dial(http, thread.resuming_url(self._options.url))
                await self._socket.send_bytes(thread.claim(self._held.first_frame))
                return
            except (aiohttp.ClientError, OSError) as error:
                if loop.time() > until_s:
                    raise SessionError(
                        f"connection lost, and not resumed within {thread.window_s:g} s: {error}"
                    ) from error
            await asyncio.sleep(RETRY_S)

    async def _use_devices(self, sounddevice: Any) -> None:
        await self._is_ready.wait()
        loop = asyncio.get_running_loop()
        with open_devices(
            sounddevice,
            speaker=self._speaker,
            on_block=lambda block: loop.call_soon_threadsafe(self._heard_block, block),
            microphone_name=self._options.microphone,
            speaker_name=self._options.speaker,
        ):
            self._screen.say("connected; speak, and end with Ctrl-C")
            await loop.create_future()

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._may_send.wait()
        while True:
            while (message := self._held.take()) is not None:
                await socket.send_bytes(message)
                self._sent += 1
            self._has_more.clear()
            await self._has_more.wait()

    def _heard_block(self, block: Samples) -> None:
        self._microphone_db = level_db(block)
        self._held.add(moshi.encode(moshi.Audio(self._encoder.encode(block))))
        self._has_more.set()

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            if (data := self._thread.unwrap(message.data)) is not None:
                self._hear(moshi.decode(data))
            if (ack := self._thread.ack(asyncio.get_running_loop().time())) is not None:
                await socket.send_bytes(ack)
        if self._thread.reason and not self._error:
            raise SessionError(f"the call cannot be resumed: {self._thread.reason}")
        if self._thread.is_moved:
            raise _LostError("the call continues at another worker")
        if socket.close_code in (None, 1006) and not self._error:
            raise _LostError("the connection broke")
        if self._error and self._thread.is_resumable:  # full for a moment
            self._error = ""
            await asyncio.sleep(RETRY_S)
            raise _LostError("the server had no free place")
        raise SessionError(self._error or f"the server closed with code {socket.close_code}")

    def _hear(self, message: moshi.Message) -> None:
        match message:
            case moshi.StampedAudio(data=payload) | moshi.Audio(data=payload):
                self._speaker.push(self._decoder.feed(payload))
            case moshi.Text(text) | moshi.ColouredText(_, text):
                self._screen.text(text)
            case moshi.Handshake() if self._options.is_stock:
                self._let_in()
            case moshi.Error(words):
                self._error = words
            case moshi.Event("ready"):
                self._let_in()
            case moshi.Event("resumed"):
                self._held.continue_from(self._thread.input_frame)
                self._speaker.interrupt()
                self._may_send.set()
                self._screen.say("the call continues")
            case moshi.Event("interrupted"):
                self._speaker.interrupt()
            case moshi.Event("queued", fields):
                self._screen.say(f"in the queue: {fields.get('ahead', 'some')} ahead")
            case moshi.Event("draining", fields):
                self._screen.say(f"the server shuts down in {fields.get('deadline_s', 'a few')} s")
            case moshi.Event("error", fields):
                self._error = str(fields.get("message", "an error without a message"))

    def _let_in(self) -> None:
        self._is_ready.set()
        self._may_send.set()
