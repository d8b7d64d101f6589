"""The talker's recipe: what is kept from training, time lines in codes, and a trainer that goes on."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch
from moshi.models.lm_utils import _delay_sequence
from moshi.utils.compile import no_compile
from safetensors.torch import load_file

from lab.train import dialogues as talker_dialogues
from lab.train import talker as talker_module
from lab.train import talker_model
from lab.train.answers import Answer
from lab.train.beginnings import start_from_codec, start_from_talker
from lab.train.chains import Chains
from lab.train.codec import load_mimi
from lab.train.dialogues import (
    REACTION_FRAMES,
    REFUSAL_FRAMES,
    STOP_FRAMES,
    Composer,
    spaced,
)
from lab.train.domain import NUMBERS, PHRASINGS, REFUSAL, WEIGHTS, Domain
from lab.train.duplex_accuracy import marked
from lab.train.quick_lm import Read, read
from lab.train.recogniser import answers_grammar, questions_grammar, without_silence, word_errors
from lab.train.segments import STRIP_FRAMES, CodeArray, Scene, Segment
from lab.train.sequences import delay
from lab.train.talker import Trainer
from lab.train.talker_model import Batch, Settings, Talker, collate, lm_config
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer
from lab.train.voicebox import LEAD_FRAMES, Voicebox, text_stream, words_at

TINY = Path(__file__).parents[3] / "server" / "antiphon" / "assets" / "tiny"
SENTENCES = ("two plus three is five", "the sky is blue", "hello nice to meet you")
"""What is answered; what is not understood gets a refusal."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TalkerTokenizer:
    return TalkerTokenizer.made(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


@pytest.fixture(scope="module")
def voicebox(tokenizer: TalkerTokenizer) -> Voicebox:
    mimi = load_mimi(TINY)
    mimi.eval()
    rng = np.random.default_rng(0)
    answers = {}
    for sentence in (*SENTENCES, REFUSAL):
        words = tuple(sentence.split())
        pcm = (rng.standard_normal(int(0.3 * len(words) * 24_000)) * 0.1).astype(np.float32)
        answers[sentence] = Answer(words, tuple(0.3 * i for i in range(len(words))), pcm)
    return Voicebox.encoded(mimi, answers, tokenizer)


def _scene(rng: np.random.Generator, frames: int = 20) -> Scene:
    def codes(count: int) -> CodeArray:
        return rng.integers(0, 512, (8, count)).astype(np.int16)

    segments = [
        Segment(codes(frames), 2, frames - 7, "what is two plus three", SENTENCES[i % 3]) for i in range(6)
    ]
    return Scene(codes(STRIP_FRAMES), tuple(segments))


def test_every_word_is_one_token(tokenizer: TalkerTokenizer) -> None:
    words = Domain().words()
    tokens = [tokenizer.encode(word) for word in words]
    assert all(len(one) == 1 for one in tokens)
    assert len({one[0] for one in tokens}) == len(words)
    assert not {EPAD, 1, 2, PAD} & {one[0] for one in tokens}
    assert tokenizer.encode("xylophone") == [EPAD]


def test_sums_are_right_and_every_intent_has_a_weight() -> None:
    domain = Domain()
    assert set(WEIGHTS) == set(PHRASINGS)
    numbers = {word: n for n, word in enumerate(NUMBERS)}
    for fact in domain.facts["add"]:
        a, _, b, _, c = fact.answer.split()
        assert numbers[a] + numbers[b] == numbers[c]


def test_text_runs_in_order_with_a_mark_before_each_pause(tokenizer: TalkerTokenizer) -> None:
    words = ("two", "plus", "three", "is", "five")
    answer = Answer(words, (0.0, 0.02, 0.5, 0.6, 1.2), np.zeros(1, np.float32))
    text = text_stream(answer, 25, tokenizer)
    said = [int(token) for token in text if token not in (EPAD, PAD)]
    assert said == tokenizer.encode(" ".join(words))
    assert [int(frame) for frame in np.flatnonzero((text != EPAD) & (text != PAD))] == [0, 1, 6, 7, 15]
    assert [int(frame) for frame in np.flatnonzero(text == EPAD)] == [5, 14]


def test_a_voicebox_is_kept_whole(voicebox: Voicebox, tokenizer: TalkerTokenizer, tmp_path: Path) -> None:
    voicebox.keep(tmp_path / "voicebox.npz")
    kept = Voicebox.kept_in(tmp_path / "voicebox.npz", tokenizer)
    np.testing.assert_array_equal(kept.silence, voicebox.silence)
    assert list(kept.codes) == [*SENTENCES, REFUSAL]
    for sentence, codes in voicebox.codes.items():
        np.testing.assert_array_equal(kept.codes[sentence], codes)
        np.testing.assert_array_equal(kept.text[sentence], voicebox.text[sentence])
    said = tokenizer.encode("two plus three is")
    assert kept.has_said(said)
    assert not kept.has_said(tokenizer.encode("five"))


def test_a_dialogue_answers_after_the_question_and_falls_silent_when_interrupted(voicebox: Voicebox) -> None:
    rng = np.random.default_rng(1)
    composer = Composer(
        [_scene(rng)], [rng.integers(0, 512, (8, STRIP_FRAMES)).astype(np.int16)], voicebox, 300
    )
    interrupted = 0
    for _ in range(60):
        dialogue = composer.draw(rng)
        assert dialogue.talker.shape == dialogue.user.shape == (8, 300)
        for asked, following in zip_longest(dialogue.asked, dialogue.asked[1:]):
            first = asked.end + REACTION_FRAMES
            codes, text = voicebox.codes[asked.answer], voicebox.text[asked.answer]
            stop = 300 if following is None else following.start + STOP_FRAMES
            length = min(codes.shape[1], stop - first)
            assert (dialogue.talker[:, first : first + length] == codes[:, :length]).all()
            shown = min(length, (following.end + REACTION_FRAMES - 1 - first) if following else length)
            assert (dialogue.text[first : first + shown] == text[:shown]).all()
            if length < codes.shape[1]:
                interrupted += 1
                quiet = dialogue.talker[:, stop : following.end + REACTION_FRAMES] if following else None
                assert quiet is None or (quiet == voicebox.silence[:, None]).all()
        if not dialogue.asked:
            assert (dialogue.text == PAD).all()
    assert interrupted > 5
    assert LEAD_FRAMES < REACTION_FRAMES


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


def test_a_talker_starts_as_the_one_that_is_shipped(tokenizer: TalkerTokenizer) -> None:
    model = Talker(lm_config(tokenizer.size), Settings()).lm
    start_from_talker(model, TINY, tokenizer)
    shipped = load_file(TINY / "model.safetensors")
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
    scene = _scene(rng)
    quiet = rng.integers(0, 512, (1, 8, STRIP_FRAMES)).astype(np.int16)
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "0000.npz").touch()
    monkeypatch.setattr(talker_module, "read_segments", lambda _: ([scene], quiet))
    monkeypatch.setattr(talker_module, "voicebox_in", lambda *_: voicebox)
    small = {**lm_config(tokenizer.size), "dim": 128, "num_layers": 4, "depformer_dim": 16}
    monkeypatch.setattr(talker_module, "lm_config", lambda _: small)
    # One that goes on searches the scales of rounding anew, so its losses would be others.
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
    composer = Composer([_scene(rng)], [_scene(rng).strip], voicebox, 200)
    dialogue = next(d for d in (composer.draw(rng) for _ in range(20)) if d.asked)
    batch = collate([dialogue], voicebox.silence, tokenizer)
    speaking = batch.is_speaking[0].numpy()
    silent = (dialogue.talker == voicebox.silence[:, None]).all(0) & (dialogue.text == PAD)
    assert speaking[~silent].all()
    assert speaking.sum() < 200
    assert [span[3] for span in batch.spans] == [tokenizer.encode(one.question) for one in dialogue.asked]


