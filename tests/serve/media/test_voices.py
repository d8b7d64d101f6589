from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.audio.loudness import loudness_lufs
from antiphon.audio.wav import write_wav
from antiphon.errors import AudioError, CheckpointFormatError, ConfigError, ProtocolError
from antiphon.models.prompt import VoicePrompt
from antiphon.serve.media.duplex_voices import KEPT_VOICES, VoiceFolder, find_voices
from tests.serve.embedded_voice import EMBEDDED_FRAMES, save_embedded
from tests.serve.harness import speech
from tests.support.null_models import DUPLEX, LM, null_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_embedded(tmp_path / "NATF0.pt")
    write_wav(tmp_path / "NATF0.wav", speech(13), 24000)
    write_wav(tmp_path / "anna.wav", speech(13)[: 12 * 1920 + 5], 24000)
    (tmp_path / "notes.txt").write_text("not a voice")
    (tmp_path / ".hidden.wav").write_text("not a voice")
    (tmp_path / "sub.wav").mkdir()
    return tmp_path


@pytest.fixture
def voices(folder: Path) -> VoiceFolder:
    return VoiceFolder(folder, DUPLEX)


def test_names_are_those_of_files_that_may_be_voices(voices: VoiceFolder) -> None:
    assert voices.names() == ["NATF0", "anna"]


def test_a_recording_is_made_as_loud_as_the_others_and_padded_to_frames(voices: VoiceFolder) -> None:
    voice = voices.load("anna")
    assert voice.pcm is not None
    assert voice.pcm.shape == (13, 1920)
    assert not voice.pcm[12, 5:].any()
    assert loudness_lufs(voice.pcm.reshape(-1)[: 12 * 1920 + 5], 24000) == pytest.approx(-24, abs=0.01)


def test_an_embedded_voice_brings_its_last_two_frames(voices: VoiceFolder) -> None:
    voice = voices.load("NATF0")
    assert voice.embedded is not None
    assert voice.codes is not None
    assert voice.embedded.shape == (EMBEDDED_FRAMES, 8)
    assert voice.embedded.dtype == np.float32
    assert voice.count == EMBEDDED_FRAMES + 1
    wanted = [
        [100 * stream + (frame + delay) % 4 for stream, delay in enumerate(LM.delays)] for frame in (8, 9)
    ]
    assert voice.codes.tolist() == wanted


def test_a_suffix_says_which_of_two_is_meant(voices: VoiceFolder) -> None:
    assert voices.load("NATF0.wav").pcm is not None
    assert voices.load("NATF0.pt").pcm is None


@pytest.mark.parametrize("name", ["../anna", "/etc/passwd", "sub", "notes", ".hidden", "anna/", "nobody"])
def test_other_names_are_refused_with_those_there_are(voices: VoiceFolder, name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        voices.load(name)
    assert str(caught.value) == f"there is no voice {name!r} here; there are: NATF0, anna"


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="there are: none"):
        VoiceFolder(tmp_path, DUPLEX).load("anna")
    with pytest.raises(ConfigError, match="is no folder"):
        VoiceFolder(tmp_path / "none", DUPLEX)


def test_a_folder_beside_the_model_serves_when_none_is_configured(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "model"
    checkpoint = replace(null_checkpoint(DUPLEX), root=root)
    assert find_voices(None, checkpoint) is None
    (root / "voices").mkdir(parents=True)
    found = find_voices(None, checkpoint)
    assert found is not None
    assert found.names() == []
    configured = find_voices(str(folder), checkpoint)
    assert configured is not None
    assert configured.names() == ["NATF0", "anna"]


def test_a_voice_is_read_once_until_its_file_changes(folder: Path, voices: VoiceFolder) -> None:
    first = voices.load("anna")
    assert voices.load("anna.wav") is first
    write_wav(folder / "anna.wav", speech(20, seed=3), 24000)
    assert voices.load("anna").count == 20


def test_only_so_many_voices_are_kept(
    folder: Path, voices: VoiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def note(path: Path) -> VoicePrompt:
        read.append(path.stem)
        return VoicePrompt()

    monkeypatch.setattr(voices, "_read", note)
    for index in range(KEPT_VOICES + 1):
        (folder / f"v{index:02}.wav").write_text("")
        voices.load(f"v{index:02}")
    voices.load("v01")
    voices.load("v00")
    assert read == [*(f"v{index:02}" for index in range(KEPT_VOICES + 1)), "v00"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dim": 7}, r"embeddings \[9, 1, 1, 7\], this model needs \[E, 1, 1, 8\]"),
        ({"streams": 9}, r"a cache \[1, 9, 4\], this model needs \[1, 17, 3 or more\]"),
        ({"ring": 2}, r"a cache \[1, 17, 2\], this model needs \[1, 17, 3 or more\]"),
    ],
)
def test_a_voice_of_another_model_is_refused(
    folder: Path, voices: VoiceFolder, change: dict[str, int], words: str
) -> None:
    save_embedded(folder / "other.pt", **change)
    with pytest.raises(CheckpointFormatError, match=words):
        voices.load("other")


def test_other_broken_files_are_refused(folder: Path, voices: VoiceFolder) -> None:
    torch.save({"embeddings": torch.zeros(2, 1, 1, 8)}, folder / "half.pt")
    with pytest.raises(CheckpointFormatError, match=r"half\.pt has \['embeddings'\], a voice has cache and"):
        voices.load("half")
    small = replace(DUPLEX, lm=replace(LM, card=1000))
    with pytest.raises(CheckpointFormatError, match="in its cache, this model has 100 of text and 1000 of"):
        VoiceFolder(folder, small).load("NATF0")
    with pytest.raises(CheckpointFormatError, match="for a language model, not for a codec"):
        VoiceFolder(folder, replace(DUPLEX, lm=None)).load("NATF0")
    (folder / "noise.wav").write_text("nothing")
    with pytest.raises(AudioError):
        voices.load("noise")
