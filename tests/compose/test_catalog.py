"""One address for all models: the list, unknown names, and answers without a worker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compose.conftest import Start
from tests.support.stack.composefile import ROOT, services
from tests.support.stack.stack import Stack

MAPS = ROOT / "deploy" / "haproxy"


async def models(stack: Stack) -> list[str]:
    status, body, headers = await stack.get(f"{stack.url}/v1/models")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    said = json.loads(body)
    assert said["object"] == "list"
    for entry in said["data"]:
        assert entry == {"id": entry["id"], "object": "model", "created": 0, "owned_by": "antiphon"}
    return [entry["id"] for entry in said["data"]]


async def named(stack: Stack, path: str) -> tuple[str, str | None]:
    """The model that answers, and the service that answers in the place of another."""
    status, body, headers = await stack.get(stack.url + path)
    assert status == 200, (path, status, body)
    return json.loads(body)["model"]["name"], headers.get("Antiphon-Fallback")


async def test_all_models_by_every_name_and_another_one_while_none_runs(start: Start, tmp_path: Path) -> None:
    aliases, fallbacks = tmp_path / "aliases.map", tmp_path / "fallbacks.map"
    aliases.write_text("gpt-realtime duplex\nparrot echo\n")
    fallbacks.write_text("duplex echo\n")
    workers = tmp_path / "workers.map"
    workers.write_text("e echo\n")
    balancer = {"ALIASES": str(aliases), "FALLBACKS": str(fallbacks), "WORKERS_MAP": str(workers)}
    container = "0123456789ab"
    async with start(balancer=balancer, duplex=1, echo=1) as stack:
        stack.table[container] = stack.table["echo"]
        assert await models(stack) == ["tiny", "echo"]
        for name, model in (
            ("tiny", "tiny"),
            ("duplex", "tiny"),
            ("gpt-realtime", "tiny"),
            ("parrot", "echo"),
        ):
            status, body, _ = await stack.get(f"{stack.url}/v1/models/{name}")
            assert (status, json.loads(body)["id"]) == (200, model)
            assert await named(stack, f"/api/build_info?model={name}") == (model, None)
        # A worker's name leads a call back to it, and steers nothing else.
        assert await named(stack, "/api/build_info?worker=e&resume=again") == ("echo", None)
        for name in (container, f"{container}~2", "e~12"):
            assert await named(stack, f"/api/build_info?worker={name}&resume=again") == ("echo", None)
        for query in ("worker=e", f"worker={container}", "worker=e&resume=1", "worker=echo&resume=again"):
            assert await named(stack, f"/api/build_info?{query}") == ("tiny", None)
        status, body, _ = await stack.get(f"{stack.url}/v1/models/nobody")
        assert status == 404
        error = json.loads(body)["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"].startswith("no such model here; there is: duplex (tiny), echo (echo)")

        (worker,) = stack.of("duplex")
        worker.kill()
        await stack.sees("duplex-queue", {})
        assert await models(stack) == ["echo"]
        for path in ("/api/build_info", "/m/gpt-realtime/api/build_info", "/api/build_info?model=tiny"):
            assert await named(stack, path) == ("echo", "echo")
        # Nothing answers in the place of speech to text.
        status, _, headers = await stack.get(f"{stack.url}/m/stt/api/build_info")
        assert (status, "Antiphon-Fallback" in headers) == (503, False)


def test_the_maps_name_services_and_change_nothing_until_they_are_written() -> None:
    for file in ("aliases.map", "fallbacks.map"):
        assert all(line.startswith("#") for line in (MAPS / file).read_text().splitlines())
        for line in (MAPS / file).read_text().splitlines():
            if line.startswith("#   "):
                assert line.split()[2] in services()
