"""A line between two network namespaces that loses and delays IP packets as a seed determines.

Each end is a TUN device with one address, so TCP and UDP meet the same losses. Linux only; opening a line
needs root, or ``unshare -rn`` before the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import struct
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.bench.harness import BenchError
from tests.support.launch import started

NEAR: Final = "10.77.0.1"
"""The address of this process's end."""

FAR: Final = "10.77.0.2"
"""The address of the other namespace's end."""

DEVICE: Final = "line"
MTU: Final = 1500
SET_DEVICE: Final = 0x400454CA
TUN_WITHOUT_HEADER: Final = 0x1001
NEW_NETWORK: Final = 0x40000000


@dataclass(slots=True)
class Direction:
    """One direction of the line: a share of the packets is lost, the others are delayed, in order."""

    source: int
    target: int
    loss: float
    delay_s: float
    rng: random.Random
    passed: int = 0
    lost: int = 0
    last_s: float = 0.0
    waiting: deque[bytes] = field(default_factory=deque)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def take(self) -> None:
        """Read the waiting packets of one device, and drop each or send it to the other device later."""
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self.source, MTU + 64)
                if self.rng.random() < self.loss:
                    self.lost += 1
                    continue
                self.passed += 1
                self.last_s = max(self.last_s, self.loop.time() + self.rng.random() * self.delay_s)
                self.waiting.append(packet)
                self.loop.call_at(self.last_s, self._give)  # of equal times, any may come first

    def _give(self) -> None:
        with contextlib.suppress(OSError):  # the device is gone, or its queue is full
            os.write(self.target, self.waiting.popleft())


@dataclass(frozen=True, slots=True)
class Line:
    """An open line; ``directions`` are from the far end, and to it."""

    namespace: int
    directions: tuple[Direction, Direction]

    def far(self, *command: str) -> list[str]:
        """Return the command that runs ``command`` at the far end."""
        return ["nsenter", f"--net=/proc/{self.namespace}/ns/net", *command]

    async def python(self, *words: str) -> str:
        """Run a Python module at the far end; returns its output.

        Raises:
            BenchError: it failed.
        """
        process = await asyncio.create_subprocess_exec(
            *self.far(sys.executable, *words), stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise BenchError(f"{' '.join(words)} ended with {process.returncode}")
        return output.decode()


@asynccontextmanager
async def lossy_line(seed: int, *, loss: float, delay_s: float) -> AsyncIterator[Line]:
    """Open a line for the block; ``delay_s`` is the longest delay of a packet.

    Raises:
        BenchError: this process may not make devices.
    """
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        try:
            holder = stack.enter_context(_namespace())
            near = stack.enter_context(_device(os.getpid(), NEAR, FAR))
            far = stack.enter_context(_device(holder, FAR, NEAR))
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"no line: {error}; start the command with unshare -rn") from error
        directions = (
            Direction(far, near, loss, delay_s, random.Random(seed)),
            Direction(near, far, loss, delay_s, random.Random(seed + 1)),
        )
        for one in directions:
            loop.add_reader(one.source, one.take)
            stack.callback(loop.remove_reader, one.source)
        yield Line(holder, directions)


@contextmanager
def _namespace() -> Iterator[int]:
    """The process that keeps a network namespace."""
    own = Path("/proc/self/ns/net").readlink()
    command = ("unshare", "--net", "cat")
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b".")
        holder.stdin.flush()
        if holder.stdout.read(1) != b"." or Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
            raise OSError("unshare --net was refused")
        yield holder.pid


@contextmanager
def _device(namespace: int, address: str, other: str) -> Iterator[int]:
    """A TUN device in the namespace of a process, with an address and the one of the other end."""
    with _inside(namespace):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        with _inside(namespace):
            fcntl.ioctl(device, SET_DEVICE, struct.pack("16sH", DEVICE.encode(), TUN_WITHOUT_HEADER))
            for words in (
                ("addr", "add", address, "peer", other, "dev", DEVICE),
                ("link", "set", "lo", "up"),
                ("link", "set", DEVICE, "up", "mtu", str(MTU)),
            ):
                subprocess.run(["ip", *words], check=True)
        yield device
    finally:
        os.close(device)


@contextmanager
def _inside(namespace: int) -> Iterator[None]:
    """This thread in the network namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    own, theirs = (os.open(Path(f"/proc/{it}/ns/net"), os.O_RDONLY) for it in ("self", namespace))
    try:
        _enter(libc, theirs)
        try:
            yield
        finally:
            _enter(libc, own)
    finally:
        os.close(own)
        os.close(theirs)


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def shares(directions: Sequence[Direction]) -> str:
    """Return the number of lost packets and of all packets, both directions together, as text."""
    passed, lost = (sum(getattr(it, name) for it in directions) for name in ("passed", "lost"))
    return f"{lost} of {passed + lost} packets lost"
