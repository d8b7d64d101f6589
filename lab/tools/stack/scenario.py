"""The scenario of a stack: start it, call through the load balancer, restart workers, kill one, and stop."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab.tools.stack.calls import ALL_HELD, call
from lab.tools.stack.container_engine import ContainerEngine, StackError, lines
from lab.tools.stack.rolling import hand_over

URL = "http://127.0.0.1:8080"
SERVICES = ("balancer", "duplex", "echo", "prometheus")
DUPLEX = ("antiphon_duplex_1", "antiphon_duplex_2", "antiphon_duplex_3")
MODEL = "tiny"
START_S = 120.0
SESSIONS = 2
CALL_S = 12.0


@dataclass(frozen=True)
class StackPlan:
    """The settings of the scenario: the workers' backend and secret, and the number of calls to hand over."""

    backend: str
    secret: Path
    hand_overs: int


@dataclass
class StackLog:
    """The log: a line for each step, with the seconds since the start."""

    started_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Add a line, and print it."""
        self.lines.append(f"{time.monotonic() - self.started_s:6.1f} s  {line}")
        print(self.lines[-1], flush=True)


def run(engine: ContainerEngine, steps: StackLog, plan: StackPlan) -> None:
    """Run all steps; containers, networks and volumes are removed afterwards in any case.

    Raises:
        StackError: a step had another result than expected.
    """
    engine.compose("down", "--volumes", "--remove-orphans")
    try:
        _up(engine, steps)
        steps.say(f"calls are answered by the backend {plan.backend}")
        _hardened(engine, steps)
        _calls(engine, steps)
        _roll(engine, steps)
        for line in hand_over(engine, URL, plan.secret, MODEL, plan.hand_overs):
            steps.say(line)
        _kill(engine, steps)
        _watched(steps)
    finally:
        started_s = time.monotonic()
        engine.compose("down", "--volumes", "--remove-orphans")
    left = lines(engine.podman("ps", "--all", "--quiet"))
    _demand(not left, f"{len(left)} containers are left")
    steps.say(f"down in {time.monotonic() - started_s:.1f} s: no container is left")


def first_answer(engine: ContainerEngine, image: str, folder: Path, *options: str) -> tuple[float, float]:
    """Measure the seconds from ``podman run`` of a hardened container to ready, and to the first sound of a
    call.

    ``options`` are those of ``antiphon serve``.
    """
    started_s = time.monotonic()
    name = "antiphon-first-answer"
    hardened = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    serve = ("serve", "--host=127.0.0.1", "--port=18998", "--slots=2")
    engine.podman("run", "--detach", "--name", name, "--network", "host", *hardened, image, *serve, *options)
    try:
        _until(lambda: _status("http://127.0.0.1:18998/readyz") == 200, "the container is ready")
        ready_s = time.monotonic() - started_s
        calls = call("http://127.0.0.1:18998", folder, sessions=1, seconds=3.0, limits=ALL_HELD)
        return ready_s, ready_s + calls.first_sound_ms / 1000
    finally:
        engine.podman("rm", "--force", name)


def _up(engine: ContainerEngine, steps: StackLog) -> None:
    engine.compose("up", "--detach", "--no-deps", "--no-build", "--scale", f"duplex={len(DUPLEX)}", *SERVICES)
    steps.say(f"up: load balancer, {len(DUPLEX)} workers of duplex, one of echo, Prometheus")
    _until(lambda: _all_duplex(engine) and _weights(engine, "echo", 1), "all workers are seen")
    steps.say("the load balancer has found all of them by name and counts their rows")


def _hardened(engine: ContainerEngine, steps: StackLog) -> None:
    for service in SERVICES:
        name = f"antiphon_{service}_1"
        user = engine.podman("exec", name, "id", "-u")
        _demand(user != "0", f"{name} runs as root")
        try:
            engine.podman("exec", name, "touch", "/etc/written")
        except StackError as error:
            _demand("Read-only" in str(error), f"{name}: {error}")
        else:
            raise StackError(f"{name} can write to its root")
        engine.podman("healthcheck", "run", name)
        files = engine.podman("exec", name, "sh", "-c", "ulimit -n")
        steps.say(f"{service}: user {user}, read-only root, {files} files, its health check passes")


def _calls(engine: ContainerEngine, steps: StackLog) -> None:
    folder = engine.work
    for url, model in ((URL, "duplex"), (URL, "echo"), ("https://127.0.0.1:8443", "duplex")):
        found = call(f"{url}/m/{model}", folder, sessions=SESSIONS, seconds=CALL_S)
        steps.say(f"{url}/m/{model}: {found}")
    _demand(_status(f"{URL}/metrics") == 404, "/metrics is reachable from outside")


def _roll(engine: ContainerEngine, steps: StackLog) -> None:
    """Workers are stopped in turn while calls continue, and started again: no call ends early."""
    for name in DUPLEX[:2]:
        with ThreadPoolExecutor(1) as pool:
            calls = pool.submit(call, f"{URL}/m/duplex", engine.work, sessions=SESSIONS * 2, seconds=CALL_S)
            _until(lambda: _calls_at(engine, "duplex") == SESSIONS * 2, "the calls have begun")
            started_s = time.monotonic()
            engine.podman("stop", "--time", "75", name)
            drained_s = time.monotonic() - started_s
            during = calls.result()
        engine.podman("start", name)
        _until(lambda: _all_duplex(engine), "the worker is back")
        steps.say(f"rolled {name}: drained in {drained_s:.1f} s under {during}")


def _kill(engine: ContainerEngine, steps: StackLog) -> None:
    """A worker is killed; new calls go to the other one at once, and podman or this tool restarts it."""
    engine.podman("kill", "--signal", "KILL", DUPLEX[0])
    found = call(f"{URL}/m/duplex", engine.work, sessions=SESSIONS, seconds=CALL_S)
    steps.say(f"killed {DUPLEX[0]}; calls begun at once: {found}")
    state = engine.podman("inspect", "--format", "{{.State.Status}}", DUPLEX[0])
    if state != "running":
        engine.podman("start", DUPLEX[0])
    started = "automatically" if state == "running" else "by hand"
    _until(lambda: _all_duplex(engine), "the killed worker is back")
    steps.say(f"{DUPLEX[0]} runs again, started {started}")


def _watched(steps: StackLog) -> None:
    query = "http://127.0.0.1:9090/api/v1/query?query="

    def value(expression: str) -> float:
        with urllib.request.urlopen(query + expression, timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else 0.0

    _until(lambda: value("sum(up)") >= 5, "Prometheus sees workers, load balancer and itself")
    free = value("sum(antiphon:rows_free)")
    _demand(free > 0, "no free row is recorded")
    steps.say(f"Prometheus sees {value('sum(up)'):.0f} targets up and {free:.0f} rows free")


def _all_duplex(engine: ContainerEngine) -> bool:
    return _weights(engine, "duplex", len(DUPLEX))


def _weights(engine: ContainerEngine, backend: str, count: int) -> bool:
    """Whether the load balancer has this number of usable workers with free rows."""
    up = [row for row in _servers(engine, backend) if row["status"] == "UP"]
    # Weight 100 is HAProxy's before the first answer of the agent check.
    return len(up) == count and all(0 < int(row["weight"]) < 100 for row in up)


def _calls_at(engine: ContainerEngine, backend: str) -> int:
    """Current connections to the workers of a backend."""
    names = (backend, f"{backend}-queue")
    return sum(int(row["scur"]) for name in names for row in _servers(engine, name))


def _servers(engine: ContainerEngine, backend: str) -> list[dict[str, str]]:
    """The workers of a backend as the load balancer reports them; none if it does not answer."""
    address = engine.podman(
        *("inspect", "--format", '{{(index .NetworkSettings.Networks "antiphon_inside").IPAddress}}'),
        "antiphon_balancer_1",
    )
    try:
        with urllib.request.urlopen(f"http://{address}:8404/;csv", timeout=5) as answer:
            names, *rows = answer.read().decode().removeprefix("# ").splitlines()
    except OSError:
        return []
    seen = [dict(zip(names.split(","), row.split(","), strict=False)) for row in rows]
    return [row for row in seen if row["pxname"] == backend and row["type"] == "2"]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _until(is_so: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + START_S
    while not is_so():
        _demand(time.monotonic() < end_s, f"not so after {START_S:.0f} s: {what}")
        time.sleep(0.1)


def _demand(is_so: object, sentence: str) -> None:
    if not is_so:
        raise StackError(sentence)
