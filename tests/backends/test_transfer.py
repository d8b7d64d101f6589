"""A row continues in another process bit by bit, also after its rings wrapped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from antiphon.engine.call_state import pack
from tests.backends import transfer
from tests.backends.contract import Driver, voice
from tests.backends.onnx.exports import exported, source

WRAPPED_FRAMES = 60  # contexts are 24 frames (language model) and 8 (Mimi)
FRAMES = 6


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torch", "moshi"),
        ("torch", "tts"),
        ("onnx", "moshi"),
        ("onnx", "tts"),
        ("mlx", "moshi"),
        ("mlx", "stt"),
    ],
)
def test_a_row_goes_on_in_another_process(name: str, kind: str, tmp_path: Path) -> None:
    model = (exported if name == "onnx" else source)(kind).ref
    backend, identity = transfer.make(name, model)
    frames = voice(40, WRAPPED_FRAMES + FRAMES, backend.info)
    driver = Driver(backend)
    driver.run(1, frames[:WRAPPED_FRAMES], fixed=True)
    data = pack(backend.to_host(backend.snapshot(1)), identity)
    (tmp_path / "state").write_bytes(data)
    np.save(tmp_path / "frames.npy", frames[WRAPPED_FRAMES:])
    backend.restore(0, backend.snapshot(1))
    wanted = transfer.as_arrays([driver.tick({0: frame}, fixed=True)[0] for frame in frames[WRAPPED_FRAMES:]])
    files = [str(tmp_path / part) for part in ("state", "frames.npy", "out.npz")]
    command = [sys.executable, "-m", "tests.backends.transfer", name, model, *files]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    got = np.load(tmp_path / "out.npz")
    assert wanted["pcm"].size or wanted["token"].size
    for part, array in wanted.items():
        np.testing.assert_array_equal(got[part], array, err_msg=part)
    backend.close()