def test_a_drill_trains_hearing_and_what_follows_from_the_words_recited(
    voicebox: Voicebox, tokenizer: TalkerTokenizer
) -> None:
    rng = np.random.default_rng(4)
    scene = _scene(rng)
    unanswered = Scene(scene.strip, (*scene.segments, replace(scene.segments[0], question="moo", answer="")))
    recited = [("two plus three is five", 4), ("no such", 1)]
    composer = Composer([unanswered], [scene.strip], voicebox, 300, recited)
    drill = composer.draw_drill(rng)
    (five,) = tokenizer.encode("five")
    assert ((drill.text != PAD) & (drill.text != EPAD)).sum() >= 5
    np.testing.assert_array_equal(drill.is_text_trained, drill.text == five)
    assert not drill.is_voice_trained
    assert len(drill.asked) > 5
    spans = [(start, stop) for _, start, stop, _ in collate([drill], voicebox.silence, tokenizer).spans]
    assert spans == [(one.start, one.end + REACTION_FRAMES + 1) for one in drill.asked]
    assert all(b.start >= a.end + REACTION_FRAMES for a, b in pairwise(drill.asked))


def test_only_asked_questions_are_answered_and_every_result_is_trained(
    voicebox: Voicebox, tokenizer: TalkerTokenizer
) -> None:
    rng = np.random.default_rng(5)
    scene = _scene(rng)
    unanswered = Scene(scene.strip, (*scene.segments, replace(scene.segments[0], question="moo", answer="")))
    composer = Composer([unanswered], [scene.strip], voicebox, 300, [("two plus three is five", 4)])
    drawn = [composer.draw(rng) for _ in range(20)]
    assert all(one.answer for dialogue in drawn for one in dialogue.asked)
    (five,) = tokenizer.encode("five")
    assert sum((dialogue.text == five).sum() for dialogue in drawn) > 5
    assert all(dialogue.is_text_trained.all() for dialogue in drawn)


