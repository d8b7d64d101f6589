"""Graphs for models: the weights of built-in ones are not for removing."""

from __future__ import annotations

import pytest

from antiphon.models.builtin import BUILTIN
from antiphon.models.catalog import builtin_folder
from tools.ship_graphs import main


@pytest.mark.parametrize("models", [[], [BUILTIN[0]], ["./a-folder", BUILTIN[-1]]])
def test_built_in_models_keep_their_weights(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in builtin_folder(BUILTIN[0]).iterdir()}
    with pytest.raises(SystemExit, match="2"):
        main([*models, "--graphs-only"])
    kept = ", ".join([model for model in models if model in BUILTIN] or BUILTIN)
    assert (
        f"--graphs-only removes weights, and is for folders of one's own, not {kept}\n"
        in capsys.readouterr().err
    )
    assert {path: path.stat().st_mtime_ns for path in builtin_folder(BUILTIN[0]).iterdir()} == before
