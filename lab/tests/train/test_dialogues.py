"""Dialogues in codes: the order of speech, refusals, and their trained parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path

import numpy as np
import pytest

from lab.tests.train.made_up import SENTENCES, scene_of_questions
from lab.train import dialogues as talker_dialogues
from lab.train.answers import Answer
from lab.train.chains import Chains
from lab.train.dialogues import REACTION_FRAMES, REFUSAL_FRAMES, STOP_FRAMES, Composer, spaced
from lab.train.domain import NUMBERS, REFUSAL, Domain
from lab.train.segments import STRIP_FRAMES, Scene, Segment
from lab.train.talker_model import collate
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer
from lab.train.voicebox import LEAD_FRAMES, Voicebox, text_stream, words_at


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
    kept = Voicebox.rounded_in(tmp_path / "voicebox.npz", tokenizer)
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
        [scene_of_questions(rng)], [rng.integers(0, 512, (8, STRIP_FRAMES)).astype(np.int16)], voicebox, 300
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


def test_a_drill_trains_hearing_and_what_follows_from_the_words_recited(
    voicebox: Voicebox, tokenizer: TalkerTokenizer
) -> None:
    rng = np.random.default_rng(4)
    scene = scene_of_questions(rng)
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
    scene = scene_of_questions(rng)
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
    scene = scene_of_questions(rng)
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
                interrupted = asked.start + STOP_FRAMES  # the earlier speech is over
                assert (dialogue.text[interrupted : following.end + REFUSAL_FRAMES - 1] == PAD).all()
            else:
                owed += 1
                assert not dialogue.is_text_trained[reply:].any()
        assert not collate([dialogue], voicebox.silence, tokenizer).spans
    assert min(refused, went_on, owed) > 5


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
    scene = scene_of_questions(rng)
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
    assert 0 < sum((dialogue.user == quiet).all() for dialogue in read) < 20  # to none, or to a speaker


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


def test_what_is_to_be_refused_makes_room_for_a_second_draw_in_dialogues_alone() -> None:
    codes = np.zeros((8, 4), np.int16)
    kinds = tuple(Segment(codes, 0, 1, "", answer) for answer in (REFUSAL, "snow is white"))
    scene, rng = Scene(codes, kinds), np.random.default_rng(5)
    for draw, share in ((talker_dialogues.asked_segment, 0.425), (talker_dialogues.heard_segment, 0.5)):
        drawn = [draw(scene, rng).answer for _ in range(4000)]
        assert drawn.count(REFUSAL) / 4000 == pytest.approx(share, abs=0.04)
