"""Measurements of a voice agent: the arithmetic, and one live turn, interruption and question."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from lab.bench import agent_interrupts, agent_latency, agent_soak
from lab.bench.agent_caller import RATE, HeardReply, loud_blocks, questions, with_pause
from lab.bench.agent_latency import ANSWER, Settings, Turn, served
from lab.bench.harness import Results
from lab.tools import ask_agent, demo

FRAME = b"\1\0" * (RATE * 80 // 1000)


def test_sound_is_played_as_it_comes_and_what_follows_speech_is_not_heard() -> None:
    reply = HeardReply()
    reply.take(FRAME, 10.0)
    reply.take(FRAME, 10.01)  # ahead of playback
    reply.words.append(("one", reply.samples))
    reply.take(FRAME, 10.5)  # the earlier sound ended at 10.16
    reply.words.append(("two", reply.samples))
    assert reply.first_s == 10.0
    assert reply.end_s == pytest.approx(10.58)
    assert reply.heard_words == ["one", "two"]
    reply.stop(10.54)
    assert reply.played == pytest.approx(0.2 * RATE, abs=1)
    assert reply.heard_words == ["one"]
    assert reply.played_to_s == 10.54
    late = HeardReply(samples=10, end_s=5.0)
    late.stop(6.0)
    assert math.isinf(late.stopped_s)


@pytest.mark.parametrize("pause_ms", [0, 400])
def test_a_pause_within_a_question_lasts_as_long_as_it_is_to(pause_ms: int) -> None:
    for question in questions():
        loud = loud_blocks(with_pause(question.pcm, pause_ms))
        assert loud[0]
        assert loud[-1]
        edges = np.flatnonzero(loud)
        longest = int(np.diff(edges).max()) - 1
        assert 10 * longest >= pause_ms
        assert 10 * longest <= max(pause_ms, 200)


def test_the_parts_of_a_wait_are_its_whole_and_a_turn_without_an_answer_has_none() -> None:
    answered, silent = Turn(600, 0, 20, 10, 90, 0), Turn(540, math.nan, math.nan, math.nan, math.nan, 1)
    assert answered.wait == 30
    assert math.isnan(silent.wait)
    assert agent_latency.line("decision", [answered, silent]) == "| decision | 540 | 600 | 600 | 95% |"
    assert agent_latency.line("text", [answered, silent]) == "| text | 20 | 20 | 20 | 3% |"
    metrics = (
        'antiphon_agent_text_seconds_sum{agent="a"} 0.5\nantiphon_agent_text_seconds_count{agent="a"} 2.0\n'
    )
    assert agent_latency.mean_ms(metrics, "text") == 250
    assert agent_latency.mean_ms(metrics, "flush") is None


def test_a_kept_word_that_was_not_heard_is_counted() -> None:
    cut = agent_interrupts.Interruption(-20.0, 130.0, ("one", "two"), ("one", "two", "three"))
    assert cut.unheard == 1


async def test_turns_an_interruption_and_a_question_live(tmp_path: Path) -> None:
    settings, out = Settings(turns=1, pause_ms=400), tmp_path / "answers.wav"
    async with served(settings, 3, ANSWER) as (server, tap):
        turns, cuts, code = await asyncio.gather(
            agent_latency.talk(server.url, tap, 1, settings),
            agent_interrupts.talk(server.url, tap, 2, agent_interrupts.Settings(1, 1)),
            asyncio.to_thread(ask_agent.main, [server.url, "--turns", "1", "--out", str(out)]),
        )
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
            metrics = await response.text()
    assert (len(turns), len(cuts), code) == (1, 1, 0)
    assert turns[0].decision > 450
    assert min(turns[0].flush, turns[0].text, turns[0].speech) >= 0
    assert cuts[0].unheard == 0
    assert out.stat().st_size > RATE
    assert agent_latency.mean_ms(metrics, "flush")
    results = Results(tmp_path / "a.json", settings=asdict(settings), resume=False)
    results.attempt("1 call", lambda: {"turns": [asdict(it) for it in turns], "server_means_ms": {}})
    assert "1 turns, 0 without an answer" in agent_latency.render(results.values)


async def test_a_soak_of_seconds_loses_nothing_and_leaves_no_row() -> None:
    values, samples = await agent_soak.soak(10.0, 1, 1)
    assert values["errors"] == []
    assert values["plain"]["lost"] == 0
    assert [each["rows"] for each in values["idle"]] == [0, 0]
    assert max(each.rows for each in samples) == 3
    assert sum(values["agents"]["replies"].values()) > 0


def test_without_a_text_model_a_script_answers_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo.text_model(None, tmp_path / "log", small=tmp_path / "none") as url:
        assert url.endswith("/v1")
    said = capsys.readouterr().out
    assert "a script answers, always the same" in said
    assert "pip install xllamacpp" in said
    with demo.text_model("http://127.0.0.1:1/v1", tmp_path / "log") as url:
        assert url == "http://127.0.0.1:1/v1"
    assert "http://127.0.0.1:1/v1 answers" in capsys.readouterr().out
