"""One peer connection of WebRTC as the transport of a call: messages in both directions, where sound is in
binary messages.

Text, and binary messages without sound, pass through the data channel that the peer opens. A binary message
with the connection's ``head`` is sound: 16-bit samples at 24 kHz, sent as Opus on the audio track. Such a
message without samples discards the sound that waits to be sent.

aiortc implements ICE, DTLS, SRTP and SCTP. Its decoder, which is a thread with FFmpeg's resampler for each
call, is not used: packets go directly to :class:`~antiphon.serve.media.peer_sound.IncomingSound`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any, Final, final

from antiphon.errors import AntiphonError, PeerConnectionError, ProtocolError
from antiphon.limits import Limits
from antiphon.log import Log
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.sdp import PeerOffer, with_repair
from antiphon.serve.media.peer_sound import RTP_RATE, IncomingSound, OutgoingSound
from antiphon.serve.transport.socket import AHEAD_S, HOLD_S, READ_AHEAD_BYTES, RECHECK_S
from antiphon.serve.transport.transport import M, Message, T, Taker, kept_bytes

GATHER_S: Final = 5.0
"""Seconds to find this server's addresses, including those from STUN and TURN servers."""

MAX_CHANNELS: Final = 8
"""Maximum number of data channels that a peer opens in a call: each channel, whose names may take 128 KB, is
kept until the end.
"""

END_S: Final = 10.0
"""Seconds for a connection to release its sockets, which waits for no caller, only for a TURN server."""

WATCH_S: Final = 1.0
"""Seconds between checks of the received data."""


