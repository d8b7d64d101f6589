"""The forms of a product on a CPU: all of them multiply, and give about the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from lab.bench.cpu_products import forms, main


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_every_form_multiplies(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    weight, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((128, 64), (3, 128)))
    for name, product in forms(weight, 1).items():
        if name != "torch, oneDNN INT8":  # its layer has weights of its own
            found = np.asarray(product(x), dtype=np.float32).reshape(3, 64)
            np.testing.assert_allclose(found, x @ weight, atol=6.0, err_msg=name)
    assert main(["--quick"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(forms(weight, 1))
