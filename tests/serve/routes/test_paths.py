"""Nearly valid paths: other slashes, or a base with too many or too few parts."""

from __future__ import annotations

import pytest

from antiphon.serve.routes.paths import MAX_SEGMENTS, near_to
from tests.serve.harness import serving
from tests.serve.hostile_bodies import FORM, form_of
from tests.serve.hostile_requests import UPGRADE


@pytest.mark.parametrize(
    ("path", "same"),
    [
        ("/v1/models/", "/v1/models"),
        ("//v1//models", "/v1/models"),
        ("/healthz/", "/healthz"),
        ("/health", "/healthz"),
        ("/v1/audio/models", "/v1/models"),
        ("/m/null-echo/healthz/", "/m/null-echo/healthz"),
        ("/v1/audio/speech/voices", "/v1/audio/voices"),
    ],
)
async def test_slashes_and_other_names_change_nothing(path: str, same: str) -> None:
    async with serving() as server:
        for method in ("GET", "HEAD"):
            asked, wanted = (server.http.request(method, server.url(it) + "?a=1") for it in (path, same))
            async with asked as answer, wanted as expected:
                assert answer.status == expected.status == 200
                assert answer.content_type == expected.content_type


@pytest.mark.parametrize("path", ["/v1/realtime", "/api/chat", "/m/null-echo/v1/live/sessions"])
async def test_head_of_a_websocket_is_answered_as_get(path: str) -> None:
    async with serving() as server:
        for headers in ({}, UPGRADE):
            async with server.http.head(server.url(path), headers=headers) as answer:
                assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")


async def test_a_call_is_held_whatever_the_slashes() -> None:
    async with serving() as server, server.http.ws_connect(server.url("//api/chat/?ext=1")) as ws:
        assert (await ws.receive_bytes())[:1] == b"\0"
        await ws.close()


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "/v1/v1/audio/transcriptions", "/v1/audio/transcriptions"),
        ("POST", "/audio/transcriptions", "/v1/audio/transcriptions"),
        ("POST", "/v1/audio/speech/audio/speech", "/v1/audio/speech"),
        ("GET", "/v1/chat/models", "/v1/models"),
        ("GET", "/models", "/v1/models"),
        ("DELETE", "/api/api/models/", "/api/models"),
        ("GET", "/m/null-echo/v1/v1/models", "/m/null-echo/v1/models"),
        ("GET", "/m/null-echo/models", "/m/null-echo/v1/models"),
        ("POST", "/v1/completions", None),
        ("POST", "/" + "a/" * 2000, None),
    ],
)
async def test_what_is_not_there_is_404_and_names_what_is(method: str, path: str, right: str | None) -> None:
    async with serving() as server:
        data = form_of(file=b"RIFF") if method == "POST" else None
        async with server.http.request(
            method, server.url(path), data=data, headers={"Content-Type": FORM}
        ) as response:
            assert response.status == 404
            error = (await response.json())["error"]
    message = error["message"] if "/v1/" in path else error
    assert message.startswith(f"there is no route for {method} {path[:100]}")
    assert message.endswith(f"; did you mean {right}?" if right else path[:100])


def test_a_long_path_has_few_neighbours() -> None:
    assert len(list(near_to("/a" * 5000))) == 4 * MAX_SEGMENTS
