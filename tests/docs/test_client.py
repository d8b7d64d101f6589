"""The program of docs/client.md asks a running server and prints the answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import read_blocks
from tests.repo.tracked import ROOT
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server


def test_the_program_asks_and_prints_the_answer(tmp_path: Path) -> None:
    (program,) = (block for block in read_blocks(ROOT / "docs" / "client.md") if block.mark == "run")
    file, port = tmp_path / "ask.py", free_port()
    file.write_text(program.body)
    command = [*SERVE, "--model", "tiny", "--backend", "onnx", "--slots", "1"]
    with running_server([*command, "--port", str(port)], port, tmp_path / "server.log") as server:
        run = subprocess.run(
            [sys.executable, str(file), server.url], capture_output=True, text=True, timeout=500, check=False
        )
    assert run.returncode == 0, run.stderr
    answer, _, frames = run.stdout.strip().partition(" (")
    assert answer == "my name is robin"
    assert int(frames.split()[0]) > 25
