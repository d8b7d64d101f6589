"""Prometheus as in compose.yaml, on loopback: its own binary, this project's configuration and rules."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import yaml

from tests.support.launch import free_port
from tests.support.stack.composefile import ROOT, services
from tests.support.stack.process import Process, find_program
from tests.support.stack.stack import Stack, answers, place

CONFIG = ROOT / "deploy" / "prometheus"


def loopback_config(stack: Stack, port: int, text: str) -> dict[str, Any]:
    """The configuration with the places of the stack for the names it looks up, and nothing else changed.

    Prometheus asks the machine's own name server and no other, so the addresses are written in, with the
    label that a look-up would have given them.
    """
    config: dict[str, Any] = yaml.safe_load(text)
    for job in config["scrape_configs"]:
        targets = []
        for lookup in job.pop("dns_sd_configs", []):
            for name in lookup["names"]:
                places = [f"127.0.0.1:{stack.watch_port}"] if name == "balancer" else stack.places(name)
                targets.append({"targets": places, "labels": {"__meta_dns_name": name}})
        job["static_configs"] = targets or [{"targets": [f"127.0.0.1:{port}"]}]
    return config


@contextlib.asynccontextmanager
async def watching(stack: Stack) -> AsyncIterator[str]:
    """Prometheus over a running stack; yields its URL."""
    folder = stack.folder / "prometheus"
    folder.mkdir()
    shutil.copytree(CONFIG / "rules", folder / "rules")
    port = free_port()
    config = loopback_config(stack, port, (CONFIG / "prometheus.yml").read_text())
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    places = {
        "/etc/prometheus": str(folder),
        "=/prometheus": f"={folder}/data",
        "0.0.0.0:9090": f"127.0.0.1:{port}",
    }
    argv = place(services()["prometheus"].argv, places)
    argv[0] = find_program(argv[0])
    process = Process(argv, {}, stack.folder / "prometheus.log")
    try:
        url = f"http://127.0.0.1:{port}"
        await answers(stack.http, f"{url}/-/ready", process)
        yield url
    finally:
        process.kill()
