"""A call of a server over a telephone line: each turn is answered, and no frame is lost within the server."""

from __future__ import annotations

from antiphon.backends.host import HostBackend
from lab.bench.telephone_call import EchoRows, call
from lab.bench.telephone_line import TURN_S
from tests.serve.harness import serving
from tests.support.null_models import CODEC, null_checkpoint


async def test_turns_are_answered_by_a_server() -> None:
    backend = HostBackend(CODEC, EchoRows(CODEC), slots=1)
    async with serving(model=(null_checkpoint(CODEC), backend)) as server:
        outcome = await call(server.url(""), 3 * TURN_S, 0.005, seed=1)
    assert outcome.turns == 3
    assert list(outcome.heard.turns_s) == [0, 1, 2]  # the gap is over 0.5 s before the last turn ends
    assert 'lost model="null-echo" 0' in outcome.counters
