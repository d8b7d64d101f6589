"""``antiphon bench slots``: the server's number is confirmed or refuted, in a file for the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon import cli
from antiphon.backends.base import Backend
from antiphon.backends.registry import parse_backend_option
from antiphon.config import ServerConfig
from antiphon.engine.config import EngineConfig
from antiphon.errors import ConfigError
from antiphon.serve.hosting.options import parse_command_line
from antiphon_quantize.bench.slots import Found, config_text, find_slots, main, summary
from antiphon_quantize.bench.subject import Subject
from tests.quantize.bench.fakes import CountingClock, FakeBackend, FakeClock, as_backend


def found_with(tick_ms: float, per_row_ms: float, max_slots: int = 64) -> Found:
    clock = FakeClock()
    made: list[FakeBackend] = []

    def factory(slots: int) -> Backend:
        made.append(FakeBackend(clock, lambda rows: tick_ms + per_row_ms * rows, slots))
        return as_backend(made[-1])

    found = find_slots(factory, EngineConfig(max_slots=max_slots), 1.0, clock=clock, sleep=clock.sleep)
    assert all(backend.closed for backend in made)
    return found


def test_the_slots_are_those_of_the_server() -> None:
    # A tick of 2 ms and 1 ms a row: 34 ms, what a frame leaves for one of two ticks, are reached at 32 rows.
    # Of 75 calls at random phases, 32 are ready when such a tick ends.
    found = found_with(2.0, 1.0, max_slots=128)
    assert (found.slots, found.turn.rows, found.is_in_time) == (75, 32, True)
    assert summary(found, 128) == (
        "slots = 75: 13 ticks of 32 ready rows, one every 80 ms, p50 34.00 ms, p99 34.00 ms of 40 ms, 0 late"
    )
    few = found_with(2.0, 1.0, max_slots=4)
    assert "slots = 4, the requested maximum: " in summary(few, 4)


def test_one_row_that_is_too_slow_is_not_in_time() -> None:
    found = found_with(50.0, 0.0)
    assert (found.slots, found.is_in_time) == (1, False)
    assert found.p99_ms == pytest.approx(50.0)


def test_the_server_reads_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new folder" / "antiphon.toml"
    line = ["--backend", "null", "--backend-option", "step_ms=1", "--max-slots", "2", "--seconds", "0.2"]
    clock = CountingClock(0.001)
    assert main(["--model", "tiny", *line, str(out)], clock=clock, sleep=clock.sleep) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "slots = 2, the requested maximum: 5 ticks of 1 ready rows, one every 80 ms, p50 1.00 ms"
    )
    assert f"antiphon serve --config '{out}'" in said
    config = parse_command_line(["--config", str(out)])
    assert (config.model, config.backend, config.engine.slots) == (("tiny",), "null", 2)
    assert list(map(parse_backend_option, config.backend_option)) == [("step_ms", 1)]
    assert out.read_text().startswith("# antiphon bench slots --model tiny --backend null")
    assert cli.run(["bench", "slots", str(out)]) == cli.EXIT_USAGE
    assert "antiphon.toml exists and is not written over" in capsys.readouterr().err


def test_slots_that_are_late_are_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "antiphon.toml"
    line = ["--backend", "null", "--backend-option", "step_ms=0", "--seconds", "0.2", str(out)]
    clock = CountingClock(0.045)
    assert main(line, clock=clock, sleep=clock.sleep) == 1
    said = capsys.readouterr().err
    assert said.startswith("slots = 1: 5 ticks")
    assert "p99 45.00 ms of 40 ms" in said
    assert "nothing is written" in said
    assert not out.exists()


def test_any_name_survives_the_file(tmp_path: Path) -> None:
    found = found_with(2.0, 1.0)
    folder = 'a "quoted" \\ folder é'
    subject = Subject("x", folder, "torch", "cuda:1")
    path = tmp_path / "x.toml"
    path.write_text(config_text(subject, ["weights=int8"], found, ["by hand"]))
    config = parse_command_line(["--config", str(path)])
    assert config.model == (folder,)
    assert (config.device, config.backend_option, config.engine.slots) == ("cuda:1", ("weights=int8",), 64)
    assert isinstance(config, ServerConfig)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="max_slots = 0 is below 1"):
        main(["--max-slots", "0", "x.toml"])
    with pytest.raises(ConfigError, match=r"the following arguments are required: FILE\.toml"):
        main([])
