"""A supervisor of stubs in a separate process: prints its port and runs until it is ended."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from antiphon.supervisor.supervisor import Supervisor
from tests.supervisor.running import plan


async def main() -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return await Supervisor(plan(listener, announce=lambda _: os.write(1, f"{port}\n".encode()))).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
