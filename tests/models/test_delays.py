"""The delay cache compared with upstream's, for rows that start, pause and restart at random."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moshi.models.lm import LMGen, LMModel
from numpy.typing import NDArray

from antiphon.models.delays import UNGENERATED, DelayRings
from antiphon.models.spec import LMSpec

CARD, TEXT_CARD = 11, 13
ROWS = 3
ONLY = np.array([0], np.int32)
SPECS = {
    "moshi": (4, 2, (0, 0, 1, 0, 1)),
    "hibiki": (4, 2, (0, 0, 2, 0, 2)),
    "stt": (2, 0, (3, 0, 0)),
    "tts": (3, 3, (0, 0, 2, 2)),
    "listens late": (3, 1, (1, 0, 2, 4)),
    "no delay": (2, 1, (0, 0, 0)),
}


def make_spec(name: str) -> LMSpec:
    n_q, dep_q, delays = SPECS[name]
    return LMSpec(8, 1, 1, 4, n_q, dep_q, CARD, TEXT_CARD, delays)


class Upstream:
    """Upstream's LMGen over a model that predicts what it is told, and records what it was fed."""

    def __init__(self, name: str) -> None:
        self.spec = make_spec(name)
        self.fed = torch.zeros(0)
        self.text = torch.zeros(ROWS, dtype=torch.long)
        self.voice = torch.zeros(ROWS, self.spec.dep_q, dtype=torch.long)
        model = LMModel(
            delays=list(self.spec.delays), n_q=self.spec.n_q, dep_q=self.spec.dep_q, card=CARD,
            text_card=TEXT_CARD, dim=8, num_heads=1, num_layers=1, context=4, hidden_scale=1, gating="silu",
            depformer_dim=8, depformer_num_heads=1, depformer_num_layers=1, depformer_weights_per_step=True,
            depformer_multi_linear=True, depformer_dim_feedforward=8,
        )  # fmt: skip
        model.eval()
        model.forward_text = self._forward_text  # type: ignore[method-assign, assignment]
        self.gen = LMGen(model, use_sampling=False, support_out_of_sync=True)
        self.gen.streaming_forever(ROWS)
        if self.spec.dep_q:
            state = self.gen._streaming_state
            assert state is not None
            state.graphed_depth = self._forward_depth  # type: ignore[assignment]

    def _forward_depth(self, text: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.voice

    def _forward_text(self, sequence: torch.Tensor, *conditions: object) -> tuple[torch.Tensor, torch.Tensor]:
        self.fed = sequence.clone()
        return torch.zeros(ROWS, 1, 8), torch.nn.functional.one_hot(self.text, TEXT_CARD)[:, None, None]

    def reset(self, mask: NDArray[np.bool_]) -> None:
        self.gen.reset_streaming(torch.from_numpy(mask))

    def step(
        self,
        heard: NDArray[np.int32],
        text: NDArray[np.int32],
        voice: NDArray[np.int32],
        exec_mask: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self.text = torch.from_numpy(text).long()
        self.voice = torch.from_numpy(voice).long()
        self.gen.set_exec_mask(torch.from_numpy(exec_mask))
        out = self.gen.step(torch.from_numpy(heard).long()[:, :, None])
        assert out is not None
        return self.fed[:, :, 0].numpy(), out[:, :, 0].numpy()


@functools.cache
def upstream(name: str) -> Upstream:
    return Upstream(name)


masks = st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).map(lambda row: np.array(row, dtype=np.bool_))
ticks = st.lists(st.tuples(masks, st.just(None) | masks), min_size=1, max_size=30)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=25, deadline=None)
@given(ticks=ticks, seed=st.integers(0, 2**32 - 1))
def test_every_input_and_output_is_upstreams(
    name: str, ticks: list[tuple[NDArray[np.bool_], NDArray[np.bool_] | None]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    theirs, spec = upstream(name), make_spec(name)
    theirs.reset(np.ones(ROWS, dtype=np.bool_))
    ours = DelayRings(spec, ROWS)
    for exec_mask, reset in ticks:
        if reset is not None:
            theirs.reset(reset)
            ours.reset(rows_of(reset))
        heard = rng.integers(0, CARD, (ROWS, spec.n_q - spec.dep_q), dtype=np.int32)
        text = rng.integers(0, TEXT_CARD, ROWS, dtype=np.int32)
        voice = rng.integers(0, CARD, (ROWS, spec.dep_q), dtype=np.int32)
        fed, out = theirs.step(heard, text, voice, exec_mask)
        rows = rng.permutation(rows_of(exec_mask))
        np.testing.assert_array_equal(ours.inputs(rows, heard[rows]), fed[rows])
        tokens, emitted = ours.outputs(rows, text[rows], voice[rows])
        np.testing.assert_array_equal(tokens, out[rows])
        np.testing.assert_array_equal(emitted, (out[rows] != UNGENERATED).all(axis=1))


def rows_of(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    return np.flatnonzero(mask).astype(np.int32)


def run(cache: DelayRings, seed: int, steps: int, rows: int) -> NDArray[np.int32]:
    """Step the first ``rows`` rows with tokens that follow from the seed; return what each step gave."""
    rng = np.random.default_rng(seed)
    everyone = np.arange(rows, dtype=np.int32)
    frames = []
    for _ in range(steps):
        fed = cache.inputs(everyone, rng.integers(0, CARD, (rows, 2), dtype=np.int32))
        text = rng.integers(0, TEXT_CARD, rows, dtype=np.int32)
        tokens, _ = cache.outputs(everyone, text, rng.integers(0, CARD, (rows, 2), dtype=np.int32))
        frames.append(np.concatenate([fed, tokens], axis=1))
    return np.array(frames)


@pytest.mark.parametrize("name", ["moshi", "hibiki"])
def test_first_frames_do_not_emit(name: str) -> None:
    spec = make_spec(name)
    cache = DelayRings(spec, 1)
    emitted = []
    for _ in range(6):
        cache.inputs(ONLY, np.zeros((1, 2), np.int32))
        _, is_complete = cache.outputs(ONLY, np.zeros(1, np.int32), np.zeros((1, 2), np.int32))
        emitted.append(bool(is_complete[0]))
    assert emitted == [False] * spec.max_delay + [True] * (6 - spec.max_delay)


def test_first_frame_heard_reaches_nothing() -> None:
    fed = []
    for first in (0, 7):
        cache = DelayRings(make_spec("moshi"), 1)
        for heard in (first, 1, 2, 3):
            codes = np.full((1, 2), heard, np.int32)
            fed.append(cache.inputs(ONLY, codes).copy())
            cache.outputs(ONLY, np.zeros(1, np.int32), np.zeros((1, 2), np.int32))
    acoustic_of_first = fed[1][0, 4], fed[5][0, 4]  # delay 1: read at step 1, still initial
    assert acoustic_of_first == (CARD, CARD)
    np.testing.assert_array_equal(fed[:4], fed[4:])


def test_reset_row_is_like_a_fresh_one() -> None:
    used, fresh = DelayRings(make_spec("hibiki"), 2), DelayRings(make_spec("hibiki"), 2)
    run(used, 1, 9, 2)
    used.reset([0, 1])
    np.testing.assert_array_equal(run(used, 2, 9, 2), run(fresh, 2, 9, 2))


def test_rows_that_are_not_named_keep_their_state() -> None:
    cache = DelayRings(make_spec("moshi"), 3)
    run(cache, 1, 5, 3)
    before = cache.snapshot(2)
    run(cache, 2, 5, 2)
    after = cache.snapshot(2)
    np.testing.assert_array_equal(after["tokens"], before["tokens"])
    assert after["offset"] == before["offset"]


def test_rows_may_come_in_any_order() -> None:
    cache, other = DelayRings(make_spec("moshi"), 3), DelayRings(make_spec("moshi"), 3)
    up, rng = np.array([0, 2], np.int32), np.random.default_rng(3)
    for _ in range(6):
        heard = rng.integers(0, CARD, (2, 2), dtype=np.int32)
        text = rng.integers(0, TEXT_CARD, 2, dtype=np.int32)
        fed, back = cache.inputs(up, heard), other.inputs(up[::-1], heard[::-1])
        np.testing.assert_array_equal(fed, back[::-1])
        tokens, _ = cache.outputs(up, text, heard)
        turned, _ = other.outputs(up[::-1], text[::-1], heard[::-1])
        np.testing.assert_array_equal(tokens, turned[::-1])


def test_failed_step_can_be_repeated() -> None:
    tried, once = DelayRings(make_spec("moshi"), 1), DelayRings(make_spec("moshi"), 1)
    run(tried, 1, 4, 1)
    run(once, 1, 4, 1)
    tried.inputs(ONLY, np.full((1, 2), 9, np.int32))  # and then the model failed
    np.testing.assert_array_equal(run(tried, 5, 6, 1), run(once, 5, 6, 1))


def test_restored_row_continues_the_same() -> None:
    cache, alone = DelayRings(make_spec("hibiki"), 3), DelayRings(make_spec("hibiki"), 1)
    run(cache, 1, 7, 1)
    run(alone, 1, 7, 1)
    for source, target in ((0, 2), (2, 0)):
        state = cache.snapshot(source)
        cache.reset([0, 1, 2])
        cache.restore(target, state)
    np.testing.assert_array_equal(run(cache, 3, 9, 1), run(alone, 3, 9, 1))


def test_snapshot_of_another_model_is_refused() -> None:
    state = DelayRings(make_spec("moshi"), 1).snapshot(0)
    with pytest.raises(ValueError, match=r"\(5, 3\) does not fit \(5, 4\)"):
        DelayRings(make_spec("hibiki"), 1).restore(0, state)


def test_more_codebooks_than_listened_to_are_ignored() -> None:
    few, many = DelayRings(make_spec("moshi"), 1), DelayRings(make_spec("moshi"), 1)
    heard = np.arange(5, dtype=np.int32)[None]
    for cache, codes in ((few, heard[:, :2]), (many, heard)):
        cache.inputs(ONLY, codes)
    np.testing.assert_array_equal(few.tokens, many.tokens)


def test_state_bytes_counts_both_arrays() -> None:
    assert DelayRings(make_spec("moshi"), 2).state_bytes == 2 * 5 * 3 * 4 + 2 * 8
