"""G.711 compared with the tables of the recommendation, FFmpeg's decoder and properties of a quantiser."""

from __future__ import annotations

import av
import numpy as np
import pytest

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.errors import AudioError

ALL_CODES = bytes(range(256))

TABLE_ENDS = {
    # Code: value at the decoder's output, of tables 2a, 2b (mu, 14 bits) and 1a, 1b (A, 13 bits).
    Law.MU: {0x80: 8031, 0x8F: 4191, 0x9F: 2079, 0xAF: 1023, 0xBF: 495, 0xEF: 33, 0xFE: 2, 0xFF: 0, 0x00: -8031},  # noqa: E501
    Law.A: {0xAA: 4032, 0xA5: 2112, 0xB5: 1056, 0x85: 528, 0x95: 264, 0xE5: 132, 0xD5: 1, 0x55: -1, 0x2A: -4032},  # noqa: E501
}  # fmt: skip
UNITS = {Law.MU: 8192, Law.A: 4096}
CODECS = {Law.MU: "pcm_mulaw", Law.A: "pcm_alaw"}


def levels_of(data: bytes, law: Law) -> list[int]:
    """What codes stand for, in 16-bit levels."""
    return [round(float(value) * 32768) for value in g711.decode(data, law)]


@pytest.mark.parametrize("law", Law)
def test_codes_have_the_values_of_the_recommendation(law: Law) -> None:
    values = TABLE_ENDS[law]
    decoded = g711.decode(bytes(values), law) * UNITS[law]
    assert [float(value) for value in decoded] == list(values.values())


@pytest.mark.parametrize("law", Law)
def test_every_code_decodes_as_ffmpeg_decodes_it(law: Law) -> None:
    decoder = av.CodecContext.create(CODECS[law], "r")
    decoder.sample_rate, decoder.layout = 8000, "mono"  # type: ignore[attr-defined]
    (frame,) = decoder.decode(av.Packet(ALL_CODES))  # type: ignore[attr-defined]
    assert levels_of(ALL_CODES, law) == frame.to_ndarray()[0].tolist()


@pytest.mark.parametrize("law", Law)
def test_what_was_decoded_is_encoded_to_the_same_code(law: Law) -> None:
    encoded = g711.encode(g711.decode(ALL_CODES, law), law)
    # Mu-law has two zeros; the encoder knows the positive one.
    assert encoded == (ALL_CODES.replace(b"\x7f", b"\xff") if law is Law.MU else ALL_CODES)


@pytest.mark.parametrize("law", Law)
def test_every_level_becomes_a_code_within_half_a_step(law: Law) -> None:
    levels = np.arange(-32768, 32768)
    got = np.array(levels_of(g711.encode((levels / 32768).astype(np.float32), law), law))
    assert (np.diff(got) >= 0).all()
    known = np.unique(levels_of(ALL_CODES, law))
    # Between two segments the decision value is the larger segment's border, not the middle.
    step = np.pad(np.diff(known), 1, mode="edge")
    widest = np.maximum(step[:-1], step[1:])[np.searchsorted(known, got)]
    within = np.abs(levels) <= known.max()
    assert (2 * np.abs(got - levels) <= widest)[within].all()
    np.testing.assert_array_equal(got[~within], np.sign(levels[~within]) * known.max())


@pytest.mark.parametrize("law", Law)
def test_what_is_too_loud_is_clipped(law: Law) -> None:
    loudest = g711.encode(np.array([1.0, -1.0], np.float32), law)
    assert g711.encode(np.array([7.0, -7.0], np.float32), law) == loudest
    assert g711.decode(loudest, law).tolist() == [-g711.decode(loudest, law)[1], g711.decode(loudest, law)[1]]


@pytest.mark.parametrize("law", Law)
def test_a_sample_that_is_no_number_is_refused(law: Law) -> None:
    with pytest.raises(AudioError, match="sample 1 of 2 is nan, it must be finite"):
        g711.encode(np.array([0.0, np.nan], np.float32), law)


@pytest.mark.parametrize("law", Law)
def test_nothing_is_nothing(law: Law) -> None:
    assert g711.encode(np.zeros(0, np.float32), law) == b""
    assert g711.decode(b"", law).size == 0
