"""The same sessions on mlx and on torch: tokens identical in float32, samples within 1e-4.

Where two scores of a choice are nearer than 1e-4 to each other, both are right: a session is compared up to
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.backends.base import FloatArray, StepInputs, StepOutputs
from antiphon.backends.mlx.loading import make as make_mlx
from antiphon.backends.torch import sampling as torch_sampling
from antiphon.backends.torch.loading import make as make_torch
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import GREEDY, SAMPLED, Driver, voice
from tests.support.make_checkpoint import make_checkpoint

SLOTS = 3
FRAMES = 60  # the language model's window is 24 frames, Mimi's is 8
MARGIN = 1e-4
PARAMETERS = (
    GREEDY,
    SAMPLED,
    SamplingParameters(text_topk=0, audio_topk=0, text_seed=2**63 + 1, audio_seed=9),
)
DESCRIPTION = {
    "conditioners": {
        "description": {
            "type": "lut",
            "lut": {
                "n_bins": 2,
                "dim": 8,
                "tokenizer": "noop",
                "possible_values": ["very_bad", "very_good"],
            },
        }
    },
    "fuser": {"sum": ["description"], "cross": [], "prepend": []},
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "codec": {"kind": "codec"},
    "moshi": {"kind": "moshi"},
    "personaplex": {"kind": "personaplex"},
    "stt": {"kind": "stt"},
    "hibiki": {
        "kind": "hibiki",
        "depformer_weights_per_step_schedule": [0, 1, 2, 3, 4, 4, 5, 5],
        "depformer_low_rank_embeddings": 16,
        **DESCRIPTION,
    },
    "other norms and rotation": {
        "kind": "moshi",
        "norm": "layer_norm_f32",
        "positional_embedding": "rope_concat",
        "hidden_scale": 4.5,
        "layer_scale": 0.1,
        "bias_proj": True,
    },
}


class Margins:
    """By how much each row's choices were won, the closest of a frame, as torch made them."""

    def __init__(self) -> None:
        self.closest = np.full(SLOTS, np.inf)

    def __call__(
        self, logits: Tensor, temperature: Tensor, topk: Tensor, noise: Tensor | None, **options: Any
    ) -> Tensor:
        chosen = self._choose(logits, temperature, topk, noise, **options)
        scores = logits
        if noise is not None:
            kept = torch.where((topk == 0) | (topk > logits.shape[1]), logits.shape[1], topk)
            edge_of_topk = logits.sort(dim=1, descending=True).values.gather(1, kept[:, None] - 1)
            drawn = (logits + noise).masked_fill(logits < edge_of_topk, -torch.inf)
            scores = torch.where(temperature[:, None] == 0, logits, drawn)
        won = scores.gather(1, chosen[:, None])
        others = scores.scatter(1, chosen[:, None], -torch.inf)
        edge = (won - others).abs().amin(dim=1).numpy()
        self.closest[: len(edge)] = np.minimum(self.closest[: len(edge)], edge)
        return chosen

    _choose = staticmethod(torch_sampling.choose)


@contextmanager
def margins() -> Iterator[Margins]:
    """Watch every choice that torch makes meanwhile."""
    watched = Margins()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_sampling, "choose", watched)
        yield watched


def ticks(pcm: FloatArray) -> Iterator[StepInputs]:
    """Sessions that join, pause, leave and begin again: ``pcm [SLOTS, FRAMES, frame_samples]``."""
    random = np.random.default_rng(1)
    for index in range(FRAMES):
        reset = np.array([index == 0, index in (0, 41), index in (0, 7)])
        rows = np.flatnonzero(reset | (random.random(SLOTS) < 0.8)).astype(np.int32)
        if rows.size:
            yield StepInputs(rows, reset[rows], pcm[rows, index])


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("mlx-parity") / "model"
    return load_checkpoint(str(make_checkpoint(folder, **SHAPES[request.param])))


def test_sessions_are_torchs(checkpoint: Checkpoint) -> None:
    dtype = None if checkpoint.spec.lm is None else "float32"
    ours = make_mlx(checkpoint, slots=SLOTS, dtype=dtype)
    oracle = make_torch(checkpoint, slots=SLOTS, device="cpu", dtype=dtype)
    for row, parameters in enumerate(PARAMETERS):
        ours.set_parameters(row, parameters)
        oracle.set_parameters(row, parameters)
    pcm = np.stack([voice(seed, FRAMES, ours.info) for seed in range(SLOTS)])
    compared = named = 0
    open_rows = np.ones(SLOTS, dtype=np.bool_)
    with margins() as watched:
        for inputs in ticks(pcm):
            rows = inputs.rows
            open_rows[rows[inputs.reset]] = True
            watched.closest[:] = np.inf
            # The oracle's rows stand each in its own place, which is how its choices are found again.
            wanted, got = oracle.step(replace(inputs, is_fixed=True)), ours.step(inputs)
            open_rows[rows] &= watched.closest[rows] > MARGIN
            assert_rows_equal(got, wanted, open_rows[rows])
            named += rows.size
            compared += int(open_rows[rows].sum())
    assert compared > 0.9 * named


def assert_rows_equal(got: StepOutputs, wanted: StepOutputs, rows: np.ndarray[Any, Any]) -> None:
    """Compare two backends' outputs of one tick, in the given rows."""
    for flags in ("consumed", "emitted", "text_tokens"):
        one, other = getattr(got, flags), getattr(wanted, flags)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one[rows], other[rows], err_msg=flags)
    emitted = rows & wanted.emitted
    for what in ("pcm", "vad"):
        one, other = getattr(got, what), getattr(wanted, what)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one[emitted], other[emitted], rtol=0, atol=1e-4, err_msg=what)


def test_the_default_model_runs(tmp_path: Path) -> None:
    backend = make_mlx(load_checkpoint("tiny"), slots=1)
    replies = Driver(backend).run(0, voice(1, 3, backend.info))
    assert replies[-1].pcm is not None
    assert np.isfinite(replies[-1].pcm).all()