@final
class Peer:
    """One WebRTC connection; used on the event loop only.

    ``rtc`` is the package aiortc; ``head`` is the prefix of messages with sound.
    """

    close_code: int | None = None
    was_cut = False

    def __init__(
        self, rtc: Any, servers: Sequence[Any], head: bytes, limits: Limits, clock: Callable[[], float]
    ) -> None:
        """Prepare; ``servers`` are aiortc's objects for STUN and TURN."""
        bundle = rtc.RTCBundlePolicy.MAX_BUNDLE
        self._rtc = rtc
        self._connection = rtc.RTCPeerConnection(rtc.RTCConfiguration([*servers], bundlePolicy=bundle))
        self._head, self._limits, self._clock = head, limits, clock
        self._incoming, self._outgoing = IncomingSound(clock), OutgoingSound(clock)
        self._sound = make_track(rtc, self._outgoing)
        self._channel: Any = None
        self._channels = 0  # opened so far
        self._needs_channel = False
        self._ahead: deque[Message] = deque()
        self._ahead_bytes = 0
        self._fault: AntiphonError | None = None
        self._news, self._is_up, self._is_over, self._is_broken = (asyncio.Event() for _ in range(4))
        self._is_closing = False
        self._paid_until_s = 0.0
        self._watching: asyncio.Task[None] | None = None
        self.seen_s = clock()

    async def answer(self, offer: PeerOffer) -> str:
        """The answer to a peer's offer, in SDP, with all addresses of this server.

        Raises:
            ProtocolError: the offer cannot be used.
        """
        connection, rtc = self._connection, self._rtc
        self._needs_channel = offer.has_channel
        transceiver = connection.addTransceiver(self._sound, direction="sendrecv")
        opus = [it for it in rtc.RTCRtpSender.getCapabilities("audio").codecs if it.mimeType == "audio/opus"]
        transceiver.setCodecPreferences(opus)
        tap(transceiver.receiver, self._hear)
        connection.on("connectionstatechange", self._follow_state)
        connection.on("datachannel", self._take_channel)
        try:
            async with asyncio.timeout(GATHER_S):
                await connection.setRemoteDescription(rtc.RTCSessionDescription(offer.text, "offer"))
                await connection.setLocalDescription(await connection.createAnswer())
        except TimeoutError:
            raise PeerConnectionError(f"no address of this server was found within {GATHER_S:g} s") from None
        except Exception as error:  # a boundary: aiortc raises many kinds of errors for invalid offers
            raise ProtocolError(f"the offer cannot be used: {type(error).__name__}: {error}"[:300]) from error
        return with_repair(connection.localDescription.sdp)

    async def connected(self) -> None:
        """Wait until the peer is connected, and has opened its data channel if it offered one, or until
        either side ends the call.

        Raises:
            PeerConnectionError: ICE or DTLS failed, or took too long.
        """
        limit_s = self._limits.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._is_up.wait()
        except TimeoutError:
            connection = self._connection
            states = f"ICE {connection.iceConnectionState}, connection {connection.connectionState}"
            raise PeerConnectionError(f"the peer did not connect within {limit_s:g} s: {states}") from None
        if self.has_ended and self.close_code is None:
            raise PeerConnectionError(f"the connection to the peer is {self._connection.connectionState}")
        self.seen_s = self._clock()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    # Called by aiortc.

    def _follow_state(self) -> None:
        state = self._connection.connectionState
        if state == "closed":
            self.hang_up()
        elif state == "failed":
            self.cut()
        elif state == "connected" and not self._needs_channel:
            self._is_up.set()

    def _take_channel(self, channel: Any) -> None:
        """Use the first data channel; aiortc emits events for its messages and its end."""
        self._channels += 1
        if self._channel is None:
            self._channel = channel
            channel.on("message", self._take)
            channel.on("close", self.hang_up)
            self._is_up.set()
        elif self._channels > MAX_CHANNELS:
            self._break(ProtocolError(f"{self._channels} data channels, the limit is {MAX_CHANNELS}"))

    def _hear(self, packet: Any) -> None:
        """Handle an RTP packet."""
        self.seen_s = self._clock()
        if packet.payload and self._is_up.is_set():
            samples = self._incoming.packet(packet.sequence_number, packet.payload)
            if samples and self._ahead_bytes < READ_AHEAD_BYTES:
                self._keep(self._head + samples)

    def _take(self, message: Message) -> None:
        self.seen_s = self._clock()
        if self._ahead_bytes < READ_AHEAD_BYTES:
            self._keep(message)
        else:
            self._break(ProtocolError(f"more than {READ_AHEAD_BYTES} bytes are ahead of the call"))

    def _break(self, fault: AntiphonError) -> None:
        """End the call with its first fault."""
        self._fault = self._fault or fault
        self._is_broken.set()
        self._news.set()

    def _keep(self, message: Message) -> None:
        self._ahead.append(message)
        self._ahead_bytes += kept_bytes(message)
        self._news.set()

    # Called by the call.

    @property
    def has_ended(self) -> bool:
        return self._is_over.is_set() or self._is_closing

    async def receive_any(self) -> Message | None:
        while not (self._ahead or self._fault or self.has_ended):
            self._news.clear()
            await self._news.wait()
        if self.has_ended:
            return None
        if self._fault is not None:
            raise self._fault
        now_s = self._clock()
        self._paid_until_s = max(self._paid_until_s, now_s) + 1.0 / self._limits.max_messages_per_s
        if self._paid_until_s > now_s + AHEAD_S:
            await asyncio.sleep(HOLD_S)
        message = self._ahead.popleft()
        self._ahead_bytes -= kept_bytes(message)
        return message

    def timed(self, work: Callable[[M], T], message: M) -> T:
        return work(message)

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        return nullcontext()

    async def wait_for(self, room: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(it.wait()) for it in (room, self._is_over, self._is_broken)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self.has_ended:
                return
            if isinstance(message, bytes) and message.startswith(self._head):
                self._play(message[len(self._head) :])
            elif self._channel is not None and self._channel.readyState == "open":
                try:
                    self._channel.send(message)
                except ValueError as error:  # the peer announces its largest message
                    self._break(ProtocolError(f"an event is too long for the peer: {error}"))

    def _play(self, samples: bytes) -> None:
        if samples:
            self._outgoing.put(samples)
        else:
            self._outgoing.clear()

    def is_congested(self) -> bool:
        return self._unsent_bytes > self._limits.max_unsent_bytes

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._channel is None or self.has_ended else int(self._channel.bufferedAmount)

    @property
    def has_unsent(self) -> bool:
        return self._unsent_bytes > 0 or not (self._outgoing.is_sent or self.has_ended)

    def stalled_s(self, since_s: float) -> float:
        return 0.0

    def silent_s(self) -> float:
        return self._clock() - self.seen_s

    def ping(self) -> None:
        """No effect: ICE itself checks the peer regularly."""

    async def _watch(self) -> None:
        """Check regularly for signs of life other than sound, such as RTCP reports, and for floods."""
        datagrams = 0
        while not self.has_ended:
            await asyncio.sleep(WATCH_S)
            try:
                stats = await self._connection.getStats()
            except Exception as error:  # a boundary: aiortc reads each of its parts for them
                self._break(PeerConnectionError(f"no statistics: {type(error).__name__}: {error}"[:300]))
                return
            now = sum(it.packetsReceived for it in stats.values() if it.type == "transport")
            if now > datagrams:
                self.seen_s = self._clock()
            datagrams = now
            sctp = self._connection.sctp
            if sctp is not None and sctp._advertised_rwnd < 0:  # parts of messages without an end
                self._break(ProtocolError("the peer ignores how much the server reads ahead"))

    def cut(self) -> None:
        self._is_over.set()
        self._is_up.set()
        self._news.set()

    def hang_up(self) -> None:
        """End the connection at the client's request."""
        self.close_code = self.close_code or CloseCode.NORMAL
        self.cut()

    async def close(self, code: int, reason: str) -> None:
        """Send waiting data for a short time, then end; the peer gets no close code."""
        if self._is_closing:
            return
        self.close_code = self.close_code or code
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                while self.has_unsent:  # noqa: ASYNC110 (no event for either)
                    await asyncio.sleep(RECHECK_S)
        self._is_closing = True
        self._is_up.set()
        self._news.set()

    async def end(self) -> None:
        """Free all resources; the peer is notified."""
        self._is_closing = True
        self._news.set()
        if self._watching is not None:
            self._watching.cancel()
        self.close_code = self.close_code or CloseCode.GOING_AWAY
        # Its sockets close at the end, so it continues when this task is cancelled.
        closing = asyncio.get_running_loop().create_task(self._connection.close())
        await asyncio.wait([closing], timeout=END_S)
        if not closing.done() or closing.exception() is not None:
            error = closing.exception() if closing.done() else None
            Log(__name__).error("a peer connection did not close in time", exc_info=error)
        self._sound.stop()
        self._incoming.close()
        self._outgoing.close()


def tap(receiver: Any, on_packet: Callable[[Any], None]) -> None:
    """Pass the packets of an aiortc receiver to ``on_packet``.

    The receiver still counts them for its reports to the peer. The receiver's decoder thread is ended at
    once, because otherwise the process would wait for this thread when it ends.
    """
    count, receive = receiver._handle_rtp_packet, receiver.receive

    async def handle(packet: Any, arrival_time_ms: int) -> None:
        on_packet(packet)
        await count(packet, arrival_time_ms=arrival_time_ms)

    async def begin(parameters: Any) -> None:
        await receive(parameters)
        receiver._handle_disconnect()

    receiver._handle_rtp_packet, receiver.receive = handle, begin


def make_track(rtc: Any, sound: OutgoingSound) -> Any:
    """A track of aiortc whose packets are already encoded."""
    from av.packet import Packet

    async def recv(_track: Any) -> Any:
        data, time = await sound.next()
        packet = Packet(data)
        packet.pts, packet.time_base = time, Fraction(1, RTP_RATE)
        return packet

    return type("SoundTrack", (rtc.MediaStreamTrack,), {"kind": "audio", "recv": recv})()
