"""Offers of WebRTC: what is kept of one, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.protocol.sdp import (
    MAX_CANDIDATES,
    MAX_LINE_CHARS,
    MAX_LINES,
    MAX_OFFER_BYTES,
    read_offer,
    with_repair,
)
from tests.support.offers import LINES, OFFER


def offer_of(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode()


def test_a_browsers_offer_is_kept_but_for_names_of_mdns_and_the_end_of_candidates() -> None:
    offer = read_offer(OFFER)
    assert offer.has_channel
    left_out = [line for line in LINES if ".local " in line or line == "a=end-of-candidates"]
    assert len(left_out) == 2
    assert offer.text.encode() == offer_of(*(line for line in LINES if line not in left_out))
    assert read_offer(offer.text.encode()) == offer


def test_lines_may_end_without_a_carriage_return_and_data_channels_be_absent() -> None:
    audio = LINES[: next(at for at, line in enumerate(LINES) if line.startswith("m=application"))]
    offer = read_offer("\n".join(audio).encode())
    assert not offer.has_channel
    assert offer.text.endswith("\r\n")


@pytest.mark.parametrize(
    "place",
    [
        " 0a1b2c3d.local 5000",  # the second space is no part of the form, and aiortc reads it
        "0a1b2c3d.local\t5000",
        "224.0.0.251 5353",
        "ff02::fb 5353",
        "0.0.0.0 9",
        "192.0.2.7 0",
        "192.0.2.7 65536",
        "peer.example.com 5000",
    ],
)
def test_a_candidate_is_the_address_and_port_of_one_machine(place: str) -> None:
    kept = read_offer(OFFER)
    candidate = f"a=candidate:9 1 udp 1677729535 {place} typ host"
    assert read_offer(offer_of(*LINES, candidate)) == kept
    good = "a=candidate:9 1 udp 1677729535 2001:db8::7 65535 typ host"
    assert read_offer(offer_of(*LINES, good)).text == f"{kept.text}{good}\r\n"


CANDIDATE = "a=candidate:2 1 udp 1677729535 192.0.2.7 {} typ host"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "its first line has to be v=0"),
        (b"\xff" + OFFER, "its first line has to be v=0"),
        (OFFER + bytes(MAX_OFFER_BYTES), f"the limit is {MAX_OFFER_BYTES}"),
        (offer_of(*LINES, *["a=x"] * MAX_LINES), f"the limit is {MAX_LINES}"),
        (offer_of(*LINES, "a=" + "x" * MAX_LINE_CHARS), f"the limit is {MAX_LINE_CHARS}"),
        (offer_of(*LINES, "m=video 9 UDP/TLS/RTP/SAVPF 96"), "'video'"),
        (offer_of(*LINES, "m=audio 9 UDP/TLS/RTP/SAVPF 111"), "2 sections of audio"),
        (offer_of(*LINES, "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"), "2 of data channels"),
        (offer_of("v=0", "m=application 9 UDP/DTLS/SCTP webrtc-datachannel"), "0 sections of audio"),
        (OFFER.replace(b"opus/48000/2", b"opus/8000"), "no codec opus/48000/2"),
        (OFFER.replace(b"a=ice-pwd", b"a=ice-word"), "no line a=ice-pwd:"),
        (
            offer_of(*LINES, *(CANDIDATE.format(port) for port in range(1, MAX_CANDIDATES + 1))),
            f"{MAX_CANDIDATES + 1} candidates in the offer, the limit is {MAX_CANDIDATES}",
        ),
    ],
)
def test_an_offer_that_is_refused_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        read_offer(data)
    assert reason in str(refused.value)


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(OFFER) - 1), min_size=1, max_size=8), st.binary(min_size=1, max_size=8))
def test_a_damaged_offer_is_read_or_refused(places: list[int], values: bytes) -> None:
    data = bytearray(OFFER)
    for place, value in zip(places, values, strict=False):
        data[place] = value
    try:
        offer = read_offer(bytes(data))
    except ProtocolError:
        return
    assert offer.text.startswith("v=0\r\n")


def test_an_answer_asks_for_packets_that_repair_lost_ones_once() -> None:
    answer = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=rtpmap:111 opus/48000/2\r\na=sendrecv\r\n"
    repaired = with_repair(answer)
    assert "a=rtpmap:111 opus/48000/2\r\na=fmtp:111 minptime=10;useinbandfec=1\r\na=sendrecv" in repaired
    assert with_repair(repaired) == repaired
    assert with_repair("v=0\r\n") == "v=0\r\n"
