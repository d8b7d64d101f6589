"""A supervisor of stubs in a separate process: prints its port and runs until it is ended."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from unittest.mock import patch

from antiphon.supervisor import supervisor
from tests.supervisor.running import plan

SILENT_S = 4.0
"""What a front end may be silent for: twice the product's, since a test's process may have to wait too."""


async def main() -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    own = plan(listener, announce=lambda _: os.write(1, f"{port}\n".encode()))
    with patch.object(supervisor, "SILENT_S", SILENT_S):
        return await supervisor.Supervisor(own).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
