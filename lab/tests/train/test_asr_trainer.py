"""The recogniser's recipe: word times, passages, their decoding by the server, a trainer that resumes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moshi.models import loaders
from moshi.models.lm import LMModel
from moshi.utils.compile import no_compile
from numpy.typing import NDArray

from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import PipelineKind
from antiphon.models.transcript import PREFIX_FRAMES, SpeechTiming, Word, WordAssembler
from lab.train import asr_trainer as listener_module
from lab.train import passages
from lab.train.asr_trainer import NOT_LM, SCHEDULE, Batch, Settings, Trainer, lm_config, losses
from lab.train.beginnings import codebook_vectors, nearest_codes, start_from_talkers_ear
from lab.train.codec import load_mimi
from lab.train.dictation import dictate, marks
from lab.train.domain import Domain
from lab.train.passages import (
    DELAY_FRAMES,
    NO_PAUSE,
    PAUSE,
    PAUSES_S,
    UNKNOWN,
    Line,
    PassageComposer,
    Room,
    pause_labels,
    shares_by_rarity,
    text_stream,
)
from lab.train.segments import GROUP, PACES, STRIP_FRAMES, Scene, Segment, encoding_order
from lab.train.sequences import ZERO, misheard
from lab.train.ship import ship
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer
from lab.train.word_times import Spoken

TINY = Path(__file__).parents[3] / "weights" / "antiphon_weights" / "tiny"
QUESTION = "what is two plus three"
TIMING = SpeechTiming(0.08, DELAY_FRAMES * 0.08, prefix_frames=1)


@pytest.fixture
def rooms() -> list[Room]:
    rng = np.random.default_rng(4)
    segments = [
        Segment(rng.integers(0, 512, (8, 27)).astype(np.int16), 2, 20, QUESTION, "five") for _ in range(4)
    ]
    lines = tuple(Line(segment, (2.3, 5.0, 8.8, 12.0, 16.4)) for segment in segments)
    return [Room(rng.integers(0, 512, (8, STRIP_FRAMES)).astype(np.int16), lines)]


def told_by(text: NDArray[np.int16], tokenizer: TalkerTokenizer) -> list[tuple[str, float]]:
    """The server's decoding of the tokens of a session."""
    words = WordAssembler(TIMING, tokenizer.decode)
    events = [event for token in text for event in words.feed(int(token))] + words.finish(1e9)
    return [(event.text, event.start_s) for event in events if isinstance(event, Word)]


def test_the_server_reads_words_and_their_starts_off_the_text(tokenizer: TalkerTokenizer) -> None:
    rng, known = random.Random(1), Domain().words()
    for _ in range(20):
        words, at = [], 0.0
        for _ in range(12):
            at += rng.uniform(2.6, 9.0)
            words.append((at, rng.choice(known)))
        told = told_by(text_stream(words, 200, tokenizer), tokenizer)
        assert [word for word, _ in told] == [word for _, word in words]
        assert all(
            abs(start_s - at * 0.08) <= 0.041 for (_, start_s), (at, _) in zip(told, words, strict=True)
        )


def test_words_without_room_wait_and_are_all_told(tokenizer: TalkerTokenizer) -> None:
    words = [(3.0, "what"), (4.2, "is"), (5.0, "a"), (5.6, "cow")]
    text = text_stream(words, 60, tokenizer)
    told = told_by(text, tokenizer)
    assert [word for word, _ in told] == ["what", "is", "a", "cow"]
    assert told[3][1] == pytest.approx(9 * 0.08)
    assert set(np.flatnonzero(text == EPAD)) == {12, 14, 16, 18}
    assert (text_stream(words, 14, tokenizer)[:12] == PAD).all()


