"""``antiphon verify``: parity with upstream, deviations, and models without a check."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon import cli
from antiphon.errors import ConfigError
from antiphon.install import install_command
from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import QuantizationRecipe
from antiphon_quantize.bench import verify
from antiphon_quantize.bench.card import Quality, not_judged
from antiphon_quantize.bench.subject import Subject
from antiphon_quantize.bench.verify import (
    BackendOutput,
    Parity,
    VerifyState,
    baseline_of,
    check_files,
    check_parity,
    compare,
    gate_finding,
    main,
    snr_db,
)
from tests.quantize.bench.fakes import QUALITY, read_card
from tests.support.make_checkpoint import make_checkpoint

ONE = {"threads": 1}


def test_a_backend_of_ours_is_upstream_s_equal() -> None:
    checkpoint = load_checkpoint("tiny")
    finding = check_parity(Subject("d", "tiny", "torch", "cpu", ONE), checkpoint, 8)
    assert finding.state is VerifyState.OK, finding
    assert "torch against upstream's modules: 8 frames, every text token equal" in finding.words


def test_another_model_s_answer_is_not() -> None:
    checkpoint = load_checkpoint("tiny")
    finding = check_parity(Subject("d", "tiny", "null"), checkpoint, 8)
    assert finding.state is VerifyState.FAILED
    assert "null against upstream's modules: text tokens differ from frame 0 of 8 on" in str(finding)


def test_parity_is_tokens_and_sound() -> None:
    random = np.random.default_rng(0)
    pcm = random.normal(size=(4, 10)).astype(np.float32)
    said = BackendOutput(pcm, (5, 6, 7, 8))
    assert compare(said, said) == Parity(4, None, math.inf)
    assert str(compare(said, said)) == "4 frames, every text token equal, sound equal (least 40 dB)"
    near = compare(said, BackendOutput(pcm * np.float32(1.001), said.text))
    assert near.snr_db == pytest.approx(60, abs=0.1)
    assert near.is_equal
    assert not compare(said, BackendOutput(pcm * np.float32(1.1), said.text)).is_equal
    assert not compare(said, BackendOutput(pcm, (5, 6, 9, 8))).is_equal
    assert compare(said, BackendOutput(pcm, (5, 6, 9, 9))).first_difference == 2
    assert snr_db(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)) == -math.inf


def test_what_upstream_cannot_be_asked_about_says_why(tmp_path: Path) -> None:
    checkpoint = load_checkpoint("echo")
    assert checkpoint.manifest is not None
    rounded = replace(checkpoint.manifest, quantization=QuantizationRecipe("int8-x", 8))
    subject = Subject("e", "echo", "onnx")
    told = [
        check_parity(subject, replace(checkpoint, manifest=rounded), 1),
        check_parity(replace(subject, backend="reference"), checkpoint, 1),
    ]
    stt = make_checkpoint(tmp_path / "stt", kind="stt")
    told.append(check_parity(Subject("s", str(stt), "torch"), load_checkpoint(str(stt)), 1))
    assert {finding.state for finding in told} == {VerifyState.NOT_CHECKED}
    words = [finding.words for finding in told]
    assert "upstream has no such weights (int8-x)" in words[0]
    assert "it runs on upstream's modules already" in words[1]
    assert "for codec and duplex models, not for stt" in words[2]


def test_upstream_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.backends.registry.find_spec", lambda name: None if name == "moshi" else 1)
    finding = check_parity(Subject("e", "echo", "torch"), load_checkpoint("echo"), 1)
    assert finding.state is VerifyState.NOT_CHECKED
    assert install_command("reference") in finding.words


def test_files_are_held_to_the_digests_of_the_manifest(tmp_path: Path) -> None:
    finding = check_files(load_checkpoint("echo"))
    assert (finding.state, finding.words) == (
        VerifyState.OK,
        f"{len(load_checkpoint('echo').files)} files have the digests of the manifest",
    )
    plain = make_checkpoint(tmp_path / "plain")
    assert check_files(load_checkpoint(str(plain))).state is VerifyState.NOT_CHECKED
    checkpoint = load_checkpoint("echo")
    assert checkpoint.manifest is not None
    role, entry = next(iter(checkpoint.manifest.files.items()))
    files = {**checkpoint.manifest.files, role: replace(entry, sha256="0" * 64)}
    wrong = check_files(replace(checkpoint, manifest=replace(checkpoint.manifest, files=files)))
    assert wrong.state is VerifyState.FAILED
    assert f"the manifest says {'0' * 64}" in wrong.words


def test_graphs_are_held_against_the_weights_they_are_made_of() -> None:
    checkpoint = load_checkpoint("tiny")
    subject = Subject("d", "tiny", "onnx", "cpu", ONE)
    baseline = baseline_of(subject, checkpoint, None)
    assert baseline == Subject("d on torch", "tiny", "torch", "cpu")
    assert baseline_of(replace(subject, backend="torch"), checkpoint, None) is None
    asked = baseline_of(subject, checkpoint, "echo")
    assert asked is not None
    assert asked.model == "echo"


@pytest.mark.parametrize(
    ("quality", "state", "words"),
    [
        (None, VerifyState.NOT_CHECKED, "give --baseline MODEL"),
        (not_judged("b", "the gate needs more"), VerifyState.NOT_CHECKED, "the gate needs more"),
        (QUALITY, VerifyState.FAILED, "**gate failed** against plain"),
        (replace(QUALITY, is_passed=True), VerifyState.OK, "gate passed against plain"),
    ],
)
def test_the_gate_s_word_is_kept(quality: Quality | None, state: VerifyState, words: str) -> None:
    finding = gate_finding(quality)
    assert finding.state is state
    assert words in finding.words


def test_a_whole_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "run_gate", lambda *_, **__: replace(QUALITY, baseline="echo on torch"))
    where = ["echo", "--backend", "torch", "--backend-option", "threads=1", "--baseline", "echo"]
    line = [*where, "--seconds", "0.1", "--turns", "1", "--frames", "3"]
    assert cli.run(["verify", *line, "--no-figure"]) == 1  # for the gate
    said = [text.partition(":")[0].split(maxsplit=1) for text in capsys.readouterr().out.splitlines()]
    assert said == [["files", "ok"], ["parity", "ok"], ["gate", "FAILED"], ["card", "ok"]]
    card = read_card(tmp_path / "out" / "verify.json")
    assert card.entries[0].quality is not None
    assert card.entries[0].quality.baseline == "echo on torch"
    assert not (tmp_path / "out" / "verify.png").exists()


def test_a_model_out_of_reach_ends_with_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert cli.run(["verify", "hf://owner/name", "--out", str(tmp_path / "card")]) == cli.EXIT_USAGE
    said = capsys.readouterr().err
    assert "hf://owner/name is not in the cache, and the hub cannot be reached" in said
    assert "when online, run: hf download owner/name" in said


def test_frames_of_speech_are_needed() -> None:
    with pytest.raises(ConfigError, match="frames = 0 is below 1"):
        main(["echo", "--frames", "0"])
