"""Checks and reduces a WebRTC offer in SDP (RFC 8866) before aiortc parses it.

An offer may have one audio section, with Opus, and one section for data channels. Only candidates with the
address and port of a single machine are kept. A host name would need mDNS, and a peer that sends one contacts
the server first anyway. The end-of-candidates mark is removed too, because a peer may have an address that it
does not know itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from antiphon.errors import ProtocolError

CONTENT_TYPE: Final = "application/sdp"

MAX_OFFER_BYTES: Final = 32_768
"""Maximum number of bytes of an offer; browsers write 2 to 6 KB."""

MAX_LINES: Final = 400
"""Maximum number of lines; browsers write 60 to 120, and 400 are read in a millisecond."""

MAX_LINE_CHARS: Final = 2048
MAX_CANDIDATES: Final = 32
"""Maximum number of addresses of a peer: the server sends packets to each of them."""

SECTIONS: Final = ("audio", "application")

OPUS: Final = re.compile(r"a=rtpmap:(\d{1,3}) opus/48000/2", re.IGNORECASE)
NEEDED: Final = ("a=ice-ufrag:", "a=ice-pwd:", "a=fingerprint:", "a=rtcp-mux", "a=mid:")
"""Required lines. One connection carries all sections."""

CANDIDATE: Final = "a=candidate:"
_END: Final = "a=end-of-candidates"


@dataclass(frozen=True, slots=True)
class PeerOffer:
    """A checked offer; ``has_channel``: it has a section of data channels."""

    text: str
    has_channel: bool


def read_offer(data: bytes) -> PeerOffer:
    """Read the offer in the body of a request.

    Raises:
        ProtocolError: the body is not SDP, is too long, has no audio in Opus, or has other sections.
    """
    if len(data) > MAX_OFFER_BYTES:
        raise ProtocolError(f"an offer of {len(data)} bytes, the limit is {MAX_OFFER_BYTES}")
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != "v=0":
        raise ProtocolError("the offer is no SDP: its first line has to be v=0")
    if len(lines) > MAX_LINES:
        raise ProtocolError(f"an offer of {len(lines)} lines, the limit is {MAX_LINES}")
    if (longest := max(map(len, lines))) > MAX_LINE_CHARS:
        raise ProtocolError(f"a line of {longest} characters in the offer, the limit is {MAX_LINE_CHARS}")
    sections = Counter(line[2:].partition(" ")[0] for line in lines if line.startswith("m="))
    if further := sorted(sections.keys() - set(SECTIONS)):
        raise ProtocolError(
            f"the offer has a section of {further[0][:20]!r}; it may have audio and application"
        )
    if sections["audio"] != 1 or sections["application"] > 1:
        raise ProtocolError(
            f"the offer has {sections['audio']} sections of audio and {sections['application']} of data "
            "channels; it has to have one of audio, and may have one of data channels"
        )
    if not any(OPUS.fullmatch(line) for line in lines):
        raise ProtocolError("the offer's audio has no codec opus/48000/2")
    for needed in NEEDED:
        if not any(line.startswith(needed) for line in lines):
            raise ProtocolError(f"the offer has no line {needed}")
    kept = [
        line for line in lines if line != _END and (not line.startswith(CANDIDATE) or _is_one_machine(line))
    ]
    if (candidates := sum(line.startswith(CANDIDATE) for line in kept)) > MAX_CANDIDATES:
        raise ProtocolError(f"{candidates} candidates in the offer, the limit is {MAX_CANDIDATES}")
    return PeerOffer("".join(f"{line}\r\n" for line in kept), sections["application"] == 1)


def _is_one_machine(candidate: str) -> bool:
    """Whether a candidate has the address of one machine, and a valid port."""
    words = candidate.removeprefix(CANDIDATE).split()
    try:
        address, port = ipaddress.ip_address(words[4]), int(words[5])
    except (IndexError, ValueError):
        return False
    return not (address.is_multicast or address.is_unspecified) and 0 < port < 65_536


def with_repair(answer: str) -> str:
    """Add to an answer the request for Opus packets that include a copy of the previous packet (RFC 7587,
    section 7).
    """
    form = OPUS.search(answer)
    if form is None or f"a=fmtp:{form[1]} " in answer:
        return answer
    return answer.replace(form[0], f"{form[0]}\r\na=fmtp:{form[1]} minptime=10;useinbandfec=1", 1)
