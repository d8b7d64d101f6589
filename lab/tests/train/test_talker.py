"""The talker's trainer: its start, the weights of its losses, and resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from moshi.models.lm_utils import _delay_sequence
from moshi.utils.compile import no_compile
from safetensors.torch import load_file

from lab.tests.train.made_up import TINY, scene_of_questions
from lab.train import talker as talker_module
from lab.train import talker_model
from lab.train.beginnings import start_from_codec, start_from_talker
from lab.train.codec import load_mimi
from lab.train.dialogues import Composer
from lab.train.domain import REFUSAL
from lab.train.duplex_accuracy import marked
from lab.train.quick_lm import Read, read
from lab.train.segments import STRIP_FRAMES
from lab.train.sequences import delay
from lab.train.talker import Trainer
from lab.train.talker_model import Batch, Settings, Talker, collate, lm_config
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer
from lab.train.voicebox import Voicebox


def test_delay_is_upstreams() -> None:
    codes = torch.randint(0, 9, (2, 17, 20), generator=torch.Generator().manual_seed(0))
    initial = torch.full((2, 17, 1), 99)
    delays = lm_config(164)["delays"]
    assert torch.equal(delay(delays, codes, initial), _delay_sequence(delays, codes, initial))


def test_embeddings_start_as_the_codecs_geometry(tokenizer: TalkerTokenizer) -> None:
    mimi = load_mimi(TINY)
    model = Talker(lm_config(tokenizer.size), Settings()).lm
    start_from_codec(model, mimi, (0.5, 1.0))
    vectors = mimi.quantizer.rvq_first.vq.layers[0]._codebook.embedding
    vectors = vectors @ mimi.quantizer.rvq_first.output_proj.weight[:, :, 0].T
    for side in (0, 8):
        rows = model.emb[side].weight[:512]
        ours, theirs = torch.cdist(rows[:40], rows[:40]), torch.cdist(vectors[:40], vectors[:40])
        kept = torch.triu_indices(40, 40, 1)
        scale = ours[kept[0], kept[1]] / theirs[kept[0], kept[1]]
        assert scale.std() / scale.mean() < 1e-3


def test_a_talker_starts_as_the_one_that_is_shipped(tokenizer: TalkerTokenizer, built_in: Path) -> None:
    model = Talker(lm_config(tokenizer.size), Settings()).lm
    start_from_talker(model, built_in / "tiny", tokenizer)
    shipped = load_file(built_in / "tiny" / "model.safetensors")
    assert torch.equal(model.text_emb.weight, shipped["text_emb.weight"].float())
    assert torch.equal(model.emb[15].weight, shipped["emb.15.weight"].float())


def test_marks_part_answers_from_refusals() -> None:
    right = "the sky is blue"
    pairs = [(right, right), (right, "the sky is"), (right, ""), (right, REFUSAL)]
    marks = marked([*pairs, (REFUSAL, REFUSAL), (REFUSAL, ""), (REFUSAL, right)])
    assert marks.rounded() == {
        "accuracy": 0.25,
        "refused_wrongly": 0.5,
        "unfinished": 0.25,
        "refused": 0.6667,
    }
    assert marks.score == pytest.approx((2 * 0.25 + 2 / 3) / 3)
    assert marked([]).score == 0.0


def test_a_trainer_goes_on_where_it_was_and_writes_the_published_layout(
    tmp_path: Path, voicebox: Voicebox, tokenizer: TalkerTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    scene = scene_of_questions(rng)
    quiet = rng.integers(0, 512, (1, 8, STRIP_FRAMES)).astype(np.int16)
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "0000.npz").touch()
    monkeypatch.setattr(talker_module, "read_segments", lambda _: ([scene], quiet))
    monkeypatch.setattr(talker_module, "voicebox_in", lambda *_: voicebox)
    small = {**lm_config(tokenizer.size), "dim": 128, "num_layers": 4, "depformer_dim": 16}
    monkeypatch.setattr(talker_module, "lm_config", lambda _: small)
    # A resumed trainer searches the scales of rounding anew, so its losses would differ.
    settings = replace(Settings(), batch=4, frames=100, total_steps=4, warm_up_steps=1, rounded_steps=0)

    def trainer(out: Path) -> Trainer:
        return Trainer(settings, tmp_path / "segments", tmp_path / "none", TINY, out)

    with no_compile():
        whole = trainer(tmp_path / "whole")
        losses = [whole.train_step() for _ in range(4)]
        assert losses[-1]["text"] < losses[0]["text"]
        first = trainer(tmp_path / "halves")
        _ = [first.train_step() for _ in range(2)]
        first.save()
        second = trainer(tmp_path / "halves")
        assert second.step == 2
        assert [second.train_step() for _ in range(2)] == losses[2:]
    folder = tmp_path / "halves" / "last"
    assert json.loads((folder / "config.json").read_text())["dim"] == 128
    assert (folder / "model.safetensors").stat().st_size > 100_000


def test_a_talker_mishears_others_and_not_itself(
    tokenizer: TalkerTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**lm_config(tokenizer.size), "dim": 64, "num_heads": 2, "num_layers": 4, "depformer_dim": 16}
    talker = Talker(small, Settings(misheard=0.9), torch.full((8, 512, 2), 511))
    heard = list[torch.Tensor]()

    def listen(lm: object, inputs: torch.Tensor) -> Read:
        heard.append(inputs)
        return read(lm, inputs)

    monkeypatch.setattr(talker_model, "read", listen)
    everywhere = torch.ones(2, 40, dtype=torch.bool)
    codes = torch.full((2, 17, 40), 5)
    with no_compile():
        talker.read(Batch(codes, everywhere, everywhere, everywhere[:, 0], []), np.random.default_rng(0))
    assert not (heard[0][:, :9] == 511).any()
    assert 0.1 < (heard[0][:, 9:] == 511).float().mean() < 0.9


def test_only_what_the_talker_says_trains_its_voice(voicebox: Voicebox, tokenizer: TalkerTokenizer) -> None:
    rng = np.random.default_rng(3)
    composer = Composer([scene_of_questions(rng)], [scene_of_questions(rng).strip], voicebox, 200)
    dialogue = next(d for d in (composer.draw(rng) for _ in range(20)) if d.asked)
    batch = collate([dialogue], voicebox.silence, tokenizer)
    speaking = batch.is_speaking[0].numpy()
    silent = (dialogue.talker == voicebox.silence[:, None]).all(0) & (dialogue.text == PAD)
    assert speaking[~silent].all()
    assert speaking.sum() < 200
    assert [span[3] for span in batch.spans] == [tokenizer.encode(one.question) for one in dialogue.asked]


def test_a_voice_is_trained_in_some_steps_and_a_new_head_alone_at_first(tokenizer: TalkerTokenizer) -> None:
    small = {**lm_config(tokenizer.size), "dim": 64, "num_heads": 2, "num_layers": 4, "depformer_dim": 16}
    talker = Talker(small, Settings(voice_every_steps=2, head_alone_steps=1))
    everywhere = torch.ones(2, 40, dtype=torch.bool)
    batch = Batch(torch.full((2, 17, 40), 5), everywhere, everywhere, everywhere[:, 0], [(0, 3, 30, [7, 8])])

    def hearing(step: int) -> tuple[set[str], bool]:
        parts = talker.losses(batch, np.random.default_rng(0), step)
        talker.zero_grad()
        torch.autograd.backward(parts["words"])
        assert talker.words_head.weight.grad is not None
        return set(parts), talker.lm.emb[8].weight.grad is not None

    with no_compile():
        assert hearing(0) == ({"text", "words", "audio"}, False)
        assert hearing(1) == ({"text", "words"}, True)


def test_the_end_of_an_answer_weighs_as_long_as_a_next_word_would_come() -> None:
    text = torch.full((2, 30), PAD)
    text[0, 3], text[0, 20], text[1, 5] = 10, 11, EPAD
    soon = talker_model.soon_after_words(text)
    reach = talker_model.SOON_FRAMES
    assert soon[0].nonzero()[:, 0].tolist() == [*range(4, 4 + reach), *range(21, min(30, 21 + reach))]
    assert not soon[1].any()
    assert Settings().stopping_weight > Settings().padding_weight


def test_the_mark_before_an_answer_weighs_less_than_those_within_it() -> None:
    text = torch.tensor([[PAD, EPAD, 10, PAD, EPAD, 11, PAD]])
    settings = Settings()
    first, within = settings.first_mark_weight, settings.mark_weight
    word, pad, stop = settings.word_weight, settings.padding_weight, settings.stopping_weight
    assert talker_model.text_weights(text, settings)[0].tolist() == [
        pad,
        first,
        word,
        stop,
        within,
        word,
        settings.ending_weight,
    ]
    assert within > first > pad
    assert settings.ending_weight > stop, "else a count goes on past its end"
