"""Several models in one process: routing of requests, and the health of each model."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.null import NullFaults
from antiphon.errors import UnknownModelError
from antiphon.log import Log
from antiphon.models.catalog import load_checkpoint
from antiphon.models.source import DEFAULT_MODEL
from antiphon.models.spec import PipelineKind
from antiphon.protocol import events
from antiphon.serve.hosting.front_end import drain
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.operator.http import model_card
from tests.serve.harness import PATIENCE_S, Server, serving, speech
from tests.support.null_models import CODEC, DUPLEX
from tests.support.stamp import read_stamp

BOTH = [("duplex", DUPLEX), ("second echo", CODEC)]


async def who_answers(server: Server, path: str, query: str = "") -> Any:
    async with server.call(f"ext=1&format=pcm_f32le&{query}", path=path) as client:
        return (await client.event("ready")).fields["model"]


@pytest.mark.parametrize(
    ("path", "query", "name"),
    [
        ("/api/chat", "", "null-echo"),
        ("/api/chat", "model=duplex", "duplex"),
        ("/api/chat", "model=second+echo", "second echo"),
        ("/api/chat", f"model={DEFAULT_MODEL}", "null-echo"),  # what --model was given
        ("/m/null-echo/api/chat", "", "null-echo"),
        ("/m/duplex/api/chat", "", "duplex"),
        ("/m/duplex/api/chat", "model=duplex", "duplex"),
        ("/m/second%20echo/api/chat", "", "second echo"),
    ],
)
async def test_a_request_names_its_model_by_query_or_path(path: str, query: str, name: str) -> None:
    async with serving(also=BOTH) as server:
        assert await who_answers(server, path, query) == name


async def test_each_model_has_rows_counts_and_metrics_of_its_own() -> None:
    async with serving(slots=1, also=BOTH) as server:
        async with server.caller() as first, server.caller("model=duplex") as second:
            for client in (first, second):
                await client.speak(speech(4))
                await client.reply()
            assert [model.engine.health().active for model in server.services.models] == [1, 1, 0]
            async with server.call("ext=1&model=duplex") as third:
                assert (await third.event("error")).fields["code"] == 1013
            _, text, _ = await server.get("/metrics")
            for name, active in (("null-echo", 1), ("duplex", 1), ("second echo", 0)):
                assert f'antiphon_active_sessions{{model="{name}"}} {active}.0' in text
                assert f'antiphon_open_sockets{{model="{name}"}} {active}.0' in text
            assert text.count("# HELP antiphon_active_sessions ") == 1
            assert 'antiphon_admissions_total{model="duplex",outcome="full"} 1.0' in text
        await server.is_empty()


async def test_loud_callers_of_one_model_are_not_heard_by_another() -> None:
    async with serving(slots=2, also=[("other", CODEC)]) as server:

        async def call(query: str, seed: int) -> list[int]:
            async with server.caller(query) as client:
                frames = []
                for index in range(6):
                    await client.speak(speech(1, 100 * seed + index))
                    _, pcm = await client.reply()
                    frames.append(read_stamp(np.asarray(pcm)).frame)
                return frames

        calls = [call("model=other" if seed % 2 else "", seed) for seed in range(4)]
        assert await asyncio.gather(*calls) == [list(range(6))] * 4


@pytest.mark.parametrize(
    "path", ["/api/models", "/api/build_info", "/readyz", "/m/nobody/api/models", "/api/chat"]
)
async def test_an_unknown_model_is_404_in_json_with_what_there_is(path: str) -> None:
    async with serving(also=BOTH) as server:
        query = "" if path.startswith("/m/") else "?model=nobody"
        status, text, headers = await server.get(path + query)
        assert (status, headers["Content-Type"]) == (404, "application/json; charset=utf-8")
        known = "null-echo (codec), duplex (duplex), second echo (codec)"
        assert json.loads(text) == {
            "error": f"no model 'nobody' here; there is: {known}; to serve it under this name: "
            "--alias nobody=null-echo",
            "code": 1008,
            "models": ["null-echo", "duplex", "second echo"],
        }


async def test_a_model_of_another_kind_does_not_answer() -> None:
    async with serving(also=BOTH) as server:
        models = server.services.models
        wanted = "model 'null-echo' is a codec model, and this is for duplex; there is: duplex (duplex)"
        with pytest.raises(UnknownModelError, match=f"^{re.escape(wanted)}$") as unfit:
            models.find("null-echo", (PipelineKind.DUPLEX,))
        assert unfit.value.known == ("duplex",)
        with pytest.raises(
            UnknownModelError, match=r"^no stt model here; there is: null-echo \(codec\), "
        ) as none:
            models.find(None, (PipelineKind.STT,))
        assert none.value.known == ("null-echo", "duplex", "second echo")
        assert models.find(None, (PipelineKind.DUPLEX,)).name == "duplex"


async def test_a_path_and_a_query_that_differ() -> None:
    async with serving(also=BOTH) as server:
        status, text, _ = await server.get("/m/duplex/api/chat?model=null-echo")
        assert (status, text) == (400, "the path names 'duplex' and the query 'null-echo': which model?\n")


async def test_the_list_of_models() -> None:
    async with serving(slots=3, also=BOTH) as server, server.caller("model=duplex"):
        _, text, _ = await server.get("/api/models")
        models = json.loads(text)["models"]
        assert [model["name"] for model in models] == ["null-echo", "duplex", "second echo"]
        assert [model["is_default"] for model in models] == [True, False, False]
        assert models[1]["slots"] == {"used": 1, "free": 2, "queued": 0, "total": 3}
        assert models[1]["paths"] == [
            "/api/chat",
            "/v1/live/sessions",
            "/v1/realtime",
            "/v1/realtime/client_secrets",
            "/v1/realtime/calls",
            "/twilio",
            "/telnyx",
            "/asterisk",
        ]
        assert (models[1]["sample_rate"], models[1]["frame_samples"]) == (24000, 1920)
        assert models[1]["card"].keys() == {"description", "license", "examples", "voices", "parameters"}
        for path in ("/m/duplex/api/models", "/api/models?model=duplex"):
            _, text, _ = await server.get(path)
            assert [model["name"] for model in json.loads(text)["models"]] == ["duplex"]
        _, text, _ = await server.get("/api/build_info?model=duplex")
        assert json.loads(text)["model"]["name"] == "duplex"
        _, text, _ = await server.get("/api/build_info")
        assert json.loads(text)["models"] == ["null-echo", "duplex", "second echo"]
        _, text, _ = await server.get("/api/modules_info")
        assert [(module["path"], module["used_slots"]) for module in json.loads(text)] == [
            ("/api/chat", 0),
            ("/m/duplex/api/chat", 1),
            ("/m/second%20echo/api/chat", 0),
        ]


async def test_ready_while_one_model_is() -> None:
    async with serving(slots=1, also=[("duplex", DUPLEX)]) as server, server.caller():
        status, text, _ = await server.get("/readyz")
        assert (status, text) == (200, "null-echo: full: 1 of 1 rows taken, callers waiting: 0\nduplex: ok\n")
        assert (await server.get("/m/duplex/readyz"))[:2] == (200, "ok\n")
        assert (await server.get("/readyz?model=null-echo"))[0] == 503
        async with server.caller("model=duplex"):
            status, text, _ = await server.get("/readyz", Accept="application/json")
            ready = json.loads(text)
            assert (status, ready["ok"]) == (503, False)
            assert ready["models"]["duplex"] == {
                "healthy": True,
                "ready": False,
                "draining": False,
                "active": 1,
                "queued": 0,
                "slots": 1,
                "detail": "full: 1 of 1 rows taken, callers waiting: 0",
            }


async def draining(server: Server, limit_s: float) -> None:
    await drain(server.app, limit_s, is_cut=lambda: False, log=Log())


async def test_one_dead_engine_fails_the_health_check_by_name_and_the_others_may_finish() -> None:
    faults = NullFaults(lose_device_at=1)
    async with serving(faults=faults, also=[("duplex", DUPLEX)]) as server:
        async with server.caller("model=duplex") as other:
            async with server.caller() as lost:
                await lost.speak(speech(3))
                assert (await lost.closed()).code == 1011
            ending = asyncio.create_task(draining(server, PATIENCE_S))
            assert await other.event("draining")
            status, text, _ = await server.get("/healthz")
            assert status == 503
            assert text.startswith("null-echo: the model can no longer run: ")
            assert (await server.get("/m/duplex/healthz"))[:2] == (200, "ok\n")
            assert (await server.get("/readyz"))[0] == 503
            assert not ending.done()
            await other.speak(speech(4))
            await other.reply()
            await other.send(events.bye())
            assert (await other.closed()).code == 1000
        await ending


async def test_when_all_engines_are_dead_nobody_is_waited_for() -> None:
    async with serving(faults=NullFaults(lose_device_at=1)) as server, server.caller() as lost:
        await lost.speak(speech(3))
        await server.eventually(lambda: not server.engine.health().alive)
        await asyncio.wait_for(draining(server, 600.0), PATIENCE_S)
        assert (await lost.closed()).code == 1011


async def test_draining_ends_all_models() -> None:
    async with (
        serving(also=[("duplex", DUPLEX)]) as server,
        server.caller() as first,
        server.caller("model=duplex") as second,
    ):
        ending = asyncio.create_task(draining(server, 0.2))
        for client in (first, second):
            assert (await client.closed()).code == 1001
        await ending
        _, text, _ = await server.get("/readyz")
        assert text == "null-echo: draining: 0 sessions left\nduplex: draining: 0 sessions left\n"


async def test_whatever_a_stranger_sends_it_is_refused_in_words() -> None:
    """Names, headers and queries of any kind on the routes: an answer below 500, and the server lives on."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=30)
    header = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
    names = ["Authorization", "X-Forwarded-For", "Sec-WebSocket-Protocol", "Origin", "Accept", "Upgrade"]
    asked: list[tuple[str, str, dict[str, str]]] = []

    @given(text, text, st.dictionaries(st.sampled_from(names), header, max_size=3))
    def collect(model: str, query: str, headers: dict[str, str]) -> None:
        asked.append((model, query, headers))

    collect()
    async with serving(trusted_proxy=("127.0.0.1",), limits={"max_sessions_per_address": 1}) as server:
        for model, query, headers in asked:
            for path in (
                f"/m/{quote(model or 'x', safe='')}/api/chat",
                f"/api/models?{urlencode({'model': model, 'auth_id': query})}",
                f"/api/chat?{urlencode({'model': query})}",
            ):
                url = server.url(path)
                async with server.http.get(url, headers=headers, allow_redirects=False) as response:
                    assert response.status < 500, (url, headers)
        assert await who_answers(server, "/api/chat") == "null-echo"


async def test_the_card_of_a_model_says_what_it_is_and_what_to_ask_it() -> None:
    checkpoint = load_checkpoint("tiny")
    assert checkpoint.manifest is not None
    fake = SimpleNamespace(
        checkpoint=checkpoint, engine=SimpleNamespace(info=SimpleNamespace(spec=checkpoint.spec))
    )
    card = model_card(cast("ServedModel", fake))
    assert card["description"].startswith("A small talker")
    assert card["license"] == "Apache-2.0"
    assert "What is your name?" in card["examples"]
    assert card["parameters"] == checkpoint.spec.parameters
