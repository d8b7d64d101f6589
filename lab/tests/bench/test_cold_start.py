"""The start-up benchmark's reading of an installation, and its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench.cold_start import installed_bytes, installed_versions, main, render
from lab.bench.harness import machine
from lab.bench.turns import summary


def distribution(site: Path, name: str, sizes: dict[str, int]) -> None:
    """A package as pip installs it, one of whose files was removed."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for path, size in sizes.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(b"x" * size)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in (*sizes, "gone.py")))


def test_sizes_are_those_of_what_was_installed_without_the_installer(tmp_path: Path) -> None:
    distribution(tmp_path, "antiphon", {"antiphon/a.py": 300, "antiphon/__pycache__/a.pyc": 200})
    distribution(tmp_path, "numpy", {"numpy/core.so": 4000})
    distribution(tmp_path, "pip", {"pip/main.py": 9000})
    (tmp_path / "stray.txt").write_text("of nobody")
    assert installed_bytes(tmp_path) == {"antiphon": 500, "numpy": 4000}
    assert installed_versions(tmp_path) == {"antiphon": "1.0", "numpy": "1.0"}


@pytest.mark.parametrize(
    ("extra", "package"),
    [(None, "The base package serves on a CPU without PyTorch"), ("tts", "The package with `[tts]`")],
)
def test_the_page_has_the_sentence_that_the_readme_quotes(extra: str | None, package: str) -> None:
    values = {
        "command": "python -m lab.bench.cold_start",
        "started_at": "2026-01-01T00:00:00+00:00",
        "machine": machine(),
        "settings": {"runs": 3, "model": "echo", "extra": extra},
        "attempts": {
            "installed_bytes": {"antiphon": 35_000_000, "onnxruntime": 50_400_000, "numpy": 60_000_000},
            "import": summary([310.0, 330.0, 350.0]),
            "ready": summary([1300.0, 1500.0, 1900.0]),
        },
    }
    text = render(values)
    assert (
        f"{package}: 145 MB installed, 35 of them ours. `antiphon "
        "serve` imports in 0.33 s what it serves with, and is ready 1.50 s after it was started (quartiles "
        "1.30 to 1.90 s) with `echo`."
    ) in text
    assert text.index("| numpy | 60.0 |") < text.index("| onnxruntime | 50.4 |")


def test_an_extra_needs_a_new_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--extra", "tts", "--venv", str(tmp_path)])
    assert f"--extra tts: {tmp_path} is already installed; name a new --venv" in capsys.readouterr().err
