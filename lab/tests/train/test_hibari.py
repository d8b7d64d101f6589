"""hibari: pulses and spectra, another throat, word starts, accents. A graph of constant spectra replaces its
own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from antiphon.arrays import FloatArray
from lab.train.hibari import BINS, HOP, Hibari, analysed, pulses, sounding, synthesised
from lab.train.kokoro import STEP_SAMPLES, phonemes
from lab.train.material import HIBARI_DURATIONS
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.throats import Throat

HZ, FRAMES, LASTING = 200.0, 80, 2
"""The graph's pitch, its frames, and the steps of every phoneme."""
OUTPUTS = ("lh", "theta", "ln", "lr", "phi")


@pytest.fixture
def hibari(tmp_path: Path) -> Hibari:
    """A graph with hibari's inputs and outputs: pulses at ``HZ`` with a formant at 2 kHz."""
    letters = {
        letter: 1 + place for place, letter in enumerate(", ɹæbcdefhijklmnopstuvwzɑəɛɪʊʌˈˌAIOWYɡŋðθɔɒ")
    }
    (tmp_path / "symbols.json").write_text(json.dumps(letters))
    values: dict[str, FloatArray] = {name: np.full((1, BINS, FRAMES), -12, np.float32) for name in OUTPUTS}
    values["lh"] = np.repeat(formant(2000)[None], FRAMES, axis=2)
    values |= {name: np.zeros((1, BINS, FRAMES), np.float32) for name in ("theta", "phi")}
    values["f0"] = np.full((1, FRAMES), HZ, np.float32)
    values["lasting"] = np.array(float(LASTING), np.float32)
    nodes = [
        helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["numbers", "numbers"], ["none"]),
        helper.make_node("Add", ["none", "lasting"], [HIBARI_DURATIONS]),
        helper.make_node("ReduceSum", ["none"], ["nothing"], keepdims=0),
        *(helper.make_node("Add", [f"{name} of the graph", "nothing"], [name]) for name in (*OUTPUTS, "f0")),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1, None]),
        helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in (*OUTPUTS, "f0", HIBARI_DURATIONS)
    ]
    constants = [
        numpy_helper.from_array(value, name if name == "lasting" else f"{name} of the graph")
        for name, value in values.items()
    ]
    graph = helper.make_graph(nodes, "spectra", inputs, outputs, constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "model.onnx",
    )
    return Hibari(tmp_path)


def formant(hz: float) -> FloatArray:
    """Logarithms of gains ``[BINS, 1]`` with a peak."""
    at = np.arange(BINS)[:, None] * SAMPLE_RATE / (4 * HOP)
    return (-2 - (np.abs(at - hz) / 300)).astype(np.float32)


def peak_hz(pcm: FloatArray) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(pcm.size)))
    return float(np.argmax(spectrum)) * SAMPLE_RATE / pcm.size


def test_a_synthesis_of_an_analysis_is_the_sound() -> None:
    pcm = np.random.default_rng(0).standard_normal(40 * HOP).astype(np.float32)
    again = synthesised(analysed(pcm) * HOP)
    inside = slice(2 * HOP, -2 * HOP)
    assert again.size == pcm.size
    np.testing.assert_allclose(again[inside], pcm[inside], atol=1e-4)


def test_a_unit_cosine_has_a_magnitude_of_one() -> None:
    at = np.arange(20 * HOP)
    pcm = np.cos(2 * np.pi * 100 / (4 * HOP) * at).astype(np.float32)
    assert np.abs(analysed(pcm)[5:-5, 100]) == pytest.approx(1.0, abs=0.01)


def test_pulses_have_equal_harmonics_and_none_without_a_pitch() -> None:
    hz = np.full(80, 200.0, np.float32)
    spectrum = np.abs(np.fft.rfft(pulses(hz))) / (hz.size * HOP / 2)
    every = round(200 * hz.size * HOP / SAMPLE_RATE)
    harmonics = spectrum[every::every][:50]
    assert harmonics == pytest.approx(1.0, abs=0.02)
    assert spectrum[every // 2 :: every][:50].max() < 0.05
    assert not pulses(np.zeros(10, np.float32)).any()


def test_words_begin_where_their_phonemes_do_and_a_turn_is_the_same_again(hibari: Hibari) -> None:
    voice = Voice("hibari", "en-us", throat=Throat(1.1, 150.0, 1.0))
    said = hibari.speak(voice, "two plus two")
    lengths = [len(part) for part in phonemes("two plus two", "en-us").split()]
    step_s = LASTING * STEP_SAMPLES / SAMPLE_RATE
    second = 1 + lengths[0] + 1
    third = second + lengths[1] + 1
    assert said.starts_s == pytest.approx((step_s, second * step_s, third * step_s))
    assert said.pcm.size == FRAMES * HOP
    np.testing.assert_array_equal(said.pcm, hibari.speak(voice, "two plus two").pcm)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.25])
def test_another_throat_has_other_formants_and_another_pitch(hibari: Hibari, ratio: float) -> None:
    voice = Voice("hibari", "en-us", throat=Throat(ratio, 100.0, 1.0))
    pcm = hibari.speak(voice, "two").pcm
    assert peak_hz(pcm) == pytest.approx(2000 * ratio, abs=120)
    again = np.correlate(pcm, pcm, "full")[pcm.size - 1 :]
    period = 60 + int(np.argmax(again[60:400]))
    assert SAMPLE_RATE / period == pytest.approx(100, rel=0.02)


def test_a_throat_swings_about_its_own_pitch() -> None:
    hz = np.geomspace(150, 300, FRAMES).astype(np.float32)
    quiet = np.full((BINS, FRAMES), -12, np.float32)
    flat = sounding(
        np.random.default_rng(0),
        Throat(1.0, 120.0, 0.0),
        np.full_like(quiet, -2),
        np.zeros_like(quiet),
        quiet,
        quiet,
        np.zeros_like(quiet),
        hz,
    )
    spectrum = np.abs(np.fft.rfft(flat))
    every = round(120 * flat.size / SAMPLE_RATE)
    assert spectrum[every::every][:20].min() > 20 * np.median(spectrum)


def test_the_british_accent_has_vowels_that_the_voice_knows(hibari: Hibari) -> None:
    symbols = hibari.symbols["en-gb"]
    assert symbols["ɒ"] == hibari.symbols["en-us"]["ɑ"]
    assert symbols["b"] == hibari.symbols["en-us"]["b"]


def test_a_text_without_a_phoneme_is_named(hibari: Hibari) -> None:
    with pytest.raises(ValueError, match=r"^0 phonemes in ' ', it must be 1 to 509$"):
        hibari.speak(Voice("hibari", "en-us"), " ")
