"""A server with a voice agent in a separate process, for benchmarks that run the text model in their own
process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lab.bench.harness import RunningServer, running_server, serve_command
from tests.support.calm import CALM_OPTIONS


@asynccontextmanager
async def agent_server(llm: str, *options: str, slots: int) -> AsyncIterator[tuple[RunningServer, Path]]:
    """Run a server with the agent ``assistant``, which refuses no call because its machine is busy; yields it
    and the path of its log. ``options`` name its models.

    This process's loop runs while it starts, since the server queries the text model.

    Raises:
        BenchError: it did not start.
    """
    most = ("--slots", str(slots), "--max-sessions-per-address", str(4 * slots))
    command = serve_command(*CALM_OPTIONS, *options, *most, "--agent", "assistant", "--llm", llm)
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "server.log"
        manager = running_server(command, log)
        server = await asyncio.to_thread(manager.__enter__)
        try:
            yield server, log
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
