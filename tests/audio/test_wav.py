"""WAV files compared with other implementations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sphn

from antiphon.audio.wav import encode_wav, streamed_header, write_wav
from antiphon.errors import AudioError
from tests.audio.signals import speech
from tests.support.wav import decode_wav

PCM = speech(0.1)


@pytest.mark.parametrize("is_float", [False, True])
def test_what_is_written_is_read(tmp_path: Path, is_float: bool) -> None:
    write_wav(tmp_path / "a.wav", PCM, 24_000, is_float=is_float)
    pcm, rate = sphn.read(str(tmp_path / "a.wav"))
    assert rate == 24_000
    assert pcm.shape == (1, PCM.size)
    np.testing.assert_allclose(pcm[0], PCM, atol=0 if is_float else 0.5 / 32768)


def test_a_file_of_unknown_length_begins_as_one_of_a_known_length() -> None:
    whole, header = encode_wav(PCM, 24_000), streamed_header(24_000)
    longest = b"\xff\xff\xff\xff"
    assert header == whole[:4] + longest + whole[8:40] + longest
    np.testing.assert_array_equal(decode_wav(header + whole[44:])[0], decode_wav(whole)[0])


def test_samples_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(AudioError, match="sample 1 of 2 is nan, it must be finite"):
        encode_wav(np.array([0, np.nan], np.float32), 24_000)
