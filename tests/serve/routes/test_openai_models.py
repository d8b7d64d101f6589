"""``/v1/models`` lists models in OpenAI's format."""

from __future__ import annotations

import json
from pathlib import Path

from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import serving
from tests.support.null_models import DUPLEX


async def test_the_models_are_listed_as_openai_lists_them(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    async with serving(api_keys=str(keys), also=[("other", DUPLEX)]) as server:
        status, body, _ = await server.get("/v1/models")
        assert (status, json.loads(body)["error"]["type"]) == (401, "invalid_request_error")
        _, body, _ = await server.get("/v1/models", **{"x-api-key": "key-of-alice"})
        listed = json.loads(body)
    assert listed["object"] == "list"
    assert [it["id"] for it in listed["data"]] == ["null-echo", "other"]
    assert all(it["object"] == "model" and it["created"] > 1_700_000_000 for it in listed["data"])
