from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import UnsupportedError
from antiphon.models.prompt import IntArray, Prompt, check_prompt
from antiphon.models.spec import LMSpec

LM = LMSpec(
    dim=4, num_layers=1, num_heads=1, context=6, n_q=2, dep_q=1, card=8, text_card=20, delays=(0, 1, 1)
)


def frames(count: int, value: int = 1) -> IntArray:
    return np.full((count, 3), value, np.int32)


def test_the_key_depends_on_every_part_and_on_nothing_else() -> None:
    pcm, embedded = np.ones((2, 5), np.float32), np.ones((2, 4), np.float32)
    prompts = [
        Prompt(frames(4)),
        Prompt(frames(5)),
        Prompt(frames(4, 2)),
        Prompt(frames(4), voice=pcm),
        Prompt(frames(4), embedded=pcm),
        Prompt(frames(4), voice=2 * pcm),
        Prompt(frames(4), embedded=embedded),
        Prompt(frames(4), voice=pcm, embedded=embedded),
    ]
    assert len({prompt.key for prompt in prompts}) == len(prompts)
    assert Prompt(frames(4), voice=pcm.copy()).key == prompts[3].key
    assert Prompt(np.asfortranarray(frames(4))).key == prompts[0].key


def test_a_prompt_that_fits_passes() -> None:
    check_prompt(Prompt(frames(6), voice=np.zeros((5, 2), np.float32)), LM)
    check_prompt(Prompt(frames(2, 8), embedded=np.zeros((1, 4), np.float32)), LM)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (Prompt(frames(7)), "a prompt of 7 frames, but this model takes 2 to 6"),
        (Prompt(frames(1)), "a prompt of 1 frames, but this model takes 2 to 6"),
        (Prompt(frames(3, 9)), "audio tokens go from 9 to 9, this model's from 0 to 8"),
        (Prompt(frames(3)[:, :2]), r"int32 \[3, 2\], but this model needs int32 \[T, 3\]"),
        (Prompt(frames(3), np.zeros((3, 2), np.float32)), "a voice of 3 frames in a prompt of 3"),
        (
            Prompt(frames(3), embedded=np.zeros((3, 4), np.float32)),
            r"inputs \[3, 4\] in a prompt of 3 frames, but this model needs \[fewer than 3, 4\]",
        ),
    ],
)
def test_one_that_does_not_is_refused_with_both_numbers(prompt: Prompt, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_prompt(prompt, LM)


@pytest.mark.parametrize("delays", [(1, 1, 1), (0, 2, 2)])
def test_a_model_with_longer_delays_takes_none(delays: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=f"this model's delays are {delays[0]} and {max(delays)}"):
        check_prompt(Prompt(frames(3)), replace(LM, delays=delays))
