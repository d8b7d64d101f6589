"""Metrics, alerts and the dashboard: every name exists, every query works, every alert has a link."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.callers import calling
from tests.compose.conftest import Start
from tests.support.stack.composefile import ROOT, services
from tests.support.stack.process import find_program
from tests.support.stack.stack import START_S, Stack
from tests.support.stack.watch import CONFIG, loopback_config, watching

RULES = CONFIG / "rules"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "antiphon.json"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
ON_TRIAL_ALONE = {"antiphon_canary_phase"}
ON_CARDS_ALONE = {"antiphon_device_memory_bytes", "antiphon_device_memory_limit_bytes"}
METRIC = re.compile(r"\b(?:antiphon|haproxy|process)[_:]\w+(?::\w+)*")


def dashboard() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return data


def queries() -> dict[str, str]:
    """Every query of the dashboard by its place, with the variables as Grafana fills them in."""
    return {
        f"{panel['title']}/{target['refId']}": target["expr"]
        .replace("$__rate_interval", "20s")
        .replace("$service", ".*")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    }


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(file.read_text()) for file in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


async def ask(stack: Stack, url: str, query: str) -> list[Any]:
    async with stack.http.get(f"{url}/api/v1/query", params={"query": query}) as response:
        body = await response.json()
    assert body["status"] == "success", (query, body)
    found: list[Any] = body["data"]["result"]
    return found


async def test_every_query_has_an_answer_from_the_real_prometheus(start: Start) -> None:
    async with start(duplex=1, echo=1) as stack, watching(stack) as url:
        # Some numbers are there only once they have counted something: a refusal, a call that ended.
        assert (await stack.get(f"{stack.url}/api/chat?text_temperature=9"))[0] == 400
        async with calling(stack, 1) as (caller,):
            await caller.finish()
        async with calling(stack, 1, "duplex"), calling(stack, 1, "echo"):
            await every_target_is_up(stack, url)
            names = await exported(stack, url)
            unknown = {
                place: set(METRIC.findall(query)) - names - ON_CARDS_ALONE - ON_TRIAL_ALONE
                for place, query in (queries() | alerts()).items()
            }
            assert {place: found for place, found in unknown.items() if found} == {}
            for place, query in queries().items():
                if not set(METRIC.findall(query)) & ON_CARDS_ALONE:
                    await answered(stack, url, place, query)
            for query in alerts().values():
                await ask(stack, url, query)


async def every_target_is_up(stack: Stack, url: str) -> None:
    async with asyncio.timeout(START_S):
        while True:
            found = await ask(stack, url, "up")
            if sorted(item["metric"]["job"] for item in found if item["value"][1] == "1") == [
                *("antiphon", "antiphon", "balancer", "prometheus")
            ]:
                break
            await asyncio.sleep(0.1)
    services_seen = {item["metric"].get("service") for item in found}
    assert services_seen == {"duplex", "echo", None}


async def exported(stack: Stack, url: str) -> set[str]:
    """Every name there is, once the recorded ones are there too."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    async with asyncio.timeout(START_S):
        while True:
            async with stack.http.get(f"{url}/api/v1/label/__name__/values") as response:
                names = set((await response.json())["data"])
            # The share of short sessions needs sessions that end between two readings.
            missing = (recorded | {"antiphon_closed_sockets_total"}) - names
            if missing <= {"antiphon:hung_up_early:share1h", "antiphon:late_frames:share5m"}:
                return names | recorded
            await asyncio.sleep(0.2)


async def answered(stack: Stack, url: str, place: str, query: str) -> None:
    """A rate needs two readings of a number, five seconds apart; a share needs its sessions to end."""
    if "hung_up_early" in query:
        async with calling(stack, 1) as (caller,):
            await caller.finish()
    try:
        async with asyncio.timeout(START_S):
            while not await ask(stack, url, query):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{place} has no answer: {query}") from None


def alerts() -> dict[str, str]:
    return {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}


def promtool(*arguments: str) -> str:
    command = [find_program("promtool"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_promtool_finds_nothing_wrong() -> None:
    promtool("check", "config", str(CONFIG / "prometheus.yml"))
    promtool("check", "rules", *map(str, RULES.glob("*.yml")))


def test_each_alert_speaks_when_it_should() -> None:
    tests = Path(__file__).parent / "rules" / "alerts_test.yml"
    assert "SUCCESS" in promtool("test", "rules", str(tests))
    tested = set(re.findall(r"alertname: (\w+)", tests.read_text()))
    assert tested == set(alerts())


@pytest.mark.parametrize("name", alerts())
def test_each_alert_leads_to_a_runbook(name: str) -> None:
    (rule,) = [rule for rule in rules() if rule.get("alert") == name]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert (ROOT / rule["annotations"]["runbook"]).is_file()


def test_who_is_asked_is_who_serves() -> None:
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "antiphon"]
    (lookup,) = job["dns_sd_configs"]
    workers = [item for item in services().values() if item.argv[:2] == ["antiphon", "serve"]]
    names = {name for worker in workers for name in worker.dns_names if not name.endswith("-gpu")}
    assert set(lookup["names"]) == names
    assert all(f"--port={lookup['port']}" in worker.argv for worker in workers)


async def test_nothing_but_places_is_changed_for_loopback(start: Start) -> None:
    async with start(echo=1) as stack:
        text = (CONFIG / "prometheus.yml").read_text()
        original, changed = yaml.safe_load(text), loopback_config(stack, 1234, text)
        for config in (original, changed):
            for job in config["scrape_configs"]:
                assert job.pop("static_configs", None) or job.pop("dns_sd_configs")
                job.pop("dns_sd_configs", None)
        assert original == changed


def test_the_dashboard_is_provisioned_as_it_is() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "antiphon.yml").read_text())["providers"]
    folders = [volume.split(":")[1] for volume in services()["grafana"].raw["volumes"]]
    assert provider["options"]["path"] in folders
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows[:3] == ["Are callers hearing gaps?", "How full are we?", "What is slow?"]
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {source["uid"]}
