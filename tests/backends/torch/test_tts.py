"""Text to speech: the same audio codes, words and PCM as upstream's TTSModel, alone and in a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import sentencepiece
import torch
from moshi.models import loaders
from moshi.models.tts import StateMachine, TokenIds, TTSModel
from moshi.utils.compile import no_compile
from safetensors.torch import save_file

from antiphon.backends.base import NO_TOKEN, FloatArray, StepInputs
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.loading import make
from antiphon.backends.torch.pipeline import LayoutKind, place_rows
from antiphon.backends.tts import TtsBackend
from antiphon.errors import UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.conditioning import SpeakerShape, read_speaker
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import TextEntry, TextReader
from tests.support.make_checkpoint import NOT_LM, make_checkpoint

GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)
SAMPLED = SamplingParameters(text_temperature=1.0, audio_temperature=1.0, text_seed=3, audio_seed=4)
TEXTS = (
    'The river was <break time="0.4s"/> quiet at home.',
    "Good: how (are) you?",
    "One two three.",
)
Wanted: TypeAlias = list[tuple[FloatArray, list[int]]]
"""By text: PCM, and the steps its words were begun at."""


@dataclass
class OutputFrame:
    """What a row was heard to say: PCM by frame, and (frame, entry) of what began."""

    pcm: list[FloatArray] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)
    is_finished: bool = False
    ticks: int = 0
    ticks_to_sound: int = 0

    @property
    def audio(self) -> FloatArray:
        return np.concatenate(self.pcm)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_speaker(tmp_path_factory.mktemp("tts") / "tts")


def make_speaker(folder: Path, **shape: Any) -> Path:
    """A small tts checkpoint with a voice for each text beside it."""
    make_checkpoint(folder, kind="tts", dtype="float32", **shape)
    for seed in range(len(TEXTS)):
        generator = torch.Generator().manual_seed(seed)
        save_file(
            {"speaker_wavs": torch.randn(1, 16, 6, generator=generator)}, folder / f"{seed}.safetensors"
        )
    return folder


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(str(folder))


@pytest.fixture
def backend(checkpoint: Checkpoint) -> TtsBackend:
    return backend_of(checkpoint, 5)


def backend_of(checkpoint: Checkpoint, slots: int) -> TtsBackend:
    backend = make(checkpoint, slots=slots, device="cpu", threads=1)
    assert isinstance(backend, TtsBackend)
    for row in range(slots):
        backend.set_parameters(row, GREEDY)
    return backend


def voice(checkpoint: Checkpoint, folder: Path, seed: int) -> Prompt:
    shape = SpeakerShape.of(checkpoint.spec)
    assert shape is not None
    return shape.prompt(read_speaker(folder / f"{seed}.safetensors"))


def entries_of(checkpoint: Checkpoint, text: str) -> tuple[TextEntry, ...]:
    tokenizer = checkpoint.text_tokenizer()
    assert tokenizer is not None
    return (*TextReader(checkpoint.spec, tokenizer.encode).read(text), TextEntry((), is_last=True))


def upstream(folder: Path, guidance: float = 1.0) -> TTSModel:
    config = json.loads((folder / "config.json").read_text())
    mimi_config = json.loads((folder / "mimi_config.json").read_text())
    mimi = loaders.get_mimi(folder / "mimi.safetensors", mimi_config, num_codebooks=8)
    arguments = {
        key: value for key, value in config.items() if key not in NOT_LM and not key.endswith("_name")
    }
    lm = loaders.get_moshi_lm(
        folder / "model.safetensors", lm_kwargs=arguments, device="cpu", dtype=torch.float32
    )
    return TTSModel(
        lm, mimi, sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model")), "", "",
        machine=StateMachine(TokenIds(lm.text_card + 1), 2, max_padding=8, initial_padding=2),
        delay_steps=8, n_q=8, cfg_coef=guidance,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wanted(folder: Path) -> Wanted:
    return said_by_upstream(upstream(folder), folder, told=2.0)


def said_by_upstream(model: TTSModel, folder: Path, told: float | None) -> Wanted:
    """By text: upstream's PCM from the first audible frame on, and the steps its entries were taken at.

    ``told`` is the coefficient for a model that was trained to be told one.
    """
    with torch.no_grad(), no_compile():
        attributes = [
            model.make_condition_attributes([folder / f"{seed}.safetensors"], cfg_coef=told)
            for seed in range(len(TEXTS))
        ]
        scripts = [model.prepare_script([text], padding_between=1) for text in TEXTS]
        result = model.generate(scripts, attributes, use_sampling=False)
        with model.mimi.streaming(len(TEXTS)):
            frames = result.frames[model.delay_steps :]
            pcm = torch.cat([model.mimi.decode(frame[:, 1:]) for frame in frames], dim=2)
    found = []
    for row, (end_step, steps) in enumerate(zip(result.end_steps, result.all_consumption_times, strict=True)):
        assert end_step is not None
        heard = end_step + model.final_padding - max(model.lm.delays)
        found.append((pcm[row, 0, : heard * 1920].numpy(), steps))
    return found


class Driver:
    """Ticks a backend; each row is offered its words a few at a time."""

    def __init__(self, backend: TtsBackend, *, offered: int = 3) -> None:
        self.backend, self.offered = backend, offered
        self.said: dict[int, OutputFrame] = {}
        self.waiting: dict[int, list[TextEntry]] = {}
        self.fresh: set[int] = set()

    def begin(self, row: int, entries: Sequence[TextEntry], prompt: Prompt | None) -> OutputFrame:
        if prompt is None:
            self.fresh.add(row)
        else:
            assert self.backend.prime(row, prompt).is_done
        self.waiting[row] = list(entries)
        self.said[row] = OutputFrame()
        return self.said[row]

    def tick(self, rows: Sequence[int]) -> None:
        reset = np.array([row in self.fresh for row in rows])
        self.fresh -= set(rows)
        text = tuple(tuple(self.waiting.get(row, [])[: self.offered]) for row in rows)
        outputs = self.backend.step(StepInputs(np.array(rows, np.int32), reset, None, text))
        assert outputs.pcm is not None
        assert outputs.text_tokens is not None
        assert outputs.finished is not None
        for place, row in enumerate(rows):
            said = self.said[row]
            said.ticks += 1
            if outputs.consumed[place]:
                del self.waiting[row][: self.offered]
            if outputs.emitted[place]:
                if outputs.text_tokens[place] != NO_TOKEN:
                    said.words.append((len(said.pcm), int(outputs.text_tokens[place])))
                said.pcm.append(outputs.pcm[place].copy())
                said.ticks_to_sound = said.ticks_to_sound or said.ticks
            said.is_finished = bool(outputs.finished[place])

    def move(self, source: int, target: int) -> None:
        self.backend.restore(target, self.backend.snapshot(source))
        self.said[target] = self.said.pop(source)
        self.waiting[target] = self.waiting.pop(source)

    def run(self, rows: Sequence[int]) -> None:
        while rows := [row for row in rows if not self.said[row].is_finished]:
            self.tick(rows)


def assert_said(said: OutputFrame, wanted: tuple[FloatArray, list[int]]) -> None:
    pcm, steps = wanted
    assert len(said.audio) >= len(pcm) > 12 * 1920
    assert np.abs(said.audio[: len(pcm)] - pcm).max() < 2e-5
    assert said.words == [(step, index) for index, step in enumerate(steps)]
    assert len(said.audio) == len(pcm) + 2 * 1920, "the delay of the last codebook is heard to its end"


@pytest.mark.parametrize("offered", [1, 8])
def test_one_alone_says_what_upstream_says(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Any, offered: int
) -> None:
    driver = Driver(backend, offered=offered)
    said = driver.begin(0, entries_of(checkpoint, TEXTS[0]), voice(checkpoint, folder, 0))
    driver.run([0])
    assert_said(said, wanted[0])
    if offered == 8:
        assert said.ticks_to_sound == 5, "of ten steps before the first sound, nine are taken in three ticks"


def test_many_who_join_pause_and_follow_one_another_do_too(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Any
) -> None:
    driver, random = Driver(backend), np.random.default_rng(7)
    texts = [entries_of(checkpoint, text) for text in TEXTS]
    queue, going, told = list(range(3)) * 3, dict[int, int](), 0
    while queue or going:
        free = [row for row in range(5) if row not in going]
        if queue and free and random.random() < 0.3:
            row, which = free[0], queue.pop(0)
            going[row] = which
            driver.begin(row, texts[which], voice(checkpoint, folder, which))
        rows = [row for row in going if random.random() < 0.8]
        if not rows:
            continue
        driver.tick(rows)
        if random.random() < 0.1 and (empty := [row for row in range(5) if row not in going]):
            source = rows[0]
            driver.move(source, empty[0])
            going[empty[0]] = going.pop(source)
        for row in [row for row in going if driver.said[row].is_finished]:
            assert_said(driver.said[row], wanted[going.pop(row)])
            told += 1
    assert told == 9


def test_a_row_that_waits_for_text_keeps_its_state_and_says_the_same(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Any
) -> None:
    driver = Driver(backend, offered=1)
    entries = entries_of(checkpoint, TEXTS[1])
    said = driver.begin(0, entries[:3], voice(checkpoint, folder, 1))
    for entry in entries[3:]:
        for _ in range(12):
            driver.tick([0])
        quiet = len(said.pcm)
        driver.tick([0])
        assert len(said.pcm) == quiet
        driver.waiting[0].append(entry)
    driver.run([0])
    assert_said(said, wanted[1])


def test_a_snapshot_goes_on_the_same_in_any_row(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path, wanted: Any
) -> None:
    driver = Driver(backend, offered=40)
    driver.begin(0, entries_of(checkpoint, TEXTS[0]), voice(checkpoint, folder, 0))
    for _ in range(20):
        driver.tick([0])
    snapshot = backend.snapshot(0)
    driver.begin(3, entries_of(checkpoint, TEXTS[1]), voice(checkpoint, folder, 1))
    driver.tick([3])
    backend.restore(3, snapshot)
    driver.waiting[3] = list(driver.waiting[0])
    driver.said[3] = OutputFrame(list(driver.said[0].pcm), list(driver.said[0].words))
    driver.run([3])
    assert_said(driver.said[3], wanted[0])


def test_a_reset_row_has_nobodys_voice_like_a_fresh_one(
    backend: TtsBackend, checkpoint: Checkpoint, folder: Path
) -> None:
    entries = entries_of(checkpoint, TEXTS[1])
    driver = Driver(backend_of(checkpoint, 1))
    fresh = driver.begin(0, entries, None)
    driver.run([0])
    used = Driver(backend)
    used.begin(0, entries_of(checkpoint, TEXTS[0]), voice(checkpoint, folder, 0))
    for _ in range(12):
        used.tick([0])
    again = used.begin(0, entries, None)
    used.run([0])
    assert np.array_equal(again.audio, fresh.audio)
    backend.warm_up(lambda done, total, what: None)
    backend.set_parameters(0, GREEDY)
    warm = used.begin(0, entries, None)
    used.fresh.clear()
    used.run([0])
    assert np.array_equal(warm.audio, fresh.audio)


def test_dice_are_a_sessions_own(checkpoint: Checkpoint, folder: Path) -> None:
    backend = backend_of(checkpoint, 2)
    for row in range(2):
        backend.set_parameters(row, SAMPLED)
    entries, prompt = entries_of(checkpoint, TEXTS[1]), voice(checkpoint, folder, 1)
    driver = Driver(backend)
    alone = driver.begin(1, entries, prompt)
    driver.run([1])
    beside = driver.begin(1, entries, prompt)
    driver.begin(0, entries_of(checkpoint, TEXTS[2]), None)
    driver.run([0, 1])
    assert np.abs(beside.audio - alone.audio).max() < 2e-5


def test_a_voice_is_computed_once(backend: TtsBackend, checkpoint: Checkpoint, folder: Path) -> None:
    prompt = voice(checkpoint, folder, 2)
    assert [backend.prime(row, prompt).is_copied for row in (0, 1, 0)] == [False, True, True]
    assert not backend.prime(1, voice(checkpoint, folder, 1)).is_copied


def test_what_is_no_voice_is_refused(backend: TtsBackend, checkpoint: Checkpoint, folder: Path) -> None:
    shape = SpeakerShape.of(checkpoint.spec)
    assert shape is not None
    with pytest.raises(
        UnsupportedError, match=r"voices \[1, 5, 16\], but this model needs float32 \[1 to 5, 6, 16\]"
    ):
        backend.prime(0, Prompt(np.zeros((0, 0), np.int32), speakers=np.zeros((1, 5, 16), np.float32)))
    with pytest.raises(UnsupportedError, match=r"a tts model takes voices, .* and no other prompt"):
        backend.prime(0, Prompt(np.zeros((3, 9), np.int32)))


def test_bits_of_every_token_arrive(backend: TtsBackend) -> None:
    executor, rows = backend.executor, np.arange(5, dtype=np.int32)
    assert isinstance(executor, TorchRows)
    tokens = torch.tensor([0, 3, 2**24 + 1, 2**31 - 1, -2])
    executor.pipeline.write_text(tokens)
    places = place_rows(LayoutKind.EAGER, 5, rows[::-1].copy(), np.zeros(5, np.int64), is_fixed=True)
    assert executor.text_tokens(places).tolist() == tokens.tolist()[::-1]
