"""Load balancer and workers of compose.yaml as processes, with the same commands.

Every worker has an address of its own in 127.0.0.0/8 (Linux lends out all of it), and all share their ports,
as containers do. The load balancer finds them by name, from a name server that answers what Docker's would.
Of every command line only hosts, ports and the places of mounted files are replaced; :func:`place` asserts
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.calm import CALM_OPTIONS
from tests.support.launch import free_port
from tests.support.stack.composefile import ROOT, Service, read_compose, services
from tests.support.stack.names import name_server
from tests.support.stack.process import POLL_S, Process, find_program, until

START_S = 150.0
"""For a server to be up on a very busy machine; alone it takes one or two seconds."""


def place(argv: list[str], places: Mapping[str, str]) -> list[str]:
    """``argv`` with the keys of ``places`` replaced by their values, and nothing else."""
    placed = argv
    for old, new in places.items():
        placed = [word.replace(old, new) for word in placed]
    undone = placed
    for old, new in reversed(list(places.items())):
        undone = [word.replace(new, old) for word in undone]
    assert undone == argv, f"more than hosts, ports and mounts would differ: {placed} and {argv}"
    return placed


@dataclass
class Worker:
    """A worker: its service, its address, and its process while it has one."""

    service: Service
    host: str
    port: int
    argv: list[str]
    log: Path
    process: Process | None = None

    @property
    def url(self) -> str:
        """Where it can be called directly."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Start, or start again."""
        self.process = Process(self.argv, self.service.environment, self.log)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.process is not None
        self.process.signal(number)

    def kill(self) -> None:
        """End it as kill -9 and a power cut do."""
        if self.process is not None:
            self.process.kill()


