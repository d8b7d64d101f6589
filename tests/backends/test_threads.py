"""A model leaves a core to the server that feeds it."""

from __future__ import annotations

import pytest

from antiphon.backends.threads import model_threads


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (1, 1), (2, 1), (16, 15)])
def test_a_core_is_left_to_the_server(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert model_threads() == threads
