"""An offer of WebRTC as a browser writes it, for tests and the fuzzer."""

from __future__ import annotations

from typing import Final

LINES: Final = (
    "v=0",
    "o=- 4611731400430051336 2 IN IP4 127.0.0.1",
    "s=-",
    "t=0 0",
    "a=group:BUNDLE 0 1",
    "a=extmap-allow-mixed",
    "a=msid-semantic: WMS voice",
    "m=audio 40001 UDP/TLS/RTP/SAVPF 111 63 9 0 8 13 110",
    "c=IN IP4 192.0.2.7",
    "a=rtcp:9 IN IP4 0.0.0.0",
    "a=candidate:1 1 udp 2113937151 0a1b2c3d-0000-4000-8000-000000000000.local 40001 typ host generation 0",
    "a=candidate:2 1 udp 1677729535 192.0.2.7 40001 typ srflx raddr 0.0.0.0 rport 0 generation 0",
    "a=end-of-candidates",
    "a=ice-ufrag:Zx9k",
    "a=ice-pwd:8pQmV3rXcT1nJ6wYb2sLd0Ge",
    "a=ice-options:trickle",
    "a=fingerprint:sha-256 " + ":".join(["7A"] * 32),
    "a=setup:actpass",
    "a=mid:0",
    "a=sendrecv",
    "a=msid:voice microphone",
    "a=rtcp-mux",
    "a=rtpmap:111 opus/48000/2",
    "a=fmtp:111 minptime=10;useinbandfec=1",
    "a=rtpmap:0 PCMU/8000",
    "a=ssrc:1001 cname:Aq3",
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    "c=IN IP4 0.0.0.0",
    "a=ice-ufrag:Zx9k",
    "a=ice-pwd:8pQmV3rXcT1nJ6wYb2sLd0Ge",
    "a=fingerprint:sha-256 " + ":".join(["7A"] * 32),
    "a=setup:actpass",
    "a=mid:1",
    "a=sctp-port:5000",
    "a=max-message-size:262144",
)
OFFER: Final = "".join(f"{line}\r\n" for line in LINES).encode()