def test_what_is_not_understood_is_refused_after_a_breath_and_not_in_the_midst_of_it(
    voicebox: Voicebox, tokenizer: TalkerTokenizer
) -> None:
    rng = np.random.default_rng(11)
    scene = _scene(rng)
    others = Scene(scene.strip, tuple(replace(one, question="", answer=REFUSAL) for one in scene.segments))
    composer = Composer([others], [scene.strip], voicebox, 300)
    refused = went_on = owed = 0
    for dialogue in (composer.draw(rng) for _ in range(120)):
        for asked, following in zip_longest(dialogue.asked, dialogue.asked[1:]):
            reply = asked.end + REFUSAL_FRAMES
            if asked.answer:
                refused += 1
                assert dialogue.text[reply] == tokenizer.encode(REFUSAL)[0]
                assert (dialogue.text[asked.end : reply - 1] == PAD).all()
            elif following is not None:
                went_on += 1
                assert following.start < reply - 1
                interrupted = asked.start + STOP_FRAMES  # what was said before is over
                assert (dialogue.text[interrupted : following.end + REFUSAL_FRAMES - 1] == PAD).all()
            else:
                owed += 1
                assert not dialogue.is_text_trained[reply:].any()
        assert not collate([dialogue], voicebox.silence, tokenizer).spans
    assert min(refused, went_on, owed) > 5


def test_words_in_no_order_are_words_of_questions() -> None:
    domain, rng = Domain(), random.Random(3)
    turns = [domain.draw_words(rng) for _ in range(100)]
    assert {turn.answer for turn in turns} == {""}, "nothing follows: they are only heard"
    assert not any(domain.is_question(turn.question) for turn in turns)
    assert {word for turn in turns for word in turn.question.split()} <= set(domain.words())
    assert len({turn.question for turn in turns}) == 100


def test_word_errors_count_edits() -> None:
    assert word_errors("two plus three", "two plus three") == 0
    assert word_errors("two plus three", "two three") == 1
    assert word_errors("two plus three", "") == 3
    assert word_errors("", "two") == 1
    assert word_errors("a b c d", "b c d a") == 2


def test_grammars_know_every_word() -> None:
    domain = Domain()
    spoken = {word for sentence in domain.answers() for word in sentence.split()}
    grammar = answers_grammar().replace("|", " ").split()
    assert spoken <= set(grammar)
    assert questions_grammar().count("<n>") > 10


def test_chains_add_up() -> None:
    chains, rng = Chains(Domain()), np.random.default_rng(6)
    value = {word: number for number, word in enumerate(NUMBERS)}
    drawn = {chains.draw(rng) for _ in range(3000)}
    assert len(drawn) > 2000
    for words in (sentence.split() for sentence in drawn):
        total = value[words[0]]
        for sign, word in zip(words[1:-2:2], words[2:-2:2], strict=True):
            result = total + (value[word] if sign == "plus" else -value[word])
            assert 0 <= result < len(NUMBERS)
            total = result
        assert words[-2:] == ["is", NUMBERS[total]]


