"""Sessions on Apple silicon, computed from published sizes, as on their page; the soak's verdicts."""

from __future__ import annotations

import pytest

from antiphon.models.published import MOSHI_CONFIG
from lab.bench import mlx_sessions, mlx_soak
from lab.bench.mlx_sessions import CHIPS, MODELS, Chip, load_of, read_parameters, table_parameters
from lab.bench.published import STT_1B
from tests.repo.tracked import ROOT

PAGE = ROOT / "docs" / "mac.md"


@pytest.mark.parametrize(("lm", "billions", "kv_mb"), [(MOSHI_CONFIG, 7.688, 1573), (STT_1B, 0.989, 98)])
def test_sizes_are_the_published_ones(lm: dict[str, object], billions: float, kv_mb: float) -> None:
    assert (read_parameters(lm) + table_parameters(lm)) / 1e9 == pytest.approx(billions, rel=0.001)
    mimi_mb = (2 if lm["dep_q"] else 1) * 8.2
    assert load_of(lm, 2, 2).session_read / 1e6 == pytest.approx(kv_mb + mimi_mb, rel=0.01)


def test_what_ends_first_is_what_limits() -> None:
    load = MODELS["moshi-7b q4"]
    fast, large = Chip("fast", 10_000, 32), Chip("slow", 100, 512)
    assert load.sessions(fast) == (
        int((32 * 0.7 - load.weights_held / 1e9) / (load.session_held / 1e9)),
        "memory",
    )
    assert load.sessions(large) == (0, "bandwidth")
    alone = Chip("alone", (load.weights_read + load.session_read) / (0.08 * 0.7) / 1e9 + 0.01, 64)
    assert load.sessions(alone) == (1, "bandwidth")


def test_fewer_bits_and_more_bandwidth_never_hold_fewer() -> None:
    for name in ("moshi-7b", "stt-1b"):
        held = [
            [load.sessions(chip)[0] for chip in CHIPS] for key, load in MODELS.items() if key.startswith(name)
        ]
        assert all(row == sorted(row) for row in held)
        assert all(list(column) == sorted(column) for column in zip(*held, strict=True))


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert mlx_sessions.main([]) == 0
    assert capsys.readouterr().out.strip() in PAGE.read_text(encoding="utf-8")


def test_the_soak_tells_growth_from_noise(capsys: pytest.CaptureFixture[str]) -> None:
    flat, slow = mlx_soak.Tenth(1, 10.0, 1000, 90.0), mlx_soak.Tenth(2, 16.0, 1000, 90.0)
    assert mlx_soak.judge(flat, flat) == []
    assert mlx_soak.judge(flat, slow) == ["a step took 10.00 ms and takes 16.00"]
    fat = mlx_soak.Tenth(2, 10.0, 1000 + 2**17, 90.0)
    assert mlx_soak.judge(flat, fat) == ["mlx held 1,000 bytes and holds 132,072"]
    mlx_soak.main(["--kind", "codec", "--steps", "20", "--slots", "1", "--device", "cpu"])
    assert capsys.readouterr().out.count("ms a step") == 10
