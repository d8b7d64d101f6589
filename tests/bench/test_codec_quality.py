"""The codec's benchmark compares what it says it compares."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import UnsupportedError
from bench.codec_quality import FLOAT, compare, make_forms


def test_int8_is_near_to_float_and_float_is_itself(tmp_path: Path) -> None:
    forms = make_forms("echo", ["int8"], tmp_path)
    random = np.random.default_rng(0)
    voice = np.cumsum(random.standard_normal(2 * forms[FLOAT].rate)) * np.hanning(2 * forms[FLOAT].rate)
    found = compare(forms, (0.3 * voice / np.abs(voice).max()).astype(np.float32))
    assert found[FLOAT]["all_codebooks"] == 1
    assert found[FLOAT]["si_sdr_db"] == math.inf
    assert 0.5 < found["int8"]["all_codebooks"] <= 1
    assert 25 < found["int8"]["decoder_si_sdr_db"] < 60
    assert abs(found["int8"]["stoi"] - found[FLOAT]["stoi"]) < 0.05


def test_a_model_without_graphs_is_told_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.codec_quality.STAGES", ("encode", "decode", "sing"))
    with pytest.raises(UnsupportedError, match="echo has no graphs: antiphon quantize --target onnx"):
        make_forms("echo", [], tmp_path)
