"""Runs the unmodified ``moshi.client`` with a fake sound card until it has received sound.

Usage: python -m tests.web.stock_client URL. Its last line says in JSON how many loud samples that were.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from argparse import Namespace
from typing import Any

import numpy as np

from tests.serve import stock_sound
from tests.serve.stock_sound import Microphone, Printer, Speaker

PATIENCE_S = 120.0
PERIOD_S = 0.08
"""Real time: beside a browser's call, the client must not ask four times as much of the server."""
ENOUGH_SAMPLES = 12_000


def loud_samples() -> int:
    """How many loud samples the client's speaker was given."""
    return sum(int(np.count_nonzero(np.abs(block) > 0.05)) for block in Speaker.opened[0].blocks)


async def call(url: str) -> int:
    """Talk until enough was heard; how many loud samples that were."""
    stock_sound.PERIOD_S = PERIOD_S
    sounddevice: Any = types.ModuleType("sounddevice")
    sounddevice.InputStream, sounddevice.OutputStream = Microphone, Speaker
    sys.modules["sounddevice"] = sounddevice
    client = importlib.import_module("moshi.client")
    address = Namespace(url=url, host="", port=0, https=False)
    running = asyncio.create_task(client.run(Printer(), address))
    async with asyncio.timeout(PATIENCE_S):
        while not (Speaker.opened and loud_samples() > ENOUGH_SAMPLES):
            assert not running.done(), "the client gave up"
            await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return loud_samples()


if __name__ == "__main__":
    print(json.dumps({"loud_samples": asyncio.run(call(sys.argv[1]))}))  # noqa: T201
