"""The synthesiser's recipe: spoken texts, their scripts, a trainer that resumes, loading by the server."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from moshi.utils.compile import no_compile

from antiphon.models.catalog import load_checkpoint
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.script import NEW_WORD, ScriptRules
from antiphon.models.spec import PipelineKind
from antiphon.serve.media.tts_voices import find_tts_voices
from lab.train import tts_trainer as reader_module
from lab.train.answers import Answer, Speaker
from lab.train.codec import load_mimi
from lab.train.domain import NUMBERS, Domain
from lab.train.held_out import is_answer_held_out
from lab.train.hibari import Hibari
from lab.train.kokoro import OutputFrame
from lab.train.readings import (
    LEAD_FRAMES,
    LONG_FRAMES,
    TAIL_FRAMES,
    UNKNOWN_WORD,
    VOICES,
    NaturalSpeaker,
    Reading,
    Recording,
    Texts,
    make_shard,
    read,
    read_readings,
    record,
    words_in_frames,
)
from lab.train.recital import held_out_answers, share_understood, speak
from lab.train.scripts import cues, entries_of, reader_spec
from lab.train.ship import ship
from lab.train.synthetic_voices import Voice
from lab.train.talker_tokenizer import PAD, TalkerTokenizer
from lab.train.tts_trainer import SCHEDULE, Scripted, Settings, Trainer, collate, condition, lm_config

TINY = Path(__file__).parents[3] / "weights" / "antiphon_weights" / "tiny"


class Mumbler:
    """Says every word in a third of a second."""

    def say(self, sentence: str) -> Answer:
        words = tuple(sentence.split())
        rng = np.random.default_rng(len(words))
        pcm = (rng.standard_normal(8000 * len(words)) * 0.1).astype(np.float32)
        return Answer(words, tuple(i / 3 for i in range(len(words))), pcm)


MUMBLER = {name: cast("Speaker", Mumbler()) for name in VOICES}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TalkerTokenizer:
    return TalkerTokenizer.made(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model", is_forgiving=True)


@pytest.fixture(scope="module")
def readings() -> list[Reading]:
    mimi = load_mimi(TINY)
    mimi.eval()
    rng, texts = random.Random(0), Texts()
    made = [record(rng, texts, MUMBLER, is_long=False) for _ in range(6)]
    return list(read(sorted(made, key=lambda one: one.frames), mimi))


def test_the_tokenizer_forgives(tokenizer: TalkerTokenizer) -> None:
    assert tokenizer.encode("Two plus 12 is, FOURTEEN!") == tokenizer.encode("two plus twelve is fourteen")
    assert tokenizer.encode("2+3=5") == tokenizer.encode("two plus three is five")
    assert tokenizer.encode("...") == []
    assert tokenizer.encode("xylophone") == tokenizer.encode(UNKNOWN_WORD) == [NEW_WORD]
    assert all(len(tokenizer.encode(word)) == 1 for word in Domain().words())


def test_a_recording_tells_its_text_and_when_each_part_starts() -> None:
    rng, texts = random.Random(3), Texts()
    parts: list[str] = []
    for _ in range(12):
        recording = record(rng, texts, MUMBLER, is_long=True)
        assert recording.frames >= LONG_FRAMES
        assert sum(pcm.size for pcm in recording.pcm) == recording.frames * 1920
        assert len(recording.parts) == len(recording.starts)
        assert recording.starts == sorted(set(recording.starts))
        parts += recording.parts
    assert UNKNOWN_WORD in parts
    assert any(part.startswith("<break") for part in parts)
    assert not set(texts.answers) & set(held_out_answers(99))


def test_a_natural_voice_reads_whole_sentences_whose_words_begin_with_their_sound() -> None:
    class Engine:
        def speak(self, voice: Voice, text: str, between: str = " ") -> OutputFrame:
            said = MUMBLER["slt"].say(text)
            return OutputFrame(said.pcm, said.starts_s)

    speaker = NaturalSpeaker(cast("Hibari", Engine()), Voice("hibari", "en-us"))
    texts, rng = Texts(), random.Random(3)
    for recording in (record(rng, texts, {"vera": speaker}, is_long=False) for _ in range(12)):
        words = [part for part in recording.parts if part != UNKNOWN_WORD]
        said, heard = speaker.say(" ".join(words)), np.concatenate(recording.pcm)
        first = recording.frames - -(-said.pcm.size // 1920)
        np.testing.assert_array_equal(heard[first * 1920 :][: said.pcm.size], said.pcm)
        starts = recording.starts[len(recording.parts) - len(words) :]
        assert starts == [first + int(start_s * 12.5) for start_s in said.starts_s]


def test_a_text_may_be_an_answer_with_other_words_of_the_same_kinds() -> None:
    texts, rng = Texts(), random.Random(2)
    drawn = [texts.sentence(rng) for _ in range(2000)]
    sums = [text for text in drawn if text.split()[1:4:2] == ["plus", "is"] and len(text.split()) == 5]
    assert {word for text in sums for word in text.split()[::2]} == {*NUMBERS}
    wrong = [text for text in sums if text not in texts.answers]
    assert 100 < len(wrong) < len(sums)
    assert not any(map(is_answer_held_out, sums))


def test_few_answers_are_read_with_their_words_alone() -> None:
    texts, rng = Texts(2), random.Random(1)
    known = {word for answer in texts.answers for word in answer.split()}
    assert len(texts.answers) == 2
    assert {word for _ in range(50) for word in texts.sentence(rng).split()} == known
    assert known < set(Texts().words)


def test_words_fill_whole_frames_and_are_equally_loud() -> None:
    rng = np.random.default_rng(0)
    pcm = (rng.standard_normal(1920 * 9) * np.linspace(0.01, 0.1, 1920 * 9)).astype(np.float32)
    words = words_in_frames(Answer(("a", "b", "c"), (0.0, 0.05, 0.25), pcm))
    assert [word.size // 1920 for word in words] == [1, 3, 6]
    for word in words:
        assert np.sqrt(np.mean(word**2)) == pytest.approx(0.12, rel=0.01)
        assert np.abs(word[-480:-120]).max() > 0.05
        assert abs(word[0]) < 1e-3
        assert abs(word[-1]) < 1e-3


def test_readings_are_kept(tmp_path: Path, readings: list[Reading]) -> None:
    mimi = load_mimi(TINY)
    mimi.eval()
    seconds = make_shard(
        tmp_path / "0000.npz",
        5,
        Texts(),
        MUMBLER,
        mimi,
        short=3,
    )
    kept = read_readings(tmp_path / "0000.npz")
    assert len(kept) == 3
    assert sum(one.starts[-1] - LEAD_FRAMES for one in kept) * 0.08 == pytest.approx(seconds)
    assert all("  " not in one.text for one in kept)
    for one in [*kept, *readings]:
        assert one.codes.shape == (8, one.starts[-1] + TAIL_FRAMES)
        assert one.starts[0] == LEAD_FRAMES


def test_a_script_runs_as_the_sound_does(tokenizer: TalkerTokenizer) -> None:
    spec = reader_spec(lm_config(tokenizer.size))
    rules = ScriptRules.of(spec)
    assert (rules.audio_delay, rules.acoustic_delay, rules.lookahead) == (8, 1, 2)
    text = 'two plus xylophone <break time="0.8s"/> is five'
    starts = (2, 6, 9, 14, 24, 29, 35)
    got = cues(entries_of(text, spec, tokenizer), starts, rules, 60)
    assert got.words_at == (2, 6, 9, 24, 29)
    ids = [tokenizer.encode(word)[0] for word in ("two", "plus", "xylophone", "is", "five")]
    speaker, size = 1, rules.entries
    assert got.fed[2] == (NEW_WORD + 1) * size + speaker
    assert got.fed[3] == (ids[2] + 1) * size + ids[0]
    assert [int(got.fed[at]) for at in (6, 24)] == [size + ids[1], size + ids[3]]
    assert got.fed[35] == size + PAD
    assert (got.fed[36:] == PAD).all()
    assert not got.counts[:2].any()
    assert got.counts[[6, 9, 14, 29, 35]].all()
    assert not got.counts[15:24].any()
    assert (got.said[[6, 9, 14, 24, 29, 35]] == NEW_WORD).all()
    assert (got.said[36:] == PAD).all()


def test_a_batch_has_sound_behind_its_text(readings: list[Reading], tokenizer: TalkerTokenizer) -> None:
    spec = reader_spec(lm_config(tokenizer.size))
    rules = ScriptRules.of(spec)
    items = [Scripted.of(one, spec, rules, tokenizer) for one in readings]
    batch = collate(items, readings[0].codes[:, -1], rules)
    for row, (item, one) in enumerate(zip(items, readings, strict=True)):
        frames = one.codes.shape[1]
        sound = batch.tokens[row, 1:, rules.audio_delay : rules.audio_delay + frames]
        assert torch.equal(sound, torch.from_numpy(one.codes.astype(np.int64)))
        assert (batch.tokens[row, 1:, : rules.audio_delay] == -1).all()
        assert (batch.tokens[row, 1:, rules.audio_delay + frames :] == -1).all()
        assert batch.counts[row].sum() == item.cues.counts.sum()


def test_a_reader_goes_on_where_it_was_speaks_and_ships_with_its_voice(
    tmp_path: Path, readings: list[Reading], tokenizer: TalkerTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "readings").mkdir()
    (tmp_path / "readings" / "0000.npz").touch()
    small = {**lm_config(tokenizer.size), "dim": 128, "num_layers": 1, "depformer_dim": 16}
    monkeypatch.setattr(reader_module, "lm_config", lambda _: small)
    monkeypatch.setattr(reader_module, "read_readings", lambda _: readings)
    settings = Settings(short_batch=3, long_batch=2)
    schedule = replace(SCHEDULE, total_steps=4, warm_up_steps=1)

    def trainer(out: Path, start: Path | None = None) -> Trainer:
        return Trainer(settings, schedule, tmp_path / "readings", TINY, out, start)

    with no_compile():
        whole = trainer(tmp_path / "whole")
        losses = [whole.train_step() for _ in range(4)]
        assert losses[-1]["audio"] < losses[0]["audio"]
        whole.save()
        begun = trainer(tmp_path / "begun", tmp_path / "whole")
        for name, tensor in begun.lm.state_dict().items():
            torch.testing.assert_close(tensor, whole.course.judged.state_dict()[name], rtol=0.01, atol=1e-4)
        first = trainer(tmp_path / "halves")
        _ = [first.train_step() for _ in range(2)]
        first.save()
        second = trainer(tmp_path / "halves")
        assert [second.train_step() for _ in range(2)] == losses[2:]
        second.lm.eval()
        texts = ["two plus three", "moo"]
        voice = condition(second.voices["thomas"], "2.0")
        sounds = speak(second.lm, second.mimi, texts, second.spec, second.tokenizer, voice)
    assert all(sound.size % 1920 == 0 and sound.size > 5 * 1920 for sound in sounds)
    ship("reader", tmp_path / "halves", TINY, tmp_path / "tiny-tts")
    checkpoint = load_checkpoint(str(tmp_path / "tiny-tts"))
    assert checkpoint.spec.kind is PipelineKind.TTS
    assert ScriptRules.of(checkpoint.spec) == second.rules
    assert checkpoint.raw_config["conditioners"] == lm_config(tokenizer.size)["conditioners"]
    speakers = find_tts_voices(None, checkpoint)
    assert speakers is not None
    assert list(speakers.names()) == list(VOICES)
    assert SpeakerShape.of(checkpoint.spec) == SpeakerShape(2, 16)
    assert all(speakers.load(name) is not None for name in VOICES)


def test_what_is_understood_is_counted_in_words() -> None:
    assert share_understood(["two plus three", "moo"], ["two plus", "moo"]) == 0.75
    assert share_understood(["moo"], ["a b c d e"]) == 0.0
    assert len(held_out_answers(24)) == 24
    assert Recording.empty("slt").frames == 0
