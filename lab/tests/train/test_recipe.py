"""The codec's recipe: text and voices from seeds, disturbances, losses, and a trainer that resumes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import PipelineKind
from lab.train import __main__ as whole
from lab.train import held_out, questions
from lab.train.augment import add_noise, coloured_noise, disturb, equalise
from lab.train.codec import SCHEDULE, Settings, Speech, Trainer
from lab.train.domain import Domain
from lab.train.losses import EnvelopeLoss, SpectralLoss
from lab.train.outside import ABROAD, ABROAD_BY, Outside
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Asked, plan
from lab.train.recipe import NATURAL, Recipe
from lab.train.sentences import draw_sentence
from lab.train.synthetic_voices import (
    Voice,
    draw_voice,
    require_held_out_speakers,
    require_pico,
    require_speakers,
)
from lab.train.throats import Throat

TINY = Path(__file__).parents[3] / "weights" / "antiphon_weights" / "tiny"


def test_a_speaker_who_hesitates_says_the_same_with_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "speak", lambda _, text: np.ones(1000 * len(text.split()), np.float32))
    voice = Voice("flite", "slt")
    whole = questions.spoken_with(voice, "what is two plus three")
    assert whole.size == 5000
    paused = questions.spoken_with(voice, "what is two plus three", 3, 0.25)
    assert np.flatnonzero(paused == 0).tolist() == list(range(3000, 9000))
    assert paused.size == 11_000


def test_in_training_one_question_in_five_has_a_pause_and_no_other_turn() -> None:
    rng, domain = random.Random(1), Domain()
    turns = [plan(rng, domain, Asked())[0] for _ in range(1500)]
    pauses = [questions.hesitation(rng, turn) for turn in turns]
    hesitant = [(turn, place, pause_s) for turn, (place, pause_s) in zip(turns, pauses, strict=True) if place]
    assert {turn.intent for turn, *_ in hesitant} <= set(PHRASINGS)
    assert all(1 < place < len(turn.question.split()) for turn, place, _ in hesitant)
    assert not any(turn.question.split()[place:] == ["please"] for turn, place, _ in hesitant)
    assert all(0.2 <= pause_s <= 1.0 for *_, pause_s in hesitant)
    assert 100 < len(hesitant) < 260


def test_a_seed_is_a_corpus() -> None:
    lines = [[draw_sentence(random.Random(seed)) for seed in range(50)] for _ in range(2)]
    assert lines[0] == lines[1]
    assert len(set(lines[0])) > 45


def test_further_synthesisers_speak_where_they_are_asked_to_and_never_to_be_judged() -> None:
    rng, further = random.Random(0), ("rhvoice", "pico")
    programs = [draw_voice(rng, further=further).program for _ in range(400)]
    assert 90 < programs.count("rhvoice") < 150
    assert 55 < programs.count("pico") < 115
    assert not {draw_voice(rng).program for _ in range(200)} & {*further}
    assert not {draw_voice(rng, further=further, held_out=True).program for _ in range(200)} & {*further}
    command = Voice("rhvoice", "bdl", 80, 100).command("hello", Path("said.wav"))
    assert command == ["RHVoice-test", "-p", "bdl", "-r", "50", "-t", "200", "-o", "said.wav"]
    manner = "<pitch level='200'><speed level='50'>hello</speed></pitch>"
    command = Voice("pico", "en-GB", 80, 100).command("hello", Path("said.wav"))
    assert command == ["pico2wave", "-l", "en-GB", "-w", "said.wav", manner]


def test_other_languages_are_spoken_by_further_synthesisers_too() -> None:
    rng, further = random.Random(1), ("rhvoice", "pico")
    drawn = [Outside().draw(rng, further=further) for _ in range(2000)]
    abroad = {(voice.program, voice.name) for turn, voice in drawn if turn.intent == ABROAD}
    by_further = {voice for voice in abroad if voice[0] in further}
    assert by_further == {voice for voices in ABROAD_BY.values() for voice in voices}
    assert {program for program, _ in abroad} == {"espeak-ng", *further}
    assert not set(ABROAD_BY) & set(held_out.LANGUAGES)


def harmonics(pitch_hz: float) -> NDArray[np.float32]:
    """A second of a buzz with its strongest part around 1000 Hz, at 24 kHz."""
    time_s = np.arange(24_000) / 24_000
    parts = [
        np.sin(2 * np.pi * n * pitch_hz * time_s) * np.exp(-(((n * pitch_hz - 1000) / 250) ** 2))
        for n in range(1, 40)
    ]
    buzz: NDArray[np.float64] = np.sum(parts, axis=0)
    return (0.2 * buzz).astype(np.float32)


def spectrum(pcm: NDArray[np.float32]) -> NDArray[np.float64]:
    """The spectrum by Hz."""
    return np.abs(np.fft.rfft(pcm, 24_000))


def test_a_throat_moves_pitch_and_formants_and_no_time() -> None:
    buzz = harmonics(120.0)
    bent = Throat(formant_ratio=1.2, median_hz=170.0, swing_ratio=1.0).bent(buzz, 24_000)
    assert bent.shape == buzz.shape
    assert bent.dtype == np.float32
    before, after = spectrum(buzz), spectrum(bent)
    frequency = np.arange(before.size)
    assert (frequency * before**2).sum() / (before**2).sum() == pytest.approx(1000, rel=0.05)
    assert (frequency * after**2).sum() / (after**2).sum() == pytest.approx(1200, rel=0.05)
    strongest = int(after.argmax())
    assert min(strongest % 170, -strongest % 170) <= 8


def test_a_throat_with_a_wide_swing_keeps_a_falling_pitch_above_zero() -> None:
    hz = np.interp(np.arange(22_000), (0, 14_000, 18_000, 22_000), (250, 240, 80, 75))
    phase = 2 * np.pi * np.cumsum(hz) / 24_000
    tones = [0.8**n * np.sin(n * phase) for n in range(1, 12)]
    falling = (0.2 * np.sum(tones, axis=0)).astype(np.float32)
    bent = Throat(1.0, 200.0, 1.8, duration_ratio=0.8).bent(falling, 24_000)
    assert bent.size == pytest.approx(0.8 * falling.size, rel=0.02)
    assert np.isfinite(bent).all()


def test_what_is_too_short_for_a_pitch_is_left_as_it_is() -> None:
    click = harmonics(120.0)[:200]
    assert np.array_equal(Throat(1.2, 170.0, 1.0).bent(click, 24_000), click)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_so_many_questions_are_words_in_no_order_as_is_said(share: float) -> None:
    rng, domain = random.Random(3), Domain()
    turns = [plan(rng, domain, Asked(words_share=share))[0] for _ in range(400)]
    assert [turn.intent for turn in turns].count("words") == pytest.approx(400 * share, abs=100 * share)


def test_speakers_that_are_missing_are_named_with_their_packages(tmp_path: Path) -> None:
    require_speakers()
    (tmp_path / "english" / "ked_diphone").mkdir(parents=True)
    with pytest.raises(
        SystemExit, match=r"^not installed: festvox-us-slt-hts; apt-get install festvox-us-slt"
    ):
        require_speakers(tmp_path)
    with pytest.raises(SystemExit, match=r"^not installed: festvox-kallpc16k.*; apt-get install festvox-kal"):
        require_held_out_speakers(tmp_path)


def test_a_voice_is_what_is_told_of_it() -> None:
    rng = random.Random(1)
    for _ in range(50):
        voice = draw_voice(rng)
        assert Voice.read(json.loads(json.dumps(asdict(voice)))) == voice


def test_another_colour_keeps_within_8_db() -> None:
    noise = coloured_noise(np.random.default_rng(1), 24_000, 0.0)
    gain_db = 20 * np.log10(spectrum(equalise(np.random.default_rng(2), noise)) / spectrum(noise))
    assert -8.1 < gain_db.min() < -2
    assert 2 < gain_db.max() < 8.1


@pytest.mark.parametrize("snr_db", [0.0, 20.0])
def test_noise_is_as_loud_as_said(snr_db: float) -> None:
    rng = np.random.default_rng(0)
    pcm = rng.standard_normal(24_000).astype(np.float32)
    noise = add_noise(pcm, coloured_noise(rng, 24_000, 1.0), snr_db) - pcm
    assert 10 * np.log10(np.mean(pcm**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.05)


def test_disturbed_speech_stays_in_range() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        pcm, babble = rng.standard_normal((2, 9600)).astype(np.float32)
        out = disturb(rng, pcm, babble)
        assert out.shape == pcm.shape
        assert out.dtype == np.float32
        assert 0.04 < np.abs(out).max() < 0.96


def test_losses_are_zero_for_the_same_and_not_for_another() -> None:
    speech, other = torch.randn(2, 2, 24_000, generator=torch.Generator().manual_seed(0))
    for loss in (SpectralLoss(), EnvelopeLoss()):
        assert loss(speech, speech).item() == pytest.approx(0.0, abs=1e-4)
        assert loss(other, speech).item() > 0.3


def test_envelopes_do_not_mind_loudness() -> None:
    speech = torch.randn(2, 24_000, generator=torch.Generator().manual_seed(0))
    assert EnvelopeLoss()(0.3 * speech, speech).item() == pytest.approx(0.0, abs=1e-3)


def test_training_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "0000.npz", pcm=rng.integers(-9000, 9000, 100_000).astype(np.int16), ends=[100_000])
    speech, out = Speech(tmp_path), tmp_path / "out"
    settings = replace(Settings(), batch=1, frames=6, schedule=replace(SCHEDULE, warm_up_steps=1))
    trainer = Trainer(settings, speech, TINY, out)
    for _ in range(2):
        assert all(np.isfinite(value) for value in trainer.train_step().values())
    trainer.save()
    again = Trainer(settings, speech, TINY, out)
    assert again.step == 2
    for name, tensor in trainer.mimi.state_dict().items():
        torch.testing.assert_close(tensor, again.mimi.state_dict()[name], rtol=0, atol=0)


def test_the_whole_recipe_runs_from_an_empty_folder(tmp_path: Path) -> None:
    """It runs two steps of everything: every stage reads the output of earlier ones."""
    out = tmp_path / "out"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lab.train", "--small", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"==> {len(Recipe(out).stages())} of " in done.stderr
    for name, kind in (
        ("tiny", PipelineKind.DUPLEX),
        ("tiny-stt", PipelineKind.STT),
        ("tiny-tts", PipelineKind.TTS),
    ):
        assert load_checkpoint(str(out / name)).spec.kind is kind
    for trainer in ("decoder", "talker", "listener", "reader"):
        assert torch.load(out / trainer / "trainer.pt", weights_only=True)["step"] == 2
    assert not list(out.rglob("*.part*"))


def test_what_is_trained_on_starts_with_the_models_of_a_folder_and_keeps_their_codec(tmp_path: Path) -> None:
    start = Path("server/antiphon/assets")
    begun = {title: arguments for title, _, arguments in Recipe(tmp_path, start=start).stages()}
    alone = {title: arguments for title, _, arguments in Recipe(tmp_path).stages()}
    assert set(alone) - set(begun) == {
        "speech for the codec",
        "held-out speech",
        "the codec",
        "what the models say",
        "the codec's decoder",
    }
    for title, model in (
        ("the talker", "tiny"),
        ("the recogniser", "tiny-stt"),
        ("the synthesiser", "tiny-tts"),
    ):
        assert begun[title][begun[title].index("--start") + 1] == str(start / model)
        assert begun[title][begun[title].index("--codec") + 1] == str(start / "tiny")
    assert "--start" not in alone["the talker"]
    assert alone["the recogniser"][-1] == str(tmp_path / "talker")


def test_with_natural_voices_recogniser_and_synthesiser_go_on_and_nothing_else_is_trained(
    tmp_path: Path,
) -> None:
    start, material = tmp_path / "built-in", tmp_path / "material"
    plan = Recipe(tmp_path, start=start, material=material, scale=NATURAL).stages()
    told = {title: arguments for title, _, arguments in plan}
    assert [title for title in told if title.startswith("the ")] == [
        *("the recogniser", "the recogniser's folder", "the synthesiser", "the synthesiser's folder"),
    ]
    for title in ("natural speech", "held-out natural speech"):
        assert told[title][told[title].index("--material") + 1] == str(material)
    assert "--held-out" in told["held-out natural speech"]
    assert "--held-out" not in told["natural speech"]
    recogniser, written = told["the recogniser"], told["stretches"][-1]
    assert "--remember" in recogniser
    assert recogniser[recogniser.index("--stretches") + 1] == written
    assert told["stretches"][told["stretches"].index("--copies") + 1] == "3"
    for option, title in (
        ("--segments", "codes of natural speech"),
        ("--times", "word times of natural speech"),
        ("--test", "codes of held-out natural speech"),
        ("--test-times", "word times of held-out natural speech"),
    ):
        place = Path(recogniser[recogniser.index(option) + 2])
        assert told[title][-1] in (str(place), str(place.parent))
    assert told["readings"][told["readings"].index("--natural") + 1] == str(material)
    for title in ("the recogniser's folder", "the synthesiser's folder"):
        assert told[title][told[title].index("--shared-codec") + 1] == str(start / "tiny")


def test_natural_voices_need_models_to_go_on_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        whole.main(["--natural", "out/material"])
    assert (
        "--natural continues from trained models: name their folder with --start" in capsys.readouterr().err
    )


@pytest.mark.parametrize("further", [(), ("rhvoice",), ("rhvoice", "pico")])
def test_further_synthesisers_ask_in_the_whole_recipe_where_they_are_told_to(
    tmp_path: Path, further: tuple[str, ...]
) -> None:
    plans = Recipe(tmp_path, further=further).stages()
    told = {title: arguments for title, _, arguments in plans}
    for name in ("rhvoice", "pico"):
        assert (f"--{name}" in told["questions"]) == (name in further)
        assert f"--{name}" not in told["held-out questions"]


@pytest.mark.parametrize("module", [whole, questions])
@pytest.mark.parametrize("name", ["rhvoice", "pico"])
def test_what_is_missing_is_said_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: ModuleType, name: str
) -> None:
    def missing() -> None:
        raise SystemExit(f"not installed: {name}")

    monkeypatch.setattr(questions, f"require_{name}", missing)
    with pytest.raises(SystemExit, match=rf"^not installed: {name}$"):
        module.main([f"--{name}", "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_pico_s_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match=r"^not installed: pico2wave; apt-get install .* --pico$"):
        require_pico()


def test_a_share_of_words_is_a_share(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        questions.main(["--words", "60", "--out", str(tmp_path)])
    assert "--words 60.0 is not between 0 and 0.7" in capsys.readouterr().err
