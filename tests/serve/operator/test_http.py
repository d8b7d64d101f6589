"""Endpoints for operators: health, readiness, metrics, build information, the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from antiphon import __version__
from antiphon.backends.machine import cpu_name
from antiphon.backends.null import NullFaults
from antiphon.log import LINE_PERIOD_S
from antiphon.protocol import moshi
from antiphon.serve.access.security import origin_allowed
from antiphon.serve.hosting.app import BURST_LINES
from antiphon.serve.operator.http import hardware
from antiphon.serve.routes.static import StaticFiles, web_root
from tests.repo.tracked import ROOT
from tests.serve.harness import serving, speech
from tests.serve.hostile_requests import UPGRADE
from tests.support.null_models import CODEC, DUPLEX


async def test_health_and_readiness() -> None:
    async with serving(slots=1) as server:
        assert (await server.get("/healthz"))[:2] == (200, "ok\n")
        assert (await server.get("/readyz"))[:2] == (200, "ok\n")
        async with server.caller():
            status, text, _ = await server.get("/readyz")
            assert (status, text) == (503, "full: 1 of 1 rows taken, callers waiting: 0\n")
            assert (await server.get("/healthz"))[0] == 200
        await server.is_empty()
        server.engine.drain()
        status, text, _ = await server.get("/readyz")
        assert (status, text) == (503, "draining: 0 sessions left\n")
        assert (await server.get("/healthz"))[0] == 200


async def test_rows_that_are_free_and_not_given_are_called_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(slots=2) as server, server.caller():
        (model,) = server.services.models
        now = model.engine.health()
        monkeypatch.setattr(model.engine, "health", lambda: replace(now, ready=False))
        status, text, _ = await server.get("/readyz")
        assert (status, text) == (503, "late: 1 of 2 rows taken, but frames miss their deadline\n")


async def test_a_stuck_step_fails_the_health_check() -> None:
    faults = NullFaults(slow_ms={1: 1500.0})
    async with serving(faults=faults, engine={"stuck_s": 0.2}) as server, server.caller() as client:
        await client.speak(speech(2))

        status, text = 200, ""
        while status != 503:
            status, text, _ = await server.get("/healthz")
        assert "a step has been running for" in text
        await client.reply()
        await client.reply()
        while status != 200:  # a stalled machine can hold up the next step too
            status, _, _ = await server.get("/healthz")


async def test_metrics_speak_prometheus() -> None:
    async with serving() as server, server.caller() as client:
        await client.speak(speech(2))
        await client.reply()
        _, text, headers = await server.get("/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        for name in ("antiphon_open_sockets", "antiphon_active_sessions"):
            assert f'{name}{{model="null-echo"}} 1.0' in text
        for name in (
            "antiphon_frame_latency_seconds",
            "antiphon_loop_lag_seconds",
            "antiphon_loop_busy_seconds",
        ):
            assert f"# HELP {name}" in text


async def test_every_metric_the_runbooks_name_is_there() -> None:
    runbooks = ROOT / "docs" / "runbooks"
    text = "".join(path.read_text() for path in runbooks.glob("*.md"))
    named = set(re.findall(r"antiphon_[a-z_]+", text))
    assert len(named) > 5
    async with serving(also=[("next", CODEC)], canary="next", canary_share=1.0) as server:
        async with server.call():
            pass
        await server.is_empty()
        _, metrics, _ = await server.get("/metrics")
    missing = {name for name in named if f"\n{name}" not in metrics and f"# HELP {name} " not in metrics}
    assert missing == set()


async def test_refusals_and_closes_are_counted() -> None:
    async with serving() as server:
        await server.get("/api/chat")
        async with server.call("ext=1") as client:
            await client.event("ready")
            await client.ws.close(code=1000)
        await server.is_empty()
        _, text, _ = await server.get("/metrics")
        assert 'antiphon_refused_requests_total{model="null-echo",status="426"} 1.0' in text
        assert 'antiphon_closed_sockets_total{code="1000",model="null-echo"} 1.0' in text


@pytest.mark.parametrize(
    ("code", "faults", "limits", "said"),
    [
        (1007, {}, {}, moshi.Audio(b"\0\0\xc0\x7f")),
        (1008, {}, {"handshake_timeout_s": 0.2}, None),
        (1009, {}, {"max_message_bytes": 2048}, moshi.Audio(bytes(4096))),
        (1011, {"fail_rows": {0: (0, 1)}}, {}, moshi.Audio(bytes(7680))),
    ],
)
async def test_a_close_of_ours_is_counted_by_its_own_code(
    code: int, faults: dict[str, Any], limits: dict[str, Any], said: moshi.Message | None
) -> None:
    async with serving(faults=NullFaults(**faults), limits=limits) as server:
        async with server.caller() as client:
            if said is not None:
                await client.send(said)
            assert (await client.closed()).code == code
        await server.is_empty()
        _, text, _ = await server.get("/metrics")
    assert re.findall(r'antiphon_closed_sockets_total{code="(\d+)",model="null-echo"} (\S+)', text) == [
        (str(code), "1.0")
    ]


async def test_close_codes_of_a_peers_own_share_one_label() -> None:
    async with serving(slots=4) as server:
        for code in (1000, 3000, *range(4000, 4030), 4999):
            async with server.call("ext=1") as client:
                await client.event("ready")
                await client.ws.close(code=code)
        await server.is_empty()
        _, text, _ = await server.get("/metrics")
    assert re.findall(r'antiphon_closed_sockets_total{code="(\w+)",model="null-echo"} (\S+)', text) == [
        ("1000", "1.0"),
        ("other", "32.0"),
    ]


async def test_a_refusal_before_the_upgrade_is_one_line_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(slots=1) as server, server.caller():
        for query in ("", "ext=1"):
            caplog.clear()
            if query:
                async with server.call(query) as client:
                    await client.closed()
            else:
                assert (await server.get("/api/chat", **UPGRADE))[0] == 503
            (line,) = [it for it in caplog.records if it.getMessage() == "session refused"]
            fields: dict[str, Any] = vars(line)["fields"]
            assert (line.levelname, fields["path"]) == ("INFO", "/api/chat")
            assert fields["reason"].startswith("the only row is in use")


async def test_refusals_without_end_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    start_s = time.monotonic()
    async with serving() as server:
        for _ in range(BURST_LINES + 20):
            assert (await server.get("/api/chat?model=none"))[0] == 404
    refusals = [it for it in caplog.records if it.getMessage() == "session refused"]
    refilled = (time.monotonic() - start_s) / LINE_PERIOD_S
    assert BURST_LINES <= len(refusals) <= BURST_LINES + refilled


async def test_a_caller_who_gave_up_the_queue_is_counted_as_1013() -> None:
    async with serving(slots=1) as server, server.caller():
        async with server.call("ext=1&wait=0.1") as client:
            assert (await client.closed()).code == 1013
        await server.eventually(lambda: len(server.services.calls) == 1)
        _, text, _ = await server.get("/metrics")
    assert 'antiphon_closed_sockets_total{code="1013",model="null-echo"} 1.0' in text


async def test_an_origin_that_is_none_is_refused() -> None:
    async with serving() as server:
        headers = {"Origin": "http://[::1", "Connection": "Upgrade", "Upgrade": "websocket"}
        status, _, _ = await server.get("/api/chat", **headers)
        assert status == 403


async def test_build_info_says_all_a_benchmark_card_needs() -> None:
    async with serving(slots=3) as server, server.caller():
        _, text, _ = await server.get("/api/build_info")
        info = json.loads(text)
        assert info["version"] == __version__
        assert info["model"]["name"] == "null-echo"
        assert info["model"].keys() >= {"parameters", "format", "dtype", "quantization", "kind"}
        assert info["backend"] == {"name": "null", "device": "cpu", "threads": ""}
        assert info["hardware"]["cpu"]
        assert info["hardware"]["cpus"] >= 1
        assert info["hardware"]["memory_bytes"] > 2**28
        assert info["memory_bytes"]["process"] > 2**20
        assert info["slots"] == {"used": 1, "queued": 0, "total": 3}
        assert "python" in info["versions"]


async def test_modules_info_has_kyutais_shape() -> None:
    async with serving(slots=3) as server, server.caller():
        _, text, _ = await server.get("/api/modules_info")
        assert json.loads(text) == [{"type": "codec", "path": "/api/chat", "used_slots": 1, "total_slots": 3}]


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.serve.operator.http.usable_cores", lambda: 3)
    assert hardware()["cpus"] == 3


def test_a_processor_has_a_name_everywhere(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 2GHz\n")
    assert cpu_name(info) == "Some CPU @ 2GHz"
    for flags, named in (
        ("flags : avx2 avx512f avx512_vnni", "AVX-512 VNNI"),
        ("flags : avx2 fma", "AVX2 without VNNI"),
        ("Features : fp asimd asimddp", "NEON dot products"),
    ):
        info.write_text(f"model name\t: Some CPU\n{flags}\n")
        assert cpu_name(info) == f"Some CPU, {named}"
    assert cpu_name(tmp_path / "none")


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "passes"),
    [
        (None, "a:1", (), True),
        ("http://a:1", "a:1", (), True),
        ("https://a", "a", (), True),
        ("https://a", "a:443", (), True),
        ("http://A:80", "a", (), True),
        ("http://b", "a", (), False),
        ("http://a:2", "a:1", (), False),
        ("http://a.b", "a", (), False),
        ("null", "a", (), False),
        ("null", "a", ("null",), True),
        ("http://b", "a", ("http://b/",), True),
        ("http://b", "a", ("*",), True),
        ("http://bb", "a", ("http://b",), False),
        ("http://a", None, (), False),
    ],
)
def test_origins(origin: str | None, host: str | None, allowed: tuple[str, ...], passes: bool) -> None:
    assert origin_allowed(origin, host, allowed) is passes


@pytest.fixture
def page(tmp_path: Path) -> Path:
    root = tmp_path / "page"
    (root / "sub").mkdir(parents=True)
    (root / "index.html").write_text("<!doctype html><title>x</title>" + " " * 500)
    (root / "sub" / "app.mjs").write_text("export const a = 1;\n" * 50)
    (root / "dot.png").write_bytes(b"\x89PNG" + bytes(range(256)))
    (tmp_path / "secret.txt").write_text("no")
    return root


async def test_the_page_its_type_and_its_policy(page: Path) -> None:
    async with serving(page=page, allow_host=("*",)) as server:
        status, text, headers = await server.get("/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "<title>x</title>" in text
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert f"connect-src 'self' ws://127.0.0.1:{server.port} wss://127.0.0.1:{server.port}" in policy
        assert "media-src 'self' blob:; manifest-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        _, _, headers = await server.get("/sub/app.mjs")
        assert headers["Content-Type"] == "text/javascript; charset=utf-8"
        _, _, headers = await server.get("/", Host="a; script-src *")
        assert "script-src *" not in headers["Content-Security-Policy"]


async def test_an_unchanged_file_is_304_and_a_changed_one_is_sent(page: Path) -> None:
    async with serving(page=page) as server:
        _, _, headers = await server.get("/")
        tag = headers["ETag"]
        status, text, _ = await server.get("/", **{"If-None-Match": f'"other", W/{tag}'})
        assert (status, text) == (304, "")
        (page / "index.html").write_text("<!doctype html><title>y</title>")
        status, text, _ = await server.get("/", **{"If-None-Match": tag})
        assert (status, "<title>y</title>" in text) == (200, True)


async def test_what_the_page_names_is_kept_for_good_until_something_changes(page: Path) -> None:
    (page / "index.html").write_text(
        '<script src="sub/app.mjs"></script><link href="a.css"><a href="none.css">'
    )
    (page / "a.css").write_text("a { color: red }")
    async with serving(page=page) as server:
        _, text, headers = await server.get("/")
        named = re.search(r'href="(v/[0-9a-f]{12}/a\.css)"', text)
        assert named, text
        assert 'href="none.css"' in text
        assert headers["Cache-Control"] == "no-cache"
        status, _, headers = await server.get(f"/{named[1]}")
        assert (status, headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        (page / "sub" / "app.mjs").write_text("export const a = 2;")
        _, text, _ = await server.get("/")
        assert named[1] not in text
        status, _, headers = await server.get(f"/{named[1]}")
        assert (status, headers["Cache-Control"]) == (200, "no-cache")
        assert (await server.get("/a.css"))[2]["Cache-Control"] == "no-cache"
        assert (await server.get(f"/{named[1]}/../../../../secret.txt"))[0] == 404


@pytest.mark.parametrize("path", ["/", "/none", "/api/chat", "/healthz", "/api/models"])
async def test_nothing_is_to_be_sniffed(path: str, page: Path) -> None:
    async with serving(page=page) as server:
        _, _, headers = await server.get(path)
        assert headers["X-Content-Type-Options"] == "nosniff"


async def test_a_plain_get_is_told_why_a_socket_was_refused() -> None:
    async with serving() as server:
        for query, status, words in (
            ("text_topk=3", 400, "text_topk is 3, "),
            ("ext=1&model=other", 404, "no model 'other' here"),
            ("ext=1", 426, "this is a WebSocket"),
        ):
            found, text, _ = await server.get(f"/api/chat?{query}")
            assert (found, words in text) == (status, True), text


async def test_models_say_what_may_be_asked_of_them() -> None:
    async with serving(slots=3, spec=DUPLEX) as server, server.caller():
        _, text, _ = await server.get("/api/models")
        assert json.loads(text).keys() == {"models"}
        (model,) = json.loads(text)["models"]
    assert (model["name"], model["kind"]) == ("null-duplex", "duplex")
    assert model["slots"] == {"used": 1, "free": 2, "queued": 0, "total": 3}
    assert model["parameters"].keys() == model["ranges"].keys()
    assert model["parameters"]["text_temperature"] == 0.7
    assert model["parameters"]["text_seed"] is None
    topk = {"low": 10, "high": 500, "is_whole": True, "zero_means": "all", "is_optional": False}
    assert model["ranges"]["audio_topk"] == topk
    assert model["voices"] is None


async def test_text_is_compressed_for_those_who_can_read_it(page: Path) -> None:
    async with serving(page=page) as server, aiohttp.ClientSession(auto_decompress=False) as http:
        async with http.get(server.url("/"), headers={"Accept-Encoding": "gzip"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await response.read()).startswith(b"<!doctype")
        async with http.get(server.url("/dot.png"), headers={"Accept-Encoding": "gzip"}) as response:
            assert "Content-Encoding" not in response.headers
            assert response.headers["Content-Type"] == "image/png"
        async with http.get(server.url("/"), headers={"Accept-Encoding": "identity"}) as response:
            assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize(
    "path", ["/none.html", "/sub", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/a%00b", "//etc/passwd"]
)
async def test_nothing_outside_the_folder_is_served(path: str, page: Path) -> None:
    async with serving(page=page) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode(errors="replace")
        writer.close()
        assert answer.split()[1] in ("404", "400")
        assert "no\n" not in answer.split("\r\n\r\n", 1)[1].replace("no such page\n", "")


async def test_a_name_longer_than_any_file_is_404(page: Path) -> None:
    async with serving(page=page) as server:
        status, _, _ = await server.get("/" + "a" * 300)
        assert status == 404


async def test_a_link_out_of_the_folder_is_not_followed(page: Path) -> None:
    (page / "link.txt").symlink_to(page.parent / "secret.txt")
    async with serving(page=page) as server:
        assert (await server.get("/link.txt"))[0] == 404


def test_the_checkout_has_a_page() -> None:
    root = web_root()
    assert root is not None
    assert b"<!doctype html>" in StaticFiles(root).find("index.html").body.lower()
