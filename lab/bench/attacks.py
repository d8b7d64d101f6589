"""Attacks a server from one address while another address talks to it, and reports the connections that
the attack occupies and its effect on the talker.

    python -m lab.bench.attacks [--front-ends N] [--tree DIR] [--only WORD]

Each attack has a separate server (the codec ``echo`` with the null backend, ``tiny-stt`` and ``tiny-tts``),
with timeouts short enough for a run of minutes. The talker's address is 127.0.0.1, the attacker's this
machine's address on its network. ``--tree`` serves from another checkout, for a table of before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from lab.bench.attack_kinds import ATTACKS, Attack, Target, slow_headers
from lab.bench.harness import BenchError, machine, probe, tell, terminable, warn_if_busy
from tests.support.launch import ANTIPHON, free_port, started

SECONDS = 12.0
HEADER_SECONDS = 18.0
"""The limit of a first header is fixed at 15 s."""

TLS = Path(__file__).parents[2] / "tests" / "serve" / "tls"

CONFIG = """
[[models]]
model = "echo"
backend = "null"
slots = 16
[[models]]
model = "tiny-stt"
slots = 8
[[models]]
model = "tiny-tts"
slots = 8
[limits]
idle_timeout_s = 4.0
"""

TUNED = (
    *("--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=60000"),
    *("--tune", "handshake_timeout_s=2", "--tune", "connect_timeout_s=3", "--tune", "quiet_timeout_s=6"),
)
"""Admission remains open under load, and connections that wait for a client are closed during an attack."""


@dataclass(frozen=True)
class Noticed:
    """The connections that the attack held, and the results of the talker and of new callers.

    ``p99_ms`` is None for a talker without an answer.
    """

    name: str
    held: str
    lost: int
    late: int
    p99_ms: float | None
    connect_ms: float
    slowest_ms: float

    def __str__(self) -> str:
        """A row of the table."""
        p99 = "no answer" if self.p99_ms is None else f"p99 {self.p99_ms:.0f} ms"
        talker = f"{self.lost} lost, {self.late} late, {p99}"
        return f"| {self.name} | {self.held} | {talker} | {self.connect_ms:.0f}, {self.slowest_ms:.0f} ms |"


def own_address() -> str:
    """Return this machine's address on its network.

    Raises:
        BenchError: it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("198.51.100.1", 9))  # sends nothing: it finds the local address of the route
        except OSError as error:
            raise BenchError(f"this machine has no network, and so no second address: {error}") from error
        return str(one.getsockname()[0])


@contextmanager
def serving(folder: Path, front_ends: int, tree: Path | None, *, tls: bool) -> Iterator[int]:
    """Run a server for one attack; yields its port once the server accepts connections.

    Raises:
        BenchError: it ended early.
    """
    port, log = free_port(), folder / "server.log"
    (folder / "attacks.toml").write_text(CONFIG)
    options = ["--host", "0.0.0.0", "--port", str(port), "--front-ends", str(front_ends), *TUNED]
    if tls:
        options += ["--tls-cert", str(TLS / "test-cert.pem"), "--tls-key", str(TLS / "test-key.pem")]
    path = {"PYTHONPATH": f"{tree / 'server'}{os.pathsep}{tree / 'clients'}"} if tree else {}
    command = [*ANTIPHON, "serve", "--config", str(folder / "attacks.toml"), *options]
    with (
        log.open("wb") as output,
        started(command, stdout=output, stderr=output, env={**os.environ, **path}) as server,
    ):
        while "Ctrl-C stops" not in log.read_text():
            if server.poll() is not None:
                raise BenchError(f"the server ended with {server.returncode}:\n{log.read_text()}")
            time.sleep(0.1)
        yield port


async def newcomers(url: str, end_s: float) -> list[float]:
    """Measure, twice a second, the milliseconds from a new client's connection to the answer of
    ``/healthz``."""
    took_ms = []
    while asyncio.get_running_loop().time() < end_s:
        begun_s = time.monotonic()
        connector = aiohttp.TCPConnector(force_close=True, ssl=False)
        async with aiohttp.ClientSession(connector=connector) as http, http.get(f"{url}/healthz"):
            took_ms.append(1000 * (time.monotonic() - begun_s))
        await asyncio.sleep(0.5)
    return took_ms


async def attacked(name: str, attack: Attack, port: int, address: str, talkers: int) -> Noticed:
    """Attack a server while it serves ``talkers`` talkers, and return the results."""
    tls = "TLS" in name
    seconds = HEADER_SECONDS if attack is slow_headers else SECONDS
    url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
    talk = [
        "--model",
        "echo",
        "--sessions",
        str(talkers),
        "--seconds",
        str(seconds),
        "--ready-timeout",
        "30",
        *(["--insecure"] if tls else []),
    ]
    talking = asyncio.ensure_future(asyncio.to_thread(probe, url, *talk))
    await asyncio.sleep(2.0)  # the probe is loaded, and sends audio
    end_s = asyncio.get_running_loop().time() + seconds
    coming = asyncio.ensure_future(newcomers(url, end_s))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        held = await attack(Target(address, port, seconds, http))
    report, took_ms = (await talking)["report"], await coming
    counts, latency = report["counts"], report["times"]["latency"] or {}
    p99_ms, median_ms = latency.get("p99"), statistics.median(took_ms)
    return Noticed(name, held, counts["lost"], counts["late"], p99_ms, median_ms, max(took_ms))


def main() -> None:
    """Print a row for each attack."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.attacks")
    parser.add_argument("--front-ends", type=int, default=0, help="processes for conversations [0]")
    parser.add_argument(
        "--tree", type=Path, help="the checkout that is served, which knows --tune [this one]"
    )
    parser.add_argument("--talkers", type=int, default=1, help="talkers during the attack [%(default)s]")
    parser.add_argument("--only", default="", help="only attacks whose name contains this")
    options = parser.parse_args()
    warn_if_busy()
    address = own_address()
    print(f"load average {machine()['load_average_before']}, {options.front_ends} front ends")
    print("| attack | what it holds at its end | a talker during it | a newcomer: median, slowest |")
    print("|---|---|---|---|", flush=True)
    for name, attack in ATTACKS.items():
        if options.only not in name:
            continue
        tls = "TLS" in name
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(Path(folder), options.front_ends, options.tree, tls=tls) as port,
        ):
            tell(f"{name} ...")
            print(asyncio.run(attacked(name, attack, port, address, options.talkers)), flush=True)


if __name__ == "__main__":
    with terminable("attacks"):
        main()
