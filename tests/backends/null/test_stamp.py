from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import FloatArray
from antiphon.backends.null import STAMP_SAMPLES, WordArray, extend_history, hash_frames, write_stamps
from antiphon.errors import AudioError
from tests.support.stamp import Stamp, read_stamp

WORD = st.integers(0, 2**32 - 1)


def stamped(stamps: list[Stamp], samples: int = 1920) -> FloatArray:
    pcm = np.zeros((len(stamps), samples), dtype=np.float32)
    columns = [[stamp.life, stamp.frame, stamp.frame_hash, stamp.history] for stamp in stamps]
    write_stamps(pcm, *np.array(columns, dtype=np.uint32).T)
    return pcm


@given(st.lists(st.builds(Stamp, WORD, WORD, WORD, WORD), min_size=1, max_size=5))
def test_a_stamp_is_read_as_it_was_written(stamps: list[Stamp]) -> None:
    assert [read_stamp(frame) for frame in stamped(stamps)] == stamps


@given(st.builds(Stamp, WORD, WORD, WORD, WORD), st.floats(0.01, 4.0))
def test_a_stamp_survives_sixteen_bits_and_any_gain(stamp: Stamp, gain: float) -> None:
    sixteen_bits = np.clip(stamped([stamp])[0] * gain * 32767, -32768, 32767).astype("<i2")
    assert read_stamp(sixteen_bits.astype(np.float32) / 32768) == stamp


@given(st.builds(Stamp, WORD, WORD, WORD, WORD), st.integers(0, STAMP_SAMPLES - 1))
def test_one_wrong_bit_is_seen(stamp: Stamp, wrong: int) -> None:
    pcm = stamped([stamp])[0]
    pcm[wrong] = -pcm[wrong]
    with pytest.raises(
        AudioError, match=r"no stamp: it would begin with 0xa471f09e|a damaged stamp: its check is"
    ):
        read_stamp(pcm)


@pytest.mark.parametrize("shape", [(STAMP_SAMPLES - 1,), (1, 1920)])
def test_a_frame_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(AudioError) as caught:
        read_stamp(np.zeros(shape, dtype=np.float32))
    assert str(caught.value) == f"a stamp needs 192 samples, this frame is {list(shape)}"


def test_silence_carries_no_stamp() -> None:
    with pytest.raises(AudioError, match="with 0x00000000"):
        read_stamp(np.zeros(1920, dtype=np.float32))


@given(st.integers(0, 1919), st.integers(0, 2**16))
def test_the_hash_sees_the_smallest_change_of_any_sample(sample: int, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(-32768, 32767, size=(2, 1920))
    noise[1] = noise[0]
    noise[1, sample] += 1
    one, other = hash_frames((noise / 32768).astype(np.float32))
    assert one != other


def test_the_hash_of_a_row_does_not_depend_on_the_batch() -> None:
    pcm = np.random.default_rng(0).standard_normal((7, 1920)).astype(np.float32)
    alone = [int(hash_frames(row[None])[0]) for row in pcm]
    assert hash_frames(pcm).tolist() == alone
    assert hash_frames(pcm[::2]).tolist() == alone[::2]
    assert len(set(alone)) == len(alone)


def test_the_history_sees_loss_and_reordering() -> None:
    def history(frames: list[int]) -> int:
        word: WordArray = np.zeros(1, dtype=np.uint32)
        for frame in frames:
            word = extend_history(word, np.array([frame], dtype=np.uint32))
        return int(word[0])

    orders = [[1, 2, 3], [2, 1, 3], [1, 2], [2, 3], [1, 2, 3, 3], [0, 1, 2, 3], [], [0]]
    assert len({history(order) for order in orders}) == len(orders)
