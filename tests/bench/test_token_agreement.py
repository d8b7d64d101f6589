"""Token agreement: the numbers of a comparison, and the order of the recipes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import UnsupportedError
from bench.token_agreement import compare, measure


def test_a_model_agrees_with_itself_and_less_with_noise() -> None:
    logits = np.random.default_rng(0).standard_normal((50, 20))
    assert compare(logits, logits + 3) == (1.0, pytest.approx(0, abs=1e-12), pytest.approx(3, rel=0.1))
    equal, divergence, error = compare(logits, logits[::-1])
    assert equal < 0.3
    assert divergence > 0.3
    assert error == pytest.approx(2**0.5, rel=0.1)


def test_the_built_in_model_keeps_its_first_choices_in_8_bits(tmp_path: Path) -> None:
    lines = measure("duplex-seeded", ["int8", "int4"], 100, tmp_path).splitlines()[2:]
    eight, four = ([cell.strip() for cell in line.split("|")[2:5]] for line in lines)
    assert float(eight[0].rstrip("%")) >= 97
    assert float(four[0].rstrip("%")) >= 85
    assert 3 * float(eight[1]) < float(four[1]) < 0.02


def test_a_codec_has_no_tokens_to_compare(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="echo has no graph 'lm'"):
        measure("echo", ["int8"], 1, tmp_path)
