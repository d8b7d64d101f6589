"""The encoder's lessons: what it hears and is to write, the losses, and a trainer that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.tests.train.made_up import TINY
from lab.train.codec import load_mimi
from lab.train.encoder import SCHEDULE, Branch, Settings, Trainer, agreement
from lab.train.excerpts import Excerpts, Shape, latent_of
from lab.train.questions import Asked, make_shard, read_shard
from lab.train.segments import FRAME_SAMPLES

SHAPE = Shape(batch=3, frames=10)
QUICK = replace(SCHEDULE, warm_up_steps=1, total_steps=20)


@pytest.fixture(scope="module")
def mimi() -> Any:
    return load_mimi(TINY).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    make_shard(folder / "0000.npz", 0, Asked(), threads=1, utterances=8)
    return folder


@pytest.fixture(scope="module")
def excerpts(mimi: Any, asked: Path) -> Excerpts:
    return Excerpts(read_shard(asked / "0000.npz"), mimi, SHAPE, 5)


def test_a_batch_is_what_its_number_says(excerpts: Excerpts) -> None:
    first, again, other = excerpts[3], excerpts[3], excerpts[4]
    assert first.heard.shape == (3, 1, 10 * FRAME_SAMPLES)
    assert first.wanted.shape == (3, 128, 10)
    torch.testing.assert_close(first.heard, again.heard, rtol=0, atol=0)
    assert not torch.equal(first.heard, other.heard)


def test_where_nobody_speaks_silence_is_wanted(mimi: Any, asked: Path) -> None:
    quiet = Excerpts(read_shard(asked / "0000.npz"), mimi, replace(SHAPE, quiet_share=1.0), 5)[0]
    silence = latent_of(mimi, torch.zeros_like(quiet.heard))
    assert quiet.heard.abs().max() > 0.001
    torch.testing.assert_close(quiet.wanted, silence)


def test_what_is_wanted_does_not_depend_on_how_loud_it_was_said(mimi: Any, asked: Path) -> None:
    utterances = read_shard(asked / "0000.npz")
    fainter = [replace(one, pcm=one.pcm * np.float32(0.25)) for one in utterances]
    loud, faint = (Excerpts(some, mimi, SHAPE, 5)[0] for some in (utterances, fainter))
    torch.testing.assert_close(loud.wanted, faint.wanted, rtol=0, atol=1e-3)


def test_a_code_is_likelier_the_nearer_the_latent_is(mimi: Any, excerpts: Excerpts) -> None:
    wanted, counts = excerpts[0].wanted, torch.ones(3, 10, dtype=torch.bool)
    other = wanted.roll(1, 2)
    for branch, books in zip(Branch.both(mimi), (1, 7), strict=True):
        right, far = branch.losses(wanted, wanted, counts)
        halfway, half_as_far = branch.losses(wanted.lerp(other, 0.3), wanted, counts)
        wrong, farther = branch.losses(other, wanted, counts)
        assert len(right) == books
        assert far == 0 < half_as_far < farther
        assert right[0] < halfway[0] < wrong[0]


def test_what_is_not_counted_makes_no_difference(mimi: Any, excerpts: Excerpts) -> None:
    wanted, counts = excerpts[0].wanted, torch.ones(3, 10, dtype=torch.bool)
    counts[:, :4] = False
    cold = wanted.clone()
    cold[:, :, :4] = 9.0
    for branch in Branch.both(mimi):
        assert branch.losses(cold, wanted, counts)[1] == 0


def test_the_teacher_agrees_with_itself_on_what_was_said(mimi: Any, asked: Path) -> None:
    excerpts = Excerpts(read_shard(asked / "0000.npz"), mimi, SHAPE, 5)
    batch = excerpts[0]
    noisy = agreement(mimi, batch)
    said = torch.stack(
        [torch.from_numpy(excerpts.speech(np.random.default_rng(i), 19_200)) for i in range(3)]
    )
    same = agreement(mimi, replace(batch, heard=said[:, None], wanted=latent_of(mimi, said[:, None])))
    assert same["first"] == same["all"] == 1.0
    assert noisy["all"] < 0.9


def test_the_encoder_alone_is_trained_and_goes_on_where_it_was(asked: Path, tmp_path: Path) -> None:
    settings = Settings(shape=SHAPE, judge_every_steps=2, judged_excerpts=2)

    def trainer() -> Trainer:
        return Trainer(settings, QUICK, asked, asked, TINY, tmp_path / "out")

    first = trainer()
    before = {name: tensor.clone() for name, tensor in first.mimi.state_dict().items()}
    for _ in range(2):
        assert all(np.isfinite(value) for value in first.train_step().values())
    assert set(first.notes()) == {"same_first", "same_all"}
    first.save()
    changed = {
        name for name, value in first.mimi.state_dict().items() if not torch.equal(value, before[name])
    }
    assert {name.split(".")[0] for name in changed} == {"encoder", "encoder_transformer", "downsample"}

    again = trainer()
    assert again.step == 2
    assert again.train_step() == pytest.approx(first.train_step(), rel=1e-4)
    written = load_mimi(tmp_path / "out").state_dict()
    kept = {name for name in before if name.split(".")[0] in ("quantizer", "decoder", "decoder_transformer")}
    assert kept
    assert all(torch.equal(written[name], before[name]) for name in kept)
    assert not torch.equal(
        written["downsample.conv.conv.conv.weight"], before["downsample.conv.conv.conv.weight"]
    )


def test_without_questions_the_next_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^no shards in .*; make them with: python -m lab.train.questions"):
        Trainer(Settings(), QUICK, tmp_path, tmp_path, TINY, tmp_path / "out")


def test_what_is_drawn_has_pauses(mimi: Any, asked: Path) -> None:
    excerpts = Excerpts(read_shard(asked / "0000.npz"), mimi, SHAPE, 5)
    said = excerpts.speech(np.random.default_rng(1), 24_000 * 20)
    assert 0.05 < np.mean(said == 0) < 0.8
