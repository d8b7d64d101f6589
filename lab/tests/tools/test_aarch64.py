"""The comparison of graphs with an emulated processor, on this one: inputs, commands and verdicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lab.tools import aarch64
from lab.tools.aarch64 import Difference, ToolError, compare, distance


def test_every_built_in_graph_is_asked_once() -> None:
    graphs = aarch64.built_in_graphs()
    assert {"tiny.encode", "tiny.lm", "tiny.depformer", "tiny.decode"} < set(graphs)
    assert {"tiny-stt.lm", "tiny-tts.lm", "tiny-tts.depformer", "tiny-tts.voice"} < set(graphs)
    assert len({path for path, _ in graphs.values()}) == len(graphs)
    for path, form in graphs.values():
        given = aarch64.make_inputs(form, seed=0)
        assert path.is_file()
        assert {array.shape[:2] for array in given.values()} == {(aarch64.FRAMES, aarch64.ROWS)}
        assert not set(given) & {entry.name for entry in form.state}


def test_both_processors_are_held_to_products_with_inputs_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {name: graph for name, graph in aarch64.built_in_graphs().items() if name == "tiny-tts.voice"}
    monkeypatch.setattr(aarch64, "built_in_graphs", lambda: chosen)
    monkeypatch.setattr(aarch64, "emulated_python", lambda folder, cpu: [sys.executable])
    assert aarch64.main([str(tmp_path)]) == 0
    here, there = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("here", "neoverse-n1"))
    assert all(np.array_equal(here[name], there[name]) for name in here)
    exact = dict(np.load(tmp_path / "exact.npz"))
    assert any(not np.array_equal(here[name], exact[name]) for name in here)
    assert "tiny-tts.voice/" in capsys.readouterr().out
    monkeypatch.setattr(aarch64, "ask", lambda python, folder, name, **environment: here)
    distances = iter([0.01, 0.05] * len(here))
    monkeypatch.setattr(aarch64, "distance", lambda found, wanted: next(distances))
    assert aarch64.main([str(tmp_path)]) == 1
    assert "**no**" in capsys.readouterr().out


def test_a_distance_is_relative_and_a_number_that_is_none_is_far() -> None:
    wanted = np.array([3.0, 4.0], np.float32)
    assert distance(wanted + np.float32(0.5), wanted) == pytest.approx(0.5 * 2**0.5 / 5)
    assert distance(np.array([np.nan, 4.0], np.float32), wanted) == np.inf
    assert distance(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25
    one = {"lm/hidden": wanted, "codes": np.array([7])}
    assert [found.holds for found in compare(one, one, one)] == [True, True]


@pytest.mark.parametrize(
    ("difference", "holds"),
    [
        (Difference("a", 0.01, 0.02, is_choice=False), True),
        (Difference("a", 0.01, 0.021, is_choice=False), False),
        (Difference("a", 0.0, 0.00005, is_choice=False), True),
        (Difference("a", 0.0, np.inf, is_choice=False), False),
        (Difference("a", 0.10, 0.14, is_choice=True), True),
        (Difference("a", 0.10, 0.16, is_choice=True), False),
    ],
)
def test_what_holds(difference: Difference, holds: bool) -> None:
    assert difference.holds is holds
    assert ("**no**" in str(difference)) is not holds


def test_the_system_is_fetched_into_its_own_folder_in_the_versions_that_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> None:
        asked.append(command)
        if "--download-only" in command:
            (tmp_path / "apt/archives/a.deb").touch()
        if command[0] == "dpkg-deb":
            (Path(command[-1]) / "usr/bin").mkdir(parents=True)
            (Path(command[-1]) / "usr/bin/python3.11").touch()
        if "pip" in command:
            Path(command[command.index("--target") + 1]).mkdir()

    monkeypatch.setattr(aarch64, "run", run)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    command = aarch64.emulated_python(tmp_path, "cortex-a72")
    assert command[:5] == ["qemu-aarch64", "-cpu", "cortex-a72", "-L", str(tmp_path / "root")]
    assert [words[0] for words in asked[:3]] == ["apt-get", "apt-get", "dpkg-deb"]
    for words in asked[:2]:
        assert f"Dir::State={tmp_path / 'apt'}" in words
        assert f"Dir::State::status={tmp_path / 'apt/status'}" in words
    pip = " ".join(asked[3])
    assert f"numpy=={np.__version__}" in pip
    assert "--python-version 3.11" in pip
    assert "manylinux_2_28_aarch64" in pip
    assert "asimddp" in (tmp_path / "root/proc/cpuinfo").read_text()
    asked.clear()
    aarch64.emulated_python(tmp_path, "cortex-a72")
    assert asked == []  # it exists


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(ToolError, match="qemu-aarch64 is missing; on Debian and Ubuntu: apt-get"):
        aarch64.emulated_python(tmp_path, "neoverse-n1")
    with pytest.raises(ToolError, match="ended with 3: no such thing"):
        aarch64.run([sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"])
