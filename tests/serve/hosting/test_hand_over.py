"""Calls that move from one server process to another and continue without a difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.serve.operator import drain
from tests.serve.encrypted import TLS
from tests.serve.harness import PATIENCE_S, speech
from tests.serve.process import ServerProcess, serve_process
from tests.serve.resuming import QUERY, MovingCaller, assert_same
from tests.support.launch import free_port
from tests.support.null_models import DUPLEX

pytestmark = pytest.mark.product
FRAMES = 60
FRONT_END = ("--front-ends", "1")
SEEDS = "&text_seed=5&audio_seed=7"
OPTIONS = ("--slots", "8", "--fixed-batch", "--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=10000")


@asynccontextmanager
async def two_workers(
    folder: Path, of_a: tuple[str, ...] = (), of_b: tuple[str, ...] = ()
) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers that share a secret."""
    secret = folder / "secret"
    secret.write_text("".join((TLS / name).read_text() for name in ("test-cert.pem", "test-key.pem")))
    common = (*OPTIONS, "--hand-over-secret", str(secret))
    async with (
        serve_process(*common, "--worker", "a", *of_a, spec="DUPLEX") as a,
        serve_process(*common, "--worker", "b", *of_b, spec="DUPLEX") as b,
    ):
        yield a, b


def caller_of(a: ServerProcess, b: ServerProcess, *, sends_until: int = FRAMES) -> MovingCaller:
    caller = MovingCaller(a.http, f"{a.url}/api/chat?{QUERY}{SEEDS}", speech(FRAMES))
    caller.workers = {"a": a.url, "b": b.url}
    caller.sends_until = sends_until
    return caller


@pytest.mark.parametrize(("of_a", "of_b"), [((), FRONT_END), (FRONT_END, ())])
async def test_a_worker_that_drains_hands_its_calls_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_a: tuple[str, ...], of_b: tuple[str, ...]
) -> None:
    """Over TLS to the port for workers, by the certificate that is their secret; callers have none."""
    port = free_port()
    async with two_workers(tmp_path, of_a, ("--hand-over-port", str(port), *of_b)) as (a, b):
        whole = caller_of(b, a)
        await whole.run()
        callers = [caller_of(a, b, sends_until=20) for _ in range(3)]
        running = [asyncio.ensure_future(caller.run()) for caller in callers]
        for caller in callers:
            await caller.until_answered(20 - DUPLEX.delay_frames)
        said = [a.url, "--hand-over", f"https://127.0.0.1:{port}", "--secret", str(tmp_path / "secret")]
        assert await asyncio.to_thread(drain.main, said) == 0
        assert capsys.readouterr().out == "draining; calls that can be resumed go to b\n"
        async with b.http.get(f"https://127.0.0.1:{port}/healthz", ssl=False) as response:
            assert response.status == 404
            assert await response.text() == f"port {port} is for other workers; callers have another one\n"
        async with asyncio.timeout(PATIENCE_S):  # a call that goes on may end before its turn to move comes
            while not all(caller.thread.resumptions for caller in callers):  # noqa: ASYNC110 (processes)
                await asyncio.sleep(0.02)
        for caller in callers:
            caller.go_on()
        await asyncio.gather(*running)
        assert await a.exit_code() == 0
        async with b.http.get(f"{b.url}/metrics") as response:
            assert 'hand_overs_total{model="null-duplex",outcome="taken"} 3.0' in await response.text()
    for caller in callers:
        assert (caller.thread.moves, caller.thread.resumptions, caller.thread.worker) == (1, 1, "b")
        assert_same(caller, whole)
