"""The codec's decoder is trained further on the models' output, in their own voices."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.tests.train.made_up import TINY
from lab.train.answers import Speaker
from lab.train.codec import SCHEDULE, Settings, Speech, Trainer
from lab.train.own_speech import PAUSE_FRAMES, make_shard, utterance
from lab.train.readings import VOICES, Texts, speakers_of
from lab.train.segments import FRAME_SAMPLES


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(6)


@pytest.fixture(scope="module")
def speakers(texts: Texts) -> dict[str, Speaker]:
    return speakers_of(texts, 1)


def _speech(folder: Path, level: int) -> Speech:
    folder.mkdir()
    np.savez(folder / "0000.npz", pcm=np.full(50_000, level, np.int16), ends=[50_000])
    return Speech(folder)


def test_the_decoder_alone_is_trained_and_no_code_changes(tmp_path: Path) -> None:
    settings = replace(Settings(), batch=2, frames=6, schedule=replace(SCHEDULE, warm_up_steps=1))
    speech, own = _speech(tmp_path / "speech", 6000), _speech(tmp_path / "own", 3000)
    trainer = Trainer(settings, speech, TINY, tmp_path / "out", own)
    sound = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 19_200)) * 0.1).float()
    codes = trainer.mimi.encode(sound)
    before = {name: tensor.clone() for name, tensor in trainer.mimi.state_dict().items()}
    for _ in range(2):
        assert all(np.isfinite(value) for value in trainer.train_step().values())
    changed = {
        name for name, value in trainer.mimi.state_dict().items() if not torch.equal(value, before[name])
    }
    assert {name.split(".")[0] for name in changed} == {"upsample", "decoder_transformer", "decoder"}
    assert torch.equal(trainer.mimi.encode(sound), codes)


@pytest.mark.parametrize("made_by", ["corpus", "own_speech"])
def test_who_makes_missing_speech_is_named(tmp_path: Path, made_by: str) -> None:
    with pytest.raises(SystemExit, match=rf"make them with: python -m lab\.train\.{made_by} --out"):
        Speech(tmp_path, made_by)


def test_an_excerpt_of_their_own_begins_with_a_frame(tmp_path: Path) -> None:
    pcm = np.arange(60 * FRAME_SAMPLES) // FRAME_SAMPLES
    np.savez(tmp_path / "0000.npz", pcm=pcm.astype(np.int16), ends=[pcm.size])
    excerpt = Speech(tmp_path).excerpt(np.random.default_rng(3), 3 * FRAME_SAMPLES, FRAME_SAMPLES)
    assert all(np.ptp(frame) == 0 for frame in excerpt.reshape(3, -1))


def test_the_models_own_speech_is_heard_as_it_is_and_others_disturbed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = replace(Settings(), batch=8, frames=6, own_share=0.25)
    speech, own = _speech(tmp_path / "speech", 6000), _speech(tmp_path / "own", 3000)
    trainer = Trainer(settings, speech, TINY, tmp_path / "out", own)
    targets: list[torch.Tensor] = []
    encode = trainer.mimi.encode

    def noted(pcm: torch.Tensor) -> Any:
        targets.append(pcm)
        return encode(pcm)

    monkeypatch.setattr(trainer.mimi, "encode", noted)
    trainer.train_step()
    (target,) = targets
    assert target.shape == (8, 1, 6 * FRAME_SAMPLES)
    assert torch.equal(target[:2], torch.full_like(target[:2], 3000 / 32768))
    undisturbed = torch.full_like(target[0], 6000 / 32768)
    assert not any(torch.equal(row, undisturbed) for row in target[2:])


def test_what_the_models_say_is_made_from_its_seed(
    tmp_path: Path, texts: Texts, speakers: dict[str, Speaker]
) -> None:
    first, again = tmp_path / "0000.npz", tmp_path / "0001.npz"
    seconds = make_shard(first, 0, texts, speakers, 6)
    make_shard(again, 0, texts, speakers, 6)
    with np.load(first) as shard, np.load(again) as other:
        np.testing.assert_array_equal(shard["pcm"], other["pcm"])
        assert shard["ends"].size == 6
        assert shard["ends"][-1] == shard["pcm"].size == round(seconds * 24_000)
        for end in shard["ends"]:
            assert end % FRAME_SAMPLES == 0
            assert not shard["pcm"][end - PAUSE_FRAMES[0] * FRAME_SAMPLES : end].any()


def test_the_talker_answers_in_its_voice_and_the_synthesiser_reads_in_both(
    texts: Texts, speakers: dict[str, Speaker]
) -> None:
    answers = [speakers["slt"].say(answer).pcm for answer in texts.answers]
    asked: list[str] = []

    class Noting(dict[str, Speaker]):
        def __getitem__(self, name: str) -> Speaker:
            asked.append(name)
            return super().__getitem__(name)

    rng = random.Random(0)
    said = [utterance(rng, texts, Noting(speakers)) for _ in range(40)]
    are_answers = [any(np.array_equal(one[: pcm.size], pcm) for pcm in answers) for one in said]
    assert 10 < sum(are_answers) < 30
    assert set(asked) == set(VOICES)
