"""The page in a real Chromium and a real Firefox: each file of ``browser/`` is one test here."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.audio.files import read_audio
from antiphon.audio.wav import write_wav
from tests.repo.tracked import ROOT
from tests.support.ask import script
from tests.support.node import browser_env, find_firefox, run_node_tests

FILES = sorted((Path(__file__).parent / "browser").glob("*.test.js"))
CLIP = ROOT / "clients" / "antiphon_client" / "clips" / "hello.ogg"
CONVERSATION = "views.test.js"
"""Here the microphone hears questions that the built-in model answers; elsewhere one voice that goes on."""
TIMEOUT_S = 570


@pytest.fixture
def surroundings(path: Path, tmp_path: Path) -> dict[str, str]:
    """What a file is told: an interpreter, a browser, and what its microphone hears."""
    clip = tmp_path / "clip.wav"
    write_wav(clip, script()[0] if path.name == CONVERSATION else read_audio(CLIP, 24_000), 24_000)
    return {**browser_env(clip), "ANTIPHON_TEST_FIREFOX": find_firefox()}


def test_there_are_files() -> None:
    assert len(FILES) >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.js"))
def test_in_the_browser(path: Path, surroundings: dict[str, str]) -> None:
    run = run_node_tests([path], surroundings, TIMEOUT_S)
    assert run.is_green, run.report
