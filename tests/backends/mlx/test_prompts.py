"""Prompts on mlx: a primed row continues like torch's, for any width of a pass."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.backends.base import Backend
from antiphon.backends.mlx import executor
from antiphon.backends.mlx.loading import make as make_mlx
from antiphon.backends.torch.loading import make as make_torch
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from tests.backends.contract import GREEDY, Driver, Reply, assert_same, voice
from tests.support.make_checkpoint import make_checkpoint

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("mlx-prompts") / "persona"
    return load_checkpoint(str(make_checkpoint(folder, kind="personaplex", dtype="float32")))


@pytest.fixture(scope="module")
def prompts(checkpoint: Checkpoint) -> dict[str, Prompt]:
    """As long as the context, of tokens; and one that begins with a voice and embedded frames."""
    lm = checkpoint.spec.lm
    assert lm is not None
    random = np.random.default_rng(4)
    tokens = random.integers(0, min(lm.card, lm.text_card), (lm.context, 1 + lm.n_q)).astype(np.int32)
    frames = random.normal(0, 0.1, (5, checkpoint.spec.frame_samples)).astype(np.float32)
    embedded = random.normal(0, 1, (3, lm.dim)).astype(np.float32)
    return {
        "tokens": Prompt(tokens),
        "voice": Prompt(tokens[:12], voice=frames),
        "embedded": Prompt(tokens[:12], embedded=embedded),
    }


def answered(backend: Backend, prompt: Prompt) -> list[Reply]:
    backend.set_parameters(1, GREEDY)
    while not backend.prime(1, prompt).is_done:
        pass
    driver = Driver(backend)
    return [driver.tick({1: frame})[1] for frame in voice(6, 12, backend.info)]


@pytest.mark.parametrize("which", ["tokens", "voice", "embedded"])
@pytest.mark.parametrize("pass_frames", [1, 8])
def test_a_primed_row_goes_on_as_torchs(
    checkpoint: Checkpoint,
    prompts: dict[str, Prompt],
    which: str,
    pass_frames: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "PASS_FRAMES", pass_frames)
    ours = answered(make_mlx(checkpoint, slots=2, device="cpu", dtype="float32"), prompts[which])
    theirs = answered(make_torch(checkpoint, slots=2, device="cpu", dtype="float32"), prompts[which])
    assert_same(ours, theirs, TOLERANCE)
    assert len({reply.text_token for reply in ours}) > 3
