"""Stretches of a caller: positions of words, pauses and zeros, in the sound and in the training data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lab.tests.train.made_up import TINY
from lab.train.codec import load_mimi
from lab.train.domain import Turn
from lab.train.natural import LOUDNESS
from lab.train.outside import CHAT
from lab.train.passages import DELAY_FRAMES, PAUSE
from lab.train.questions import Utterance, write_shard
from lab.train.segments import FRAME_SAMPLES
from lab.train.shards import shards_in
from lab.train.stretches import (
    APART,
    BEGINS_AT_ONCE,
    FRAMES,
    LONGEST_SILENCE_S,
    WITHOUT_PAUSES,
    Stretch,
    compose,
    heard,
    in_another_throat,
    main,
    make_shard,
    read_stretches,
)
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer


def turn(intent: str = "add", words: int = 5) -> Utterance:
    """A hum of 0.3 s for each word, at full loudness to its ends."""
    text = " ".join(["what", "is", "two", "plus", "three"][:words])
    pcm = 0.14 * np.sign(np.sin(np.arange(int(0.3 * words * SAMPLE_RATE)) * 0.05) + 1e-9)
    starts = tuple(0.3 * place for place in range(words))
    return Utterance(
        Turn(intent, text, "", False), Voice("kokoro", "af_heart"), 1.0, pcm.astype(np.float32), starts
    )


UTTERANCES = [turn(), turn(words=2), turn(CHAT)]


def test_a_stretch_is_full_and_says_where_everything_is() -> None:
    for seed in range(20):
        made = compose(np.random.default_rng(seed), UTTERANCES)
        assert made.pcm.size == FRAMES * FRAME_SAMPLES
        is_loud = made.pcm != 0
        spans = sorted([*made.speech, *made.silences])
        assert spans[0][0] == 0
        assert spans[-1][1] == made.pcm.size
        assert all(end == first for (_, end), (first, _) in pairwise(spans))
        assert all(is_loud[first:end].all() for first, end in made.speech)
        assert not any(is_loud[first:end].any() for first, end in made.silences)
        assert all(end - first <= LONGEST_SILENCE_S * SAMPLE_RATE for first, end in made.silences)
        assert set(made.wordless) <= set(made.speech)
        for start, _ in made.words:
            assert any(
                first <= start < end for first, end in made.speech if (first, end) not in made.wordless
            )


def test_so_many_stretches_begin_with_speech_and_so_many_have_no_pause() -> None:
    many = [compose(np.random.default_rng(seed), UTTERANCES) for seed in range(150)]
    at_once = sum(made.speech[0][0] == 0 for made in many) / len(many)
    assert at_once == pytest.approx(BEGINS_AT_ONCE, abs=0.11)
    unbroken = sum(len([one for one in made.silences if one[0]]) == 0 for made in many) / len(many)
    assert unbroken == pytest.approx(WITHOUT_PAUSES, abs=0.09)


def test_zeros_are_exact_within_pauses_alone_and_a_room_is_around_them() -> None:
    zeroed, rooms_db = 0, list[float]()
    for seed in range(14):
        rng = np.random.default_rng(seed)
        made = compose(rng, UTTERANCES)
        pcm = heard(rng, made, UTTERANCES)
        assert pcm.dtype == np.float32
        silent = np.zeros(pcm.size, np.bool_)
        for first, end in made.silences:
            silent[first:end] = True
        zeros = pcm == 0
        zeroed += bool(zeros.sum() > 0.1 * SAMPLE_RATE)
        room = pcm[silent & ~zeros]
        if room.size > SAMPLE_RATE:
            rooms_db.append(20 * np.log10(float(np.sqrt(np.mean(room**2)))))
        assert (zeros & ~silent).sum() < 50
    assert 3 <= zeroed <= 11
    assert min(rooms_db) < -55


def test_what_is_learnt_lies_where_it_is_said(tokenizer: TalkerTokenizer) -> None:
    words = ((20.0, "two"), (24.0, "plus"))
    stretch = Stretch(np.zeros((8, FRAMES), np.int16), words, ((20, 30), (100, 110)), ((100, 110),))
    passage = stretch.passage(tokenizer)
    for start, word in words:
        at = round(start) + DELAY_FRAMES
        assert passage.text[at - 1 : at + 1].tolist() == [EPAD, tokenizer.encode(word)[0]]
    assert (passage.text != PAD).sum() == 4
    assert np.flatnonzero(passage.is_wordless).tolist() == list(range(110, 120))
    assert np.flatnonzero(passage.pauses[2] == PAUSE)[[0, -1]].tolist() == [31, FRAMES - 1]


def test_a_shard_is_kept_as_it_was_made_and_made_again_from_its_seed(tmp_path: Path) -> None:
    write_shard(tmp_path / "source.npz", [turn(), turn(CHAT), replace(turn(), starts_s=())])
    mimi = load_mimi(TINY)
    mimi.eval()
    counts = [make_shard(tmp_path / f"{name}.npz", tmp_path / "source.npz", 1, mimi) for name in "ab"]
    assert counts == [1, 1]
    first, second = (read_stretches(tmp_path / f"{name}.npz")[0] for name in "ab")
    assert first.codes.shape == (8, FRAMES)
    assert np.array_equal(first.codes, second.codes)
    assert (first.words, first.speech, first.wordless) == (second.words, second.speech, second.wordless)
    assert {word for _, word in first.words} <= {"what", "is", "two", "plus", "three"}


def test_another_throat_takes_its_own_time_and_is_as_loud() -> None:
    one = turn()
    again, bent = (in_another_throat(np.random.default_rng(4), one) for _ in range(2))
    assert np.array_equal(again.pcm, bent.pcm)
    assert bent.voice.throat is not None
    slower = bent.pcm.size / one.pcm.size
    assert slower == pytest.approx(bent.voice.throat.duration_ratio, rel=0.02)
    assert bent.starts_s == pytest.approx([start * slower for start in one.starts_s])
    assert float(np.sqrt(np.mean(bent.pcm**2))) == pytest.approx(LOUDNESS, rel=0.02)
    assert in_another_throat(np.random.default_rng(5), bent) is bent


def test_one_turn_in_five_is_said_word_by_word() -> None:
    turns = apart = 0.0
    for seed in range(60):
        made = compose(np.random.default_rng(seed), [turn()])
        lengths_s = np.array([end - first for first, end in made.speech]) / SAMPLE_RATE
        apart += (lengths_s[:-1] < 0.31).sum() / 5
        turns += len(made.words) / 5
    assert apart / turns == pytest.approx(APART * (1 - WITHOUT_PAUSES), abs=0.05)


def test_each_copy_of_a_shard_has_its_own_number_and_sound(tmp_path: Path) -> None:
    said, out = tmp_path / "said", tmp_path / "out"
    said.mkdir()
    for seed in range(2):
        write_shard(said / f"{seed:04d}.npz", [turn()])
    command = ["--questions", str(said), "--codec", str(TINY), "--out", str(out)]
    assert main([*command, "--copies", "2"]) == 0
    assert [path.name for path in shards_in(out)] == ["0000.npz", "0001.npz", "1000.npz", "1001.npz"]
    first, second = (read_stretches(out / f"{name}.npz")[0].codes for name in ("0000", "1000"))
    assert not np.array_equal(first, second)