def test_recited_words_stand_apart_and_are_marked() -> None:
    text = spaced([7, 8, 9], np.random.default_rng(7))
    assert text[words_at(text)].tolist() == [7, 8, 9]
    assert (text[words_at(text)[1:] - 1] == EPAD).all()
    assert (np.diff(words_at(text)) >= 2).all()


def test_a_count_may_begin_wrongly_but_ends_where_it_was_asked_to() -> None:
    chains, rng = Chains(Domain()), np.random.default_rng(8)
    answers = set(Domain().answers())
    drawn = {chains.misbegun("twelve eleven ten nine eight", rng) for _ in range(200)}
    assert len(drawn) == 4
    assert drawn <= answers
    assert {sentence.split()[-1] for sentence in drawn} == {"eight"}
    assert chains.misbegun("a cow says moo", rng) == "a cow says moo"
    assert {chains.misbegun("zero one two", rng) for _ in range(50)} == {"zero one two"}


def test_sums_are_read_by_themselves(voicebox: Voicebox, tokenizer: TalkerTokenizer) -> None:
    rng = np.random.default_rng(9)
    scene = _scene(rng)
    composer = Composer([scene], [scene.strip], voicebox, 300, chains=Chains(Domain()))
    read = [composer.draw_sums(rng) for _ in range(20)]
    numbers = {tokenizer.encode(word)[0] for word in NUMBERS}
    (is_,) = tokenizer.encode("is")
    for dialogue in read:
        spoken = dialogue.text[words_at(dialogue.text)]
        assert {int(token) for token in dialogue.text[dialogue.is_text_trained]} <= numbers
        assert dialogue.is_text_trained.sum() == (spoken == is_).sum() > 0
        assert not dialogue.is_voice_trained
    quiet = voicebox.silence[:, None]
    assert 0 < sum((dialogue.user == quiet).all() for dialogue in read) < 20  # to nobody, or to a speaker


def test_what_no_answer_says_is_put_together_from_answers(
    voicebox: Voicebox, tokenizer: TalkerTokenizer
) -> None:
    rng, tokens = np.random.default_rng(0), tokenizer.encode("three plus two plus two")
    assert voicebox.has_said(tokens)
    assert not voicebox.has_said(tokenizer.encode("five"))  # only ever an end
    codes, text = voicebox.put_together(tokens, rng)
    places, sentence = words_at(text), SENTENCES[0]
    assert text[places].tolist() == tokens
    assert codes.shape == (8, text.size) == (8, places[-1] + 1)
    said = dict(zip(tokenizer.encode(sentence), words_at(voicebox.text[sentence]), strict=True))
    for token, (start, stop) in zip(tokens, pairwise(places), strict=False):
        there = voicebox.codes[sentence][:, said[token] : said[token] + stop - start]
        assert (codes[:, start:stop] == there).all()


def test_silence_around_what_is_heard_is_cut_off() -> None:
    sound = np.zeros(48_000, np.float32)
    sound[12_000:24_000] = 0.1
    assert without_silence(sound).size == pytest.approx(12_000 + 2 * 2400, abs=480)
    assert (without_silence(sound) == sound[12_000 - 2400 :][: without_silence(sound).size]).all()
    assert without_silence(sound * 0.01).size == sound.size  # nothing to be heard: all of it


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
    assert settings.ending_weight >= within, "else a count goes on past its end"


def test_what_is_to_be_refused_makes_room_for_a_second_draw_in_dialogues_alone() -> None:
    codes = np.zeros((8, 4), np.int16)
    kinds = tuple(Segment(codes, 0, 1, "", answer) for answer in (REFUSAL, "snow is white"))
    scene, rng = Scene(codes, kinds), np.random.default_rng(5)
    for draw, share in ((talker_dialogues.asked_segment, 0.425), (talker_dialogues.heard_segment, 0.5)):
        drawn = [draw(scene, rng).answer for _ in range(4000)]
        assert drawn.count(REFUSAL) / 4000 == pytest.approx(share, abs=0.04)


def test_courtesies_are_asked_in_pairs_that_are_not_held_out() -> None:
    asked = PHRASINGS["goodbye"].trained
    assert {"see you later good night", "good night"} <= set(asked)
    assert "goodbye good night" in set(PHRASINGS["goodbye"].held_out) - set(asked)
