"""The bench of handed-over calls: a lost call is no success, and the report shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench import hand_over
from lab.bench.speaking_caller import Spoken


def moved(
    text: str = "a word", frames: tuple[int, ...] = (0, 1), *, reason: str = "", sound: bytes = b"audio"
) -> Spoken:
    heard = {frame: sound + bytes([frame]) for frame in frames}
    spoken = Spoken([text], heard, [0.08 * frame for frame in frames])
    spoken.thread.moves, spoken.thread.resumptions, spoken.thread.reason = 1, int(not reason), reason
    return spoken


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (moved(), 0),
        (moved(text="another"), 1),
        (moved(frames=(0,)), 1),
        (moved(sound=b"other"), 1),
        (moved(frames=(), reason="unknown"), 1),
    ],
)
def test_the_exit_code_says_whether_all_calls_moved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: Spoken, code: int
) -> None:
    async def measure(model: str, calls: int, _: Path) -> tuple[Spoken, list[Spoken]]:
        assert (model, calls) == ("echo", 2)
        return moved(), [moved(), found]

    monkeypatch.setattr(hand_over, "measure_processes", measure)
    monkeypatch.setattr("sys.argv", ["hand_over", "echo", "2"])
    assert hand_over.main() == code
    assert f"{'alive':<24} {2 - bool(found.thread.reason)} of 2" in capsys.readouterr().out
