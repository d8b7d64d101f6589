"""The limits of one caller, and the timeouts of connections: options, and constants with their reasons."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.option import Group, constant, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one caller, and the timeouts of connections."""

    max_sessions_per_key: int = option(
        0, "sessions at once of one API key; 0: no limit", minimum=0, group=Group.ACCESS
    )
    max_seconds_per_key: int = option(
        0,
        "call time of one API key on one day (UTC); 0: no limit",
        minimum=0,
        metavar="SECONDS",
        group=Group.ACCESS,
    )
    max_sessions_per_address: int | None = option(
        None,
        "sessions at once from one address (IPv6: one /64); 0: no limit; auto: a quarter of the rows, at "
        "least 4, and any number from this machine",
        minimum=0,
        group=Group.ACCESS,
    )
    idle_timeout_s: float = option(
        60.0,
        "close a session after this long without input; a second of audio extends it by ten",
        minimum=0.1,
        group=Group.LIFE,
    )
    drain_timeout_s: float = option(
        60.0, "time for calls after SIGTERM, after which they are closed", minimum=0, group=Group.LIFE
    )
    handshake_timeout_s: float = constant(
        15.0,
        "maximum time from 'ready' to the first audio; a microphone takes a second or two to open",
        minimum=0.1,
    )
    quiet_timeout_s: float = constant(
        600.0,
        "maximum time without audio from a client that has announced silence (muted, or manual turns)",
        minimum=0.1,
    )
    liveness_timeout_s: float = constant(
        20.0, "maximum time without a sign of life of the peer; three unanswered pings", minimum=0.1
    )
    close_timeout_s: float = constant(
        2.0, "time for the answer to a close frame; several round trips", minimum=0.1
    )
    max_wait_s: float = constant(600.0, "longest 'wait' in the queue that a caller may request", minimum=0)
    max_connections: int = constant(
        10_000, "connections at once, further ones wait; each takes an open file", minimum=1
    )
    max_connections_per_address: int | None = constant(
        None,
        "connections at once from one address (IPv6: one /64), 0 for any number; auto: a quarter of all, and "
        "any number from this machine; connections of a trusted proxy do not count",
        minimum=0,
    )
    max_new_connections_per_s: float = constant(
        200.0,
        "connections accepted in a second, further ones wait; each takes a core for a millisecond",
        minimum=1,
    )
    max_new_connections_per_address_per_s: float | None = constant(
        None,
        "connections accepted from one address in a second, 0 for any number; auto: a quarter of all, and "
        "any number from this machine; further ones are closed",
        minimum=0,
    )
    max_message_bytes: int = constant(
        262_144, "largest WebSocket message: three seconds of float samples", minimum=1024
    )
    max_messages_per_s: int = constant(
        500,
        "rate of messages from one socket above which reading slows; ten times the rate of a call",
        minimum=1,
    )
    max_bytes_per_s: int = constant(
        16_777_216,
        "rate of bytes from one socket above which reading slows; sixty times a recogniser's client",
        minimum=65_536,
    )
    max_voice_bytes: int = constant(
        1_048_576, "largest message with a voice: 64,000 numbers of tts-1.6b in msgpack", minimum=1024
    )
    max_unsent_bytes: int = constant(
        32_768,
        "unsent data of a socket above which audio is dropped; half a second",
        minimum=4096,
    )
    max_upload_bytes: int = constant(67_108_864, "largest recording by POST, stored in a file", minimum=1024)
    max_upload_s: float = constant(3600.0, "longest recording by POST, which uses a row", minimum=0.1)
    max_uploads_per_address: int = constant(
        8, "recordings at once from one address (IPv6: one /64), 0 for any number; each is a file", minimum=0
    )
    upload_timeout_s: float = constant(60.0, "time to receive a recording, or any other body", minimum=0.1)
    min_upload_bytes_per_s: int = constant(
        16_384, "minimum rate of a body after five seconds: the rate of Opus at its best quality", minimum=1
    )
    hand_over_timeout_s: float = constant(
        30.0, "time to hand over one call: a row and a lease over a slow network", minimum=0.1
    )
    max_hand_overs: int = constant(
        2, "calls that each front end receives at once from other workers; each is in memory twice", minimum=1
    )
    connect_timeout_s: float = constant(
        15.0, "time for the TLS handshake of a connection, and for a peer by WebRTC to connect", minimum=0.1
    )
