"""Log lines: one line for each record, searchable, without words of callers."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.log import ERASE, LINE_PERIOD_S, Log, SparseLog, format_value, set_up_logging
from antiphon.serve.hosting.engines import show_progress


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logging("info", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_has_time_level_event_and_fields(stream: io.StringIO) -> None:
    Log().info("session opened", session="a1", seconds=1.5, path="/api/chat")
    line = stream.getvalue()
    assert line.startswith("time=20")
    assert line.endswith('level=info event="session opened" session=a1 seconds=1.5 path=/api/chat\n')


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_terminal_progress_and_lines_do_not_run_into_each_other(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    set_up_logging("info")
    show = show_progress(terminal.isatty())
    show(1, 2, "tiny: lm")
    Log().info("slots chosen", slots=2)
    show(2, 2, "tiny: ready")
    shown = [line.rpartition(ERASE)[2] for line in terminal.getvalue().split("\n")]
    assert [line.partition("event=")[2] for line in shown] == ['"slots chosen" slots=2', ""]
    assert terminal.getvalue().startswith(f"{ERASE}tiny: lm 1/2{ERASE}time=")


def test_bound_fields_are_on_every_line_and_levels_are_kept(stream: io.StringIO) -> None:
    log = Log().bind(session="a1").bind(model="echo")
    log.debug("not shown")
    log.warning("one")
    log.error("two", reason="x")
    first, second = stream.getvalue().splitlines()
    assert "level=warning event=one session=a1 model=echo" in first
    assert "level=error event=two session=a1 model=echo reason=x" in second


def test_an_exception_is_shown_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        Log().error("failed", exc_info=error)
    assert "ValueError: broken" in stream.getvalue()


def test_request_lines_of_the_web_framework_stay_out(stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.access").info("GET /api/chat?text_prompt=secret")
    assert stream.getvalue() == ""


def test_lines_that_peers_provoke_are_a_burst_and_then_one_in_a_while(stream: io.StringIO) -> None:
    now_s = 100.0
    log = SparseLog(Log(), lambda: now_s, burst=2)
    for _ in range(5):
        log.info("failed", of="reset", kind="reset")
    log.warning("failed", of="tls", kind="tls")
    assert stream.getvalue().count("kind=reset") == 2
    assert "level=warning event=failed kind=tls\n" in stream.getvalue()
    now_s += LINE_PERIOD_S
    for _ in range(2):
        log.info("failed", of="reset", kind="reset")
    assert stream.getvalue().count("kind=reset") == 3
    assert stream.getvalue().endswith("level=info event=failed kind=reset left_out=3\n")


@given(st.text())
def test_any_value_is_one_word_on_one_line(text: str) -> None:
    shown = format_value(text)
    assert "\n" not in shown
    assert shown.isascii()
    assert shown.isprintable()
    if " " in shown or not shown:
        assert shown.startswith('"')
        assert shown.endswith('"')
