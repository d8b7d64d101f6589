"""CORS: pages of allowed origins read answers and errors, other pages do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.serve.access.keys import KeyEntry, digest_of, format_key
from tests.serve.harness import Server, serving
from tests.serve.tts_client import speaking

PAGE = "https://app.example"
OTHER = "https://evil.example"
ASKED = "authorization, content-type, x-stainless-lang"
RULES = ("Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers")
SPEECH = "/v1/audio/speech"


async def preflight(server: Server, origin: str, path: str = SPEECH) -> tuple[int, dict[str, str]]:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ASKED,
    }
    async with server.http.options(server.url(path), headers=headers) as answer:
        assert "Access-Control-Allow-Credentials" not in answer.headers
        return answer.status, dict(answer.headers)


@pytest.mark.parametrize(("allowed", "named"), [((PAGE + "/",), PAGE), (("*",), "*")])
async def test_a_preflight_of_an_allowed_origin_needs_no_key(
    allowed: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(format_key(KeyEntry("alice", digest_of("key-of-alice"))) + "\n")
    async with serving(allow_origin=allowed, api_keys=str(keys)) as server:
        status, headers = await preflight(server, PAGE)
        assert status == 204
        assert [headers[name] for name in RULES] == [named, "GET, HEAD, POST, DELETE", ASKED]
        assert headers["Access-Control-Max-Age"] == "600"
        assert headers.get("Vary") == (None if named == "*" else "Origin")


async def test_other_origins_are_told_nothing() -> None:
    async with serving(allow_origin=(PAGE,)) as server:
        for status, headers in (await preflight(server, OTHER), await preflight(server, "null")):
            assert status == 405
            assert not [name for name in headers if name.startswith("Access-Control-")]
        for origin in ({"Origin": OTHER}, {}):
            status, _, headers = await server.get("/v1/models", **origin)
            assert status == 200
            assert headers["Vary"] == "Origin"  # a cache keeps this answer for no allowed page
            assert not [name for name in headers if name.startswith("Access-Control-")]
    async with serving() as server:
        assert (await preflight(server, PAGE))[0] == 405
        assert "Vary" not in (await server.get("/v1/models"))[2]


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 200), ("/v1/nothing", 404), ("/v1/realtime", 426), (SPEECH, 405)]
)
async def test_an_allowed_page_reads_answers_and_errors(path: str, status: int) -> None:
    async with serving(allow_origin=(PAGE,)) as server:
        found, _, headers = await server.get(path, Origin=PAGE)
        assert (found, headers["Access-Control-Allow-Origin"]) == (status, PAGE)
        assert "Access-Control-Allow-Credentials" not in headers


async def test_headers_of_a_streamed_answer_are_exposed() -> None:
    async with speaking(allow_origin=("*",)) as (server, _):
        body = json.dumps(
            {"input": "one two \u96ea", "voice": "v", "instructions": "x", "response_format": "pcm"}
        )
        async with server.http.post(server.url(SPEECH), data=body, headers={"Origin": PAGE}) as answer:
            assert answer.status == 200
            await answer.read()
            exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert {"Antiphon-Ignored", "Antiphon-Unspoken"} <= set(exposed)
        async with server.http.post(server.url("/v1/audio/transcriptions"), headers={"Origin": PAGE}) as no:
            assert no.status == 404
            assert no.headers["Access-Control-Allow-Origin"] == "*"
