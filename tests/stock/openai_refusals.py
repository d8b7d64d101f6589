"""Each refusal as the unchanged ``openai`` package reports it; prints JSON.

python openai_refusals.py BASE_URL KEY MODEL      the server has one row, and asks for keys
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI


async def error_of(base_url: str, key: str, session: dict[str, Any], *then: dict[str, Any]) -> str:
    """What a user sees who starts this session and sends these events."""
    client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)
    try:
        async with client.live.connect() as connection:
            await connection.session.start(session=session)
            async for event in connection:
                if event.type == "session.started":
                    for more in then:
                        await connection.send(more)
                elif event.type == "error":
                    return f"{event.error.code}: {event.error.message}"
    except Exception as error:  # the very thing that is to be seen
        return f"{type(error).__name__}: {error}"
    return "closed without a word"


async def refusals(base_url: str, key: str, model: str) -> dict[str, str]:
    """Every refusal, by name."""
    append = {"type": "session.commentary.append", "content": "Say hello.", "delegation_id": None}
    opus = {"format": {"type": "audio/opus"}}
    met = {
        "wrong key": await error_of(base_url, "wrong", {"model": model}),
        "unknown model": await error_of(base_url, key, {"model": "gpt-live-1"}),
        "wrong format": await error_of(base_url, key, {"model": model, "audio": opus}),
        "event without effect": await error_of(base_url, key, {"model": model}, append),
        "unknown event": await error_of(base_url, key, {"model": model}, {"type": "response.cancel"}),
    }
    client = AsyncOpenAI(base_url=base_url, api_key=key)
    async with client.live.connect() as connection:
        await connection.session.start(session={"model": model})
        await connection.recv()
        met["full house"] = await error_of(base_url, key, {"model": model})
    try:
        await AsyncOpenAI(base_url=base_url, api_key="wrong", max_retries=0).models.list()
    except Exception as error:
        met["wrong key over HTTP"] = f"{type(error).__name__}: {error}"
    return met


if __name__ == "__main__":
    _, url, api_key, model_name = sys.argv
    print(json.dumps(asyncio.run(refusals(url, api_key, model_name))))  # noqa: T201
