"""The slope of memory, and the whole soak once for seconds."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from antiphon.protocol.chat import AudioFormat
from antiphon_client.clip import encode_clip, fit_clip, load_clip
from antiphon_client.load import Stop
from antiphon_client.pacing import Pacer
from antiphon_client.session import ProbeSession, SessionPlan
from lab.bench import memory_soak
from lab.bench.harness import BenchError
from tests.clients.fake_server import fake_server
from tests.serve.process import ROOM
from tests.support.calm import CALM_OPTIONS

MIB = 2**20


def test_flat_memory_has_no_slope_and_a_leak_has_its_own() -> None:
    flat = memory_soak.summarise([(second, 100 * MIB) for second in range(600)], warm_up_s=60)
    assert flat["slope_mib_per_minute"] == pytest.approx(0, abs=1e-6)
    assert (flat["first_mib"], flat["last_mib"], flat["seconds"]) == (100, 100, 539)
    leak = memory_soak.summarise(
        [(second, (100 + second // 60) * MIB) for second in range(600)], warm_up_s=60
    )
    assert leak["slope_mib_per_minute"] == pytest.approx(1.0, rel=0.05)
    assert (leak["first_mib"], leak["last_mib"]) == (101, 109)


def test_growth_during_the_warm_up_does_not_count() -> None:
    samples = [(second, (10 * min(second, 60)) * MIB) for second in range(600)]
    assert memory_soak.summarise(samples, warm_up_s=60)["slope_mib_per_minute"] == pytest.approx(0, abs=1e-6)


def test_too_short_a_run_says_nothing() -> None:
    with pytest.raises(BenchError, match=r"7 samples after 2\.25 s of warm-up, at least 10 are needed"):
        memory_soak.summarise([(float(second), MIB) for second in range(10)], warm_up_s=60)


def test_a_run_cut_short_is_a_quarter_warm_up() -> None:
    found = memory_soak.summarise([(second, 100 * MIB) for second in range(41)], warm_up_s=60)
    assert (found["warm_up_s"], found["seconds"]) == (10, 30)


def test_a_shortened_clip_is_whole_frames() -> None:
    clip = encode_clip(fit_clip(load_clip(None), 3.0), AudioFormat.OGG)
    short = memory_soak.shortened(clip, 1.01)
    assert (short.frames, len(short.messages)) == (13, 26)
    assert short.messages == clip.messages[:26]
    assert memory_soak.shortened(clip, 99).frames == clip.frames
    assert memory_soak.shortened(clip, 0.01).frames == 1


@pytest.mark.parametrize(("vanish_after_s", "code"), [(0.2, None), (None, 1000)])
async def test_who_vanishes_says_no_goodbye(vanish_after_s: float | None, code: int | None) -> None:
    clip = encode_clip(fit_clip(load_clip(None), 0.4), AudioFormat.OPUS)
    async with fake_server() as fake, aiohttp.ClientSession() as http:
        soak = memory_soak.Soak(memory_soak.QUICK, fake.address.http, Stop())
        plan = SessionPlan(0, fake.address.chat({"ext": "1", "format": "opus"}), 0.0, 0.0)
        session = ProbeSession(plan, clip, start_s=time.monotonic(), clock=time.monotonic)
        await soak.hold(session, http, vanish_after_s=vanish_after_s)
        async with asyncio.timeout(120.0):
            while not fake.close_codes:  # noqa: ASYNC110 (what it waits for is the server's)
                await asyncio.sleep(0.01)
    assert fake.close_codes == [code]
    assert soak.tally.vanished == (code is None)
    assert soak.tally.outcomes == ({} if code is None else {"answered": 1})


def test_the_whole_soak_runs_in_seconds_when_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine: each message is sent and its reply awaited, and the server has room."""
    monkeypatch.setattr(memory_soak, "SessionPlan", partial(SessionPlan, grace_s=60.0))
    monkeypatch.setattr("antiphon_client.session.Pacer", partial(Pacer, stale_s=60.0))
    options = ["--backend", "null", *CALM_OPTIONS, *ROOM]
    assert memory_soak.main(["--quick", "--out", str(tmp_path), "--", *options]) == 0
    values = json.loads((tmp_path / "memory-soak.json").read_text())
    assert values["calls"]["answered"] >= 3
    assert values["calls"]["failed"] == values["calls"]["lost"] == 0
    assert 10 < values["memory"]["first_mib"] < 1000
    assert len(values["samples"]) >= 10
    text = " ".join((tmp_path / "memory-soak.md").read_text().split())  # its prose is wrapped
    assert "3 callers at once for 4 s" in text
    assert (tmp_path / "memory-soak.png").read_bytes().startswith(b"\x89PNG")


def test_a_server_that_cannot_start_is_an_error_with_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        memory_soak.main(["--quick", "--out", str(tmp_path), "--", "--no-such-option"])
    assert ended.value.code == 1
    words = capsys.readouterr().err
    assert "lab.bench.memory_soak: the server ended with exit code 2" in words
    assert "--no-such-option" in words
