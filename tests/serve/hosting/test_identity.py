"""Conditions for the exchange of a call between workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from antiphon.backends.base import BackendInfo
from antiphon.models.catalog import load_checkpoint
from antiphon.serve.hosting.hand_over_plan import identity_of


def test_weights_that_a_backend_does_not_read_do_not_count(tmp_path: Path) -> None:
    whole = load_checkpoint("tiny-stt")
    bare = replace(whole, files={role: path for role, path in whole.files.items() if role != "lm"})
    onnx = BackendInfo("onnx", "cpu", whole.spec, slots=1, dtype="float32")
    assert identity_of(bare, onnx) == identity_of(whole, onnx)
    torch = replace(onnx, name="torch")
    assert identity_of(bare, torch) != identity_of(whole, torch)
    (tmp_path / "lm.onnx").write_bytes(b"another")
    other = replace(whole, files={**whole.files, "onnx.lm": tmp_path / "lm.onnx"})
    assert identity_of(other, onnx) != identity_of(whole, onnx)
