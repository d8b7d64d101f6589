"""A command in a network namespace with loopback only, and the number of its attempts to connect.

Linux, as root or with user namespaces. Loopback is up and there is no route: every attempt to connect or to
resolve a name fails at once and is counted by the kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COUNTERS = ("IpOutNoRoutes", "TcpActiveOpens", "UdpOutDatagrams", "Ip6OutNoRoutes", "Udp6OutDatagrams")
"""What each attempt adds to: without a route (both families), or over loopback to a resolver."""

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
STOP_S = 60.0
REPOSITORY = Path(__file__).parents[2]


def attempts(command: Sequence[str], seconds: float, environment: Mapping[str, str]) -> int:
    """How often ``command`` tried to reach anything in its first ``seconds``, after which SIGTERM ends it."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    inside = [sys.executable, "-m", "tests.support.empty_network", str(seconds), *command]
    run = subprocess.run(
        ["unshare", "--net", *root, *inside],
        cwd=REPOSITORY,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=seconds + 2 * STOP_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return int(json.loads(run.stdout.splitlines()[-1]))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _counted() -> int:
    """The sum of the counters of this namespace."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    counts: dict[str, int] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        kind, *fields = names.split()
        counts |= {
            kind[:-1] + name: int(value) for name, value in zip(fields, values.split()[1:], strict=True)
        }
    counts |= {
        name: int(value) for name, value in map(str.split, Path("/proc/net/snmp6").read_text().splitlines())
    }
    return sum(counts[name] for name in COUNTERS)


def _main(seconds: float, command: Sequence[str]) -> int:
    _raise_loopback()
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_S)
    print(_counted())
    return code


if __name__ == "__main__":
    sys.exit(_main(float(sys.argv[1]), sys.argv[2:]))
