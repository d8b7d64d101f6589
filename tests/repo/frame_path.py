"""The files that one frame of a call passes, from its bytes on a socket to the bytes of its reply."""

from __future__ import annotations

from typing import Final

FRAME_PATH: Final = (
    "server/antiphon/audio/opus.py",
    "server/antiphon/backends/host.py",
    "server/antiphon/backends/null.py",
    "server/antiphon/engine/rows.py",
    "server/antiphon/engine/loop.py",
    "server/antiphon/engine/metrics.py",
    "server/antiphon/ipc/rings.py",
    "server/antiphon/ipc/client_context.py",
    "server/antiphon/ipc/session.py",
    "server/antiphon/protocol/moshi.py",
    "server/antiphon/serve/calls/exchange.py",
    "server/antiphon/serve/calls/dialect.py",
    "server/antiphon/serve/calls/participant.py",
    "server/antiphon/serve/dialects/chat.py",
    "server/antiphon/serve/hosting/turns.py",
    "server/antiphon/serve/transport/socket.py",
)
"""Each has a function that runs for every frame of ``/api/chat``: Opus, one process, the null backend.

``tests/serve/calls/test_frame_path.py`` runs such a call and compares.
"""

FRAME_LINES: Final = 1450
"""Most lines of the functions in them that run for every frame; the same test counts them."""

ON_A_CLOCK: Final = (
    "server/antiphon/engine/engine.py",
    "server/antiphon/engine/front_ends.py",
    "server/antiphon/ipc/engine_group.py",
    "server/antiphon/ipc/engine_client.py",
    "server/antiphon/serve/hosting/event_loop.py",
    "server/antiphon/serve/hosting/served.py",
)
"""Files that run at fixed intervals, on a slow machine as often as once a frame."""