class Balancer:
    """HAProxy with its real configuration, in its master and worker mode."""

    def __init__(
        self, service: Service, values: Mapping[str, str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Prepare to start the load balancer; ``values`` are those of compose.yaml's variables."""
        mounts = service.mounts(read_compose(values)["secrets"])
        self._argv = place(service.argv, {inside: str(outside) for inside, outside in mounts.items()})
        self._argv[0] = find_program(self._argv[0])
        self._environment = environment
        self._log = log
        self.process: Process

    def start(self) -> None:
        """Start, or start again."""
        self.process = Process(self._argv, self._environment, self._log)

    def text(self) -> str:
        """Its access log, and what else it has said."""
        return self._log.read_text(errors="replace")

    async def says(self, pattern: str) -> None:
        """Wait until a line of :meth:`text` has the pattern; a call is logged when it is over."""
        try:
            await until(lambda: re.search(pattern, self.text()) is not None, START_S)
        except TimeoutError:
            raise AssertionError(f"the load balancer did not say {pattern}:\n{self.text()}") from None

    async def reload(self) -> None:
        """Read the configuration again: a new process takes newcomers, the old one keeps its calls."""
        before = self.text().count("Loading success")
        self.process.signal(signal.SIGUSR2)
        await until(lambda: self.text().count("Loading success") > before, START_S)

    async def stop(self) -> None:
        """End it and what it has forked, calls or no calls."""
        self.process.signal(signal.SIGTERM)
        try:
            await self.process.ended(10.0)
        except TimeoutError:
            self.process.kill()


@dataclass
class Stack:
    """A running stack. ``table`` is what the name server says, and may be changed."""

    folder: Path
    http: aiohttp.ClientSession
    workers: list[Worker]
    table: dict[str, list[str]]
    balancer: Balancer
    http_port: int
    https_port: int
    watch_port: int

    @property
    def url(self) -> str:
        """The load balancer, without TLS."""
        return f"http://127.0.0.1:{self.http_port}"

    def of(self, service: str) -> list[Worker]:
        """The workers of a service."""
        return [worker for worker in self.workers if worker.service.name == service]

    def places(self, name: str) -> list[str]:
        """Address and port of everybody found by a name, now."""
        return [f"{host}:{self.workers[0].port}" for host in self.table.get(name, [])]

    async def get(self, url: str) -> tuple[int, str, Mapping[str, str]]:
        """Status, body and headers of a request; status 0 when nothing answered."""
        try:
            async with self.http.get(url, ssl=False) as response:
                return response.status, await response.text(), response.headers
        except (aiohttp.ClientError, OSError):
            return 0, "", {}

    async def weights(self, backend: str) -> dict[str, int]:
        """The load balancer's own view: the weight (free rows) of each usable worker of a backend, by
        address.
        """
        _, text, _ = await self.get(f"http://127.0.0.1:{self.watch_port}/;csv")
        names, *lines = [line.split(",") for line in text.removeprefix("# ").splitlines() if line]
        rows = [dict(zip(names, line, strict=False)) for line in lines]
        return {
            row["addr"].rsplit(":", 1)[0]: int(row["weight"])
            for row in rows
            if row["pxname"] == backend and row["type"] == "2" and row["status"].startswith("UP")
        }

    async def sees(self, backend: str, weights: Mapping[str, int], timeout_s: float = START_S) -> None:
        """Wait until the load balancer's view of a backend is this one."""
        seen: Mapping[str, int] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while (seen := await self.weights(backend)) != weights:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"the load balancer sees {seen} in {backend}, not {weights}") from None

    async def is_up(self) -> None:
        """Wait until every worker that runs is well and the load balancer has counted the rows of all."""
        for worker in self.workers:
            await answers(self.http, f"{worker.url}/healthz", worker.process)
        await answers(self.http, f"{self.url}/healthz", self.balancer.process)


async def answers(http: aiohttp.ClientSession, url: str, process: Process | None) -> None:
    """Wait until a URL answers with 200."""
    async with asyncio.timeout(START_S):
        while True:
            assert process is None or process.exit_code is None, process.text()
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def running_stack(
    folder: Path,
    counts: Mapping[str, int],
    values: Mapping[str, str],
    tls: Path,
    balancer_values: Mapping[str, str] | None = None,
    overrides: Sequence[Path] = (),
) -> AsyncIterator[Stack]:
    """The load balancer and ``counts`` workers of each service, with ``values`` for the file's variables.

    ``folder`` takes the logs; ``tls`` is a certificate with its key, which workers share too;
    ``balancer_values`` overrides the load balancer's environment, and the files of ``overrides`` what stands
    in compose.yaml.
    """
    values = {"ANTIPHON_HAND_OVER": str(tls), **values}
    known = services(values, overrides)
    secrets = read_compose(values, overrides)["secrets"]
    port, free_rows_port, hand_over_port = free_port(), free_port(), free_port()
    ports_of_workers = {"=8998": f"={port}", "=8999": f"={free_rows_port}", "=8997": f"={hand_over_port}"}
    workers = [
        _worker(known[name], f"127.0.{net}.{number}", port, ports_of_workers, secrets, folder)
        for net, (name, count) in enumerate(counts.items(), start=1)
        for number in range(1, count + 1)
    ]
    table: dict[str, list[str]] = {}
    for worker in workers:
        for name in worker.service.dns_names:
            table.setdefault(name, []).append(worker.host)
    balancer: Balancer | None = None
    async with name_server(table) as dns_port, aiohttp.ClientSession() as http:
        try:
            for worker in workers:
                worker.start()
            ports = (free_port(), free_port(), free_port())
            environment = balancer_environment(
                known["balancer"], tls, ports, (port, free_rows_port, dns_port)
            )
            balancer = Balancer(
                known["balancer"], values, {**environment, **(balancer_values or {})}, folder / "balancer.log"
            )
            balancer.start()
            stack = Stack(folder, http, workers, table, balancer, *ports)
            await stack.is_up()
            yield stack
        finally:
            for worker in workers:
                worker.kill()
            if balancer is not None:
                await balancer.stop()


def _worker(
    service: Service,
    host: str,
    port: int,
    ports: Mapping[str, str],
    secrets: Mapping[str, Any],
    folder: Path,
) -> Worker:
    places = {
        "=0.0.0.0": f"={host}",
        **ports,
        **{f"={inside}": f"={outside}" for inside, outside in service.mounts(secrets).items()},
    }
    argv = place(service.argv, places)
    argv = [find_program(argv[0], Path(sys.executable).parent), *argv[1:], *CALM_OPTIONS]
    return Worker(service, host, port, argv, folder / f"{service.name}-{host}.log")


def balancer_environment(
    service: Service, tls: Path, ports: tuple[int, int, int], worker_ports: tuple[int, int, int]
) -> dict[str, str]:
    """The load balancer's environment on loopback: what compose.yaml says, and where everything is."""
    port, free_rows_port, dns_port = worker_ports
    backends = [name for name in read_compose()["services"] if f"{name.upper()}_ADDRESS" in _config()]
    return {
        **service.environment,
        "DNS_ADDRESS": f"127.0.0.1:{dns_port}",
        "FREE_ROWS_PORT": str(free_rows_port),
        "WORKER_PORT": str(port),
        "WORKERS_MAP": str(ROOT / "deploy" / "haproxy" / "workers.map"),
        "TLS_FILE": str(tls),
        "HTTP_ADDRESS": f"127.0.0.1:{ports[0]}",
        "HTTPS_ADDRESS": f"127.0.0.1:{ports[1]}",
        "WATCH_ADDRESS": f"127.0.0.1:{ports[2]}",
        **{f"{name.upper()}_ADDRESS": f"{name}:{port}" for name in backends},
    }


def _config() -> str:
    return (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