def test_a_pause_is_labelled_by_its_whole_length() -> None:
    labels = pause_labels([(10, 19), (24, 30), (60, 70)], 80)
    assert [PAUSES_S[head] for head in range(4) if labels[head, 5] == PAUSE] == [0.5]
    assert (labels[:, 10:20] == NO_PAUSE).all()
    assert (labels[:, 20:24] == NO_PAUSE).all()
    assert [PAUSES_S[head] for head in range(4) if labels[head, 31] == PAUSE] == [0.5, 1.0, 2.0]
    assert [int(labels[head, 75]) for head in range(4)] == [PAUSE, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_passage_has_its_questions_at_their_places(
    rooms: list[Room], tokenizer: TalkerTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "SPLICED", 0.0)
    monkeypatch.setattr(passages, "PACED", 0.0)
    rng = np.random.default_rng(0)
    cold = np.full((8, 26), 7, np.int16)
    composer = PassageComposer(rooms, [rooms[0].strip], cold, tokenizer, 200)
    cold_starts = 0
    for _ in range(40):
        passage = composer.draw(rng)
        assert passage.codes.shape == (8, 200)
        assert passage.pauses.shape == (4, 200)
        first = rooms[0].lines[0]
        begins = [start - first.starts[0] for start, word in passage.words if word == "what"]
        for begin in begins:
            place = round(begin)
            heard = passage.codes[:, place + 2 : place + 21]
            assert any(
                (heard == line.segment.codes[:, 2 : 2 + heard.shape[1]]).all() for line in rooms[0].lines
            )
            assert (passage.pauses[:, place + 2 : place + 21] == NO_PAUSE).all()
        cold_starts += int((passage.codes[:, 0] == 7).all())
        written = [word for word, _ in told_by(passage.text, tokenizer)]
        assert written == [word for _, word in passage.words][: len(written)]
    assert 5 < cold_starts < 30


@pytest.mark.parametrize(("own", "left"), [(1, 0), (2, 3), (5, 0), (5, 4), (4, 2)])
def test_a_spliced_line_is_one_line_and_then_the_other(rooms: list[Room], own: int, left: int) -> None:
    first, second = rooms[0].lines[:2]
    line = first.spliced(second, own, left)
    assert line.words == [*first.words[:own], *second.words[left:]]
    assert len(line.starts) == len(line.words)
    assert list(line.starts) == sorted(line.starts)
    for place, (source, word) in enumerate(
        [*((first, i) for i in range(own)), *((second, i) for i in range(left, 5))]
    ):
        here, there = int(line.starts[place]), int(source.starts[word])
        assert (line.segment.codes[:, here] == source.segment.codes[:, there]).all()
    assert line.segment.start == first.segment.start
    assert (line.segment.codes[:, line.segment.end] == second.segment.codes[:, second.segment.end]).all()


def test_a_paced_line_has_its_words_where_they_are_heard(rooms: list[Room]) -> None:
    line, late = rooms[0].lines[0], []
    old = line.segment
    for factor in np.linspace(*PACES, 40):
        paced = line.paced(float(factor))
        new = paced.segment
        assert new.codes.shape[1] == round(27 * factor)
        assert paced.words == line.words
        source = [int((old.codes == frame[:, None]).all(axis=0).argmax()) for frame in new.codes.T]
        assert source[new.end] in (old.end - 1, old.end)  # a frame may be dropped
        assert source[new.end + 1] > old.end
        assert source[new.start] in (old.start, old.start + 1)
        for before, after in zip(range(27), np.arange(27) * factor, strict=True):
            heard = np.flatnonzero((new.codes == old.codes[:, before : before + 1]).all(axis=0))
            late += [heard[0] - after] if heard.size else []
    assert abs(np.mean(late)) < 0.1
    assert np.abs(late).max() <= 0.6


def test_rare_words_are_heard_more_often_than_they_are_asked(rooms: list[Room]) -> None:
    common = rooms[0].lines[0]
    rare = replace(common, segment=replace(common.segment, question="thank you a lot now"))
    shares = shares_by_rarity([Room(rooms[0].strip, (common,) * 9 + (rare,)), rooms[0]])
    assert [share.sum() for share in shares] == pytest.approx([1, 1])
    assert shares[0][9] / shares[0][0] == pytest.approx(13**passages.RARITY)
    assert shares[1] == pytest.approx(0.25)


def test_what_is_outside_the_domain_is_heard_and_nothing_is_written(
    rooms: list[Room], tokenizer: TalkerTokenizer
) -> None:
    asked = rooms[0].lines[0]
    other = Line(replace(asked.segment, codes=asked.segment.codes * 0 + 9, question=""), ())
    mixed = Room(rooms[0].strip, (*rooms[0].lines, other, other))
    shares = shares_by_rarity([mixed, Room(rooms[0].strip, (other,))])
    assert shares[0][-2:].sum() == pytest.approx(passages.SILENT)
    assert shares[1] == pytest.approx([1.0])
    rng = np.random.default_rng(0)
    composer = PassageComposer([mixed], [rooms[0].strip], np.full((8, 26), 7, np.int16), tokenizer, 200)
    heard = 0
    for passage in (composer.draw(rng) for _ in range(60)):
        foreign = (passage.codes == 9).all(0)
        heard += int(foreign.sum())
        assert not any(foreign[round(start)] for start, _ in passage.words if round(start) < 200)
        written = np.flatnonzero((passage.text != PAD) & (passage.text != EPAD))
        assert passage.is_wordless[written].sum() <= 1  # the last word of the previous passage
        assert not foreign.any() or passage.is_wordless.any() or foreign.argmax() > 180
    assert heard > 60 * 27 * 0.3
    only = PassageComposer([Room(rooms[0].strip, (other,))], [rooms[0].strip], composer.cold, tokenizer, 200)
    alone = only.draw(rng)
    assert (alone.text == PAD).all()
    assert alone.is_wordless.any()
    assert not alone.is_wordless[:DELAY_FRAMES].any()
    assert {NO_PAUSE, PAUSE} <= set(alone.pauses[0])


def test_lines_outside_the_domain_are_kept_and_those_without_times_are_not(
    tmp_path: Path, rooms: list[Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = rooms[0].lines[0].segment
    scene = Scene(rooms[0].strip, (asked, replace(asked, question=""), replace(asked, question="what is")))
    monkeypatch.setattr(listener_module, "read_segments", lambda _: ([scene], np.zeros((0, 8, 9), np.int16)))
    times = [Spoken(1.44, (0.0, 0.3, 0.5, 0.8, 1.1)), Spoken(1.44, ()), Spoken(1.44, ())]
    monkeypatch.setattr(listener_module, "read_word_times", lambda _: times)
    (room,), _ = listener_module.read_rooms(tmp_path, tmp_path)
    assert [line.words for line in room.lines] == [QUESTION.split(), []]


def test_any_word_may_follow_any_other(rooms: list[Room], tokenizer: TalkerTokenizer) -> None:
    rng = np.random.default_rng(0)
    composer = PassageComposer(rooms, [rooms[0].strip], np.full((8, 26), 7, np.int16), tokenizer, 200)
    followed = set()
    for _ in range(60):
        words = [word for _, word in composer.draw(rng).words]
        followed |= set(pairwise(words))
    assert ("two", "what") in followed
    assert ("what", "three") in followed


def test_segments_know_their_utterances() -> None:
    order = encoding_order(2 * GROUP + 3, 3)
    assert sorted(index for group in order for index in group) == list(range(2 * GROUP + 3))
    assert [len(group) for group in order] == [GROUP, GROUP, 3]


def test_a_line_goes_on_more_than_once(rooms: list[Room], monkeypatch: pytest.MonkeyPatch) -> None:
    shares = shares_by_rarity(rooms)[0]
    for share, most in ((0.0, 5), (0.7, 11)):  # two lines are at most ten words
        monkeypatch.setattr(passages, "SPLICED", share)
        rng = np.random.default_rng(0)
        longest = max(len(passages.make_line(rng, rooms[0], shares).words) for _ in range(200))
        assert longest == 5 if share == 0 else longest >= most


def test_marks_count_words_and_time_those_in_both() -> None:
    said = [[(0.1, "two"), (0.5, "plus"), (0.9, "three")], [(0.0, "hello")]]
    told = [[(0.2, "two"), (0.5, "minus"), (0.8, "three")], [(0.3, "hello")]]
    got = marks(said, told)
    assert got.word_error == 1 / 4
    assert got.start_error_ms == pytest.approx(100)
    assert got.silent is None
    nothing = marks(said, [[], []])
    assert (nothing.word_error, nothing.start_error_ms) == (1.0, None)
    with_others = marks([*said, [], []], [*told, [(0.1, "two")], []])
    assert (with_others.word_error, with_others.silent) == (1 / 4, 0.5)
    assert with_others.score == pytest.approx(0.75 + 0.125)


def small_lm(**arguments: Any) -> LMModel:
    config = {**lm_config(9), "dim": 64, "num_heads": 2, "card": 5, **arguments}
    config["delays"] = [0] * (1 + config["n_q"])
    arguments = {key: value for key, value in config.items() if key not in NOT_LM}
    return loaders.get_moshi_lm(None, lm_kwargs=arguments, device="cpu", dtype=torch.float32)


def published(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights with attention's published names."""
    names = {"in_projs.0.weight": "in_proj_weight", "out_projs.0.weight": "out_proj.weight"}
    found = dict(weights)
    for name in weights:
        for own, other in names.items():
            if name.endswith(own):
                found[name.replace(own, other)] = found.pop(name)
    return found


@pytest.mark.parametrize("names", [dict, published], ids=["the modules' names", "the published names"])
def test_a_model_starts_with_a_talkers_ear_and_layers(
    names: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> None:
    torch.manual_seed(0)
    talker = small_lm(n_q=4, num_layers=3).state_dict()
    model = small_lm(n_q=2, num_layers=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start_from_talkers_ear(model, names(talker), heard_from=2)
    for name, tensor in model.state_dict().items():
        if name.startswith("emb."):
            assert torch.equal(tensor, talker[f"emb.{int(name[4]) + 2}{name[5:]}"])
        elif name == "text_emb.weight" or name.startswith("transformer."):
            assert torch.equal(tensor, talker[name]), name
        else:
            assert torch.equal(tensor, before[name]), name
    assert not torch.equal(
        before["transformer.layers.0.self_attn.in_projs.0.weight"],
        model.state_dict()["transformer.layers.0.self_attn.in_projs.0.weight"],
    )


def test_codes_are_misheard_as_near_ones_and_no_more_of_them_than_said() -> None:
    mimi = load_mimi(TINY)
    near, vectors = nearest_codes(mimi, 8), codebook_vectors(mimi)
    assert near.shape == (8, 512, 8)
    distances = torch.cdist(vectors[3], vectors[3])
    assert 17 not in near[3, 17]
    assert distances[17, near[3, 17]].max() <= distances[17].sort().values[8]

    inputs = torch.randint(0, 512, (4, 9, 60), generator=torch.Generator().manual_seed(1))
    inputs[:, :, 0] = ZERO
    inputs[:, 1:, 1] = 512  # the code before the first
    found = misheard(inputs, near, np.random.default_rng(0), 0.3)
    assert torch.equal(found[:, 0], inputs[:, 0])
    assert torch.equal(found[:, :, :2], inputs[:, :, :2])
    changed = (found != inputs).nonzero()
    assert 0.05 < len(changed) / inputs.numel() < 0.3
    assert all(found[b, k, s] in near[k - 1, inputs[b, k, s]] for b, k, s in changed.tolist())
    assert torch.equal(misheard(inputs, near, np.random.default_rng(0), 0.0), inputs)


def test_a_talker_of_another_shape_is_refused() -> None:
    model = small_lm(n_q=2, num_layers=1)
    with pytest.raises(ValueError, match="a talker of width 5 cannot start a model of width 64"):
        start_from_talkers_ear(model, {"text_emb.weight": torch.zeros(9, 5)}, heard_from=2)
    hears_more = small_lm(n_q=5, num_layers=1).state_dict()
    with pytest.raises(ValueError, match=r"the model has no place for the talker's emb.2.weight"):
        start_from_talkers_ear(model, hears_more, heard_from=2)
    hears_less = small_lm(n_q=3, num_layers=1).state_dict()
    with pytest.raises(ValueError, match=r"the talker has no emb.1.weight"):
        start_from_talkers_ear(model, hears_less, heard_from=2)


@pytest.mark.usefixtures("undisturbed")
def test_only_what_the_start_writes_for_known_passages_is_remembered() -> None:
    torch.manual_seed(0)
    model, other = small_lm(num_layers=1), small_lm(num_layers=1)
    codes = torch.randint(0, 5, (2, 9, 20), generator=torch.Generator().manual_seed(1))
    batch = Batch(
        codes,
        torch.zeros(2, 4, 20, dtype=torch.int64),
        torch.zeros(2, 20, dtype=torch.bool),
        torch.tensor([True, False]),
    )

    def forgotten(earlier: LMModel | None, is_known: list[bool]) -> float:
        known = replace(batch, is_known=torch.tensor(is_known))
        near = torch.zeros(8, 5, 8, dtype=torch.int64)
        settings = Settings(misheard=0.0)
        parts = losses(model, known, near, np.random.default_rng(0), settings, earlier)
        return parts["forgotten"].item()

    with no_compile():
        assert forgotten(None, [True, True]) == 0
        assert forgotten(other, [False, False]) == 0
        assert forgotten(model, [True, True]) == pytest.approx(0, abs=1e-6)
        each = [forgotten(other, known) for known in ([True, False], [False, True])]
        assert min(each) > 0
        assert forgotten(other, [True, True]) == pytest.approx(sum(each))


def test_there_is_nothing_to_remember_without_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ("--segments", "--times", "--test", "--test-times", "--codec", "--out")
    arguments = [part for name in needed for part in (name, str(tmp_path))]
    with pytest.raises(SystemExit):
        listener_module.main([*arguments, "--remember"])
    assert "--remember keeps to a recogniser: name its folder with --start" in capsys.readouterr().err


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is hidden from a model in training."""
    monkeypatch.setattr(listener_module, "forgetful", lambda inputs, *_: inputs)


def test_a_listener_goes_on_where_it_was_and_ships_in_the_published_layout(
    tmp_path: Path, rooms: list[Room], tokenizer: TalkerTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("codes", "times", "further"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0000.npz").touch()
    small = {**lm_config(tokenizer.size), "dim": 128, "num_layers": 1}
    monkeypatch.setattr(listener_module, "lm_config", lambda _: small)
    monkeypatch.setattr(listener_module, "read_rooms", lambda *_: (rooms, [rooms[0].strip]))
    settings = Settings(batch=2, frames=80, judge_every_steps=4)
    schedule = replace(SCHEDULE, total_steps=4, warm_up_steps=1)

    folders = tmp_path / "codes", tmp_path / "times"
    test = folders[0] / "0000.npz", folders[1] / "0000.npz"

    def trainer(out: Path, start: Path | None = None, *further: tuple[Path, Path]) -> Trainer:
        return Trainer(settings, schedule, [folders, *further], [test], TINY, out, start)

    with no_compile():
        whole = trainer(tmp_path / "whole")
        losses = [whole.train_step() for _ in range(4)]
        assert losses[-1]["text"] < losses[0]["text"]
        both = trainer(tmp_path / "both", None, (tmp_path / "further", folders[1]))
        assert both.questions == 2 * whole.questions
        rng = np.random.default_rng(0)
        assert {is_first for _, is_first in (whole.draw(rng) for _ in range(20))} == {True}
        known = [is_first for _, is_first in (both.draw(rng) for _ in range(200))]
        assert np.mean(known) == pytest.approx(settings.first_share, abs=0.1)
        assert whole.notes()["word_error"] > 0
        whole.save()
        again = trainer(tmp_path / "again", tmp_path / "whole" / "last")
        for name, tensor in again.lm.state_dict().items():
            torch.testing.assert_close(tensor, whole.course.judged.state_dict()[name], rtol=0.01, atol=1e-4)
        keeping = Trainer(
            settings,
            schedule,
            [folders],
            [test],
            TINY,
            tmp_path / "keeping",
            tmp_path / "whole",
            remember=True,
        )
        began = {name: tensor.clone() for name, tensor in keeping.lm.state_dict().items()}
        assert keeping.train_step()["forgotten"] > 0
        assert not torch.equal(keeping.lm.state_dict()["text_linear.weight"], began["text_linear.weight"])
        for name, tensor in keeping.earlier.state_dict().items():
            assert torch.equal(tensor, began[name]), name
        first = trainer(tmp_path / "halves")
        _ = [first.train_step() for _ in range(2)]
        first.save()
        second = trainer(tmp_path / "halves")
        assert [second.train_step() for _ in range(2)] == losses[2:]
        assert dictate(second.lm, rooms, tokenizer, limit=2).word_error >= 0
    ship("listener", tmp_path / "halves", TINY, tmp_path / "tiny-stt", is_shared=True)
    checkpoint = load_checkpoint(str(tmp_path / "tiny-stt"))
    assert checkpoint.spec.kind is PipelineKind.STT
    assert checkpoint.spec.lm is not None
    assert (checkpoint.spec.lm.extra_heads, checkpoint.spec.lm.dep_q) == (4, 0)
    assert SpeechTiming.of(checkpoint.spec) == replace(TIMING, prefix_frames=PREFIX_FRAMES)
    assert json.loads((tmp_path / "tiny-stt" / "config.json").read_text())["mimi_name"].endswith(
        "antiphon_weights/tiny/mimi.safetensors"
    )
