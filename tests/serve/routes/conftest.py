"""Voices of a synthesiser, for tests of its routes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.serve.tts_client import FRAMES, WIDTH


@pytest.fixture
def voices(tmp_path: Path) -> Path:
    """Two voices, whose first number is heard: ``alto`` 0.1, ``deep/bass`` 0.2 made for another model too."""
    for name, level in (("alto", 0.1), ("deep/bass", 0.2), ("deep/bass.other@1", 0.9), (".hidden", 0.5)):
        path = tmp_path / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file({"speaker_wavs": np.full((1, WIDTH, FRAMES), level, np.float32)}, path)
    return tmp_path
