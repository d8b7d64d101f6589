"""Numbered messages, acknowledgements and claims: the exact bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.errors import ProtocolError
from antiphon.protocol import moshi, resume
from antiphon_client.thread import CallThread

VECTORS = json.loads((Path(__file__).parent / "vectors" / "resume.json").read_text())
TOKEN = resume.token_of(VECTORS["token"])


@pytest.mark.parametrize("vector", VECTORS["claims"], ids=lambda it: it["hex"][-8:])
def test_claims(vector: dict[str, object]) -> None:
    claim = resume.Claim(TOKEN, *(int(str(vector[name])) for name in ("seq", "frame", "input_frame")))
    assert resume.encode_claim(claim).hex() == vector["hex"]
    assert resume.decode_claim(bytes.fromhex(str(vector["hex"]))) == claim


@pytest.mark.parametrize("vector", VECTORS["acks"], ids=lambda it: it["hex"][-8:])
def test_acknowledgements(vector: dict[str, object]) -> None:
    ack = resume.Ack(int(str(vector["seq"])), int(str(vector["frame"])))
    assert resume.encode_ack(ack).hex() == vector["hex"]
    assert resume.decode_ack(bytes.fromhex(str(vector["hex"]))[1:]) == ack


def test_numbered_messages() -> None:
    for vector in VECTORS["numbered"]:
        message = bytes.fromhex(vector["message"])
        assert resume.encode_numbered(vector["seq"], message).hex() == vector["hex"]
        assert resume.decode_numbered(bytes.fromhex(vector["hex"])[1:]) == (vector["seq"], message)


def test_a_token_travels_as_text() -> None:
    assert resume.token_text(TOKEN) == VECTORS["token"]
    for wrong in ("", "AAEC", "not base64!", VECTORS["token"] + "AAAA"):
        with pytest.raises(ProtocolError, match="a token of"):
            resume.token_of(wrong)


@pytest.mark.parametrize("size", [0, 1, 29, 31])
def test_a_claim_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=r"begins with tag 0x13 and 29 bytes, got \w+ and \d+"):
        resume.decode_claim(bytes((resume.CLAIM,)) * size)


def test_a_claim_of_another_version_is_refused() -> None:
    later = bytearray(resume.encode_claim(resume.Claim(TOKEN, 0, 0, 0)))
    later[1] = 2
    with pytest.raises(ProtocolError, match="a claim of version 2, 1 is known"):
        resume.decode_claim(bytes(later))


def test_a_client_passes_over_what_came_before_and_misses_nothing_in_silence() -> None:
    thread = CallThread()
    text = moshi.encode(moshi.Text(" hi"))
    assert thread.unwrap(resume.encode_numbered(0, text)) == text
    assert thread.unwrap(resume.encode_numbered(0, text)) is None
    with pytest.raises(ProtocolError, match="message 2 follows message 0: 1 are lost"):
        thread.unwrap(resume.encode_numbered(2, text))
