"""Leases in memory that several processes map: each front end maps its pool, the engine maps all pools.

One memfd holds the blocks of all leases, pool after pool, and then one slab of counters per pool. Each begins
on a page. A front end maps the blocks and the slab of its pool, and counts in the slab. The engine counts in
private memory; twice a tick it reads the callers' counters and publishes its own. A front end's values
therefore do not change while the engine works on them; the engine clamps values that are out of range.

A writer writes data before the counter that reports them; a reader reads the counter before the data. x86-64
keeps this order of stores and of loads. On other processors :func:`fence` keeps it
(docs/adr/0024-shared-leases.md).
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import ConfigError
from antiphon.ipc.rings import Arena, CallerCounts, Counts, EngineCounts
from antiphon.ipc.values import PAGE_BYTES, Shape

TURN_BYTES: Final = 64
"""Bytes of a cache line. The engine's turn number has its own line."""

KEEPS_ORDER: Final = platform.machine() in ("x86_64", "AMD64")
NO_BELL: Final = -1


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Offsets in the shared memory of ``pools`` pools of ``leases`` leases each."""

    shape: Shape
    pools: int
    leases: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of the blocks of one pool."""
        return self.leases * self.shape.block.itemsize

    @property
    def slab_bytes(self) -> int:
        """Bytes of the counters of one pool, rounded up to whole pages."""
        counters = (CallerCounts.ROWS + EngineCounts.ROWS) * self.leases * 8
        return -(-(TURN_BYTES + counters) // PAGE_BYTES) * PAGE_BYTES

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole memory."""
        return self.pools * (self.pool_bytes + self.slab_bytes)

    def slab_offset(self, pool: int) -> int:
        """Offset of the counters of a pool."""
        return self.pools * self.pool_bytes + pool * self.slab_bytes


@dataclass(slots=True)
class CounterPage:
    """A front end's view of the counters of its pool; ``bell`` is an eventfd that wakes the front end."""

    places: slice
    caller: Counts
    engine: Counts
    turn: Counts
    ticks: Counts
    bell: int = NO_BELL


def leases_of(slots: int, pools: int) -> int:
    """Number of leases of each of ``pools`` front ends: its share of the rows, and spare leases.

    The supervisor distributes connections evenly, so a front end rarely needs more than its share. A lease
    goes to another call only after its front end has released it.
    """
    share = -(-slots // pools)
    return share + max(8, share // 2)


class RingBytes(NamedTuple):
    """Host memory in bytes that calls take in addition to the model: a ``fixed`` part, and a part per row."""

    fixed: int
    row: int


def ring_bytes(shape: Shape, pools: int | None) -> RingBytes:
    """An upper bound of the host memory for leases of this shape; ``pools`` as in
    :class:`antiphon.engine.engine.Engine`.
    """
    lease = shape.block.itemsize + (CallerCounts.ROWS + EngineCounts.ROWS) * 8
    if pools is None:
        return RingBytes(0, lease)  # new calls reuse the leases of ended calls
    # leases_of(slots, pools) is at most 1.5 (slots / pools + 1) + 8, of which pages are whole.
    return RingBytes(pools * (-(-19 * lease // 2) + PAGE_BYTES), -(-3 * lease // 2))


def allocate(plan: MemoryLayout) -> int:
    """Allocate memory of this layout at once, seal its size, and return its descriptor.

    Raises:
        ConfigError: the memory is not available.
    """
    import fcntl  # not needed by a server of one process

    descriptor = os.memfd_create("antiphon", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, plan.total_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"{plan.total_bytes} bytes for the rings of {plan.pools * plan.leases} leases are not available: "
            f"{error}; use fewer slots"
        ) from error
    return descriptor


def _slab(plan: MemoryLayout, pool: int, memory: mmap.mmap, offset: int) -> CounterPage:
    rows, leases = CallerCounts.ROWS, plan.leases
    turn: Counts = np.ndarray(1, np.int64, memory, offset)
    counts: Counts = np.ndarray((rows + EngineCounts.ROWS, leases), np.int64, memory, offset + TURN_BYTES)
    caller, engine = counts[:rows], counts[rows:]
    return CounterPage(
        slice(pool * leases, (pool + 1) * leases), caller, engine, turn, EngineCounts(engine).ticks
    )


def open_pool(descriptor: int, plan: MemoryLayout, pool: int) -> Arena:
    """Map a front end's side of the memory: the leases of its pool, counted from 0."""
    blocks = mmap.mmap(descriptor, plan.pool_bytes, offset=pool * plan.pool_bytes)
    slab = _slab(plan, pool, mmap.mmap(descriptor, plan.slab_bytes, offset=plan.slab_offset(pool)), 0)
    arena = Arena(
        plan.shape,
        np.ndarray(plan.leases, plan.shape.block, blocks),
        slab.caller,
        slab.engine,
        slab.turn,
    )
    arena.fence = arena.fence if KEEPS_ORDER else fence
    return arena


class SharedArena(Arena):
    """The engine's side of the memory: all leases, with the engine's own counters in addition to the counters
    of the pools.
    """

    def __init__(self, plan: MemoryLayout) -> None:
        """Allocate the memory.

        Raises:
            ConfigError: there is not enough memory.
        """
        self.plan, self.descriptor = plan, allocate(plan)
        weakref.finalize(self, os.close, self.descriptor)  # the mappings end with the arrays
        memory = mmap.mmap(self.descriptor, plan.total_bytes)
        count = plan.pools * plan.leases
        caller, engine = (np.zeros((kind.ROWS, count), np.int64) for kind in (CallerCounts, EngineCounts))
        blocks: NDArray[np.void] = np.ndarray(count, plan.shape.block, memory)
        super().__init__(plan.shape, blocks, caller, engine, np.zeros(1, np.int64))
        self.fence = self.fence if KEEPS_ORDER else fence
        self.pool_leases = plan.leases
        self._copying = threading.Lock()  # numpy lets other threads run while it copies
        self.slabs = [_slab(plan, pool, memory, plan.slab_offset(pool)) for pool in range(plan.pools)]
        for lease in range(count):
            self.clear(lease)

    def read_client_counters(self) -> None:
        """Read the callers' counters, clamped to the bounds of a ring."""
        with self._copying:
            for slab in self.slabs:
                self._caller[0, slab.places] = slab.caller[0]  # frames, before the requests about them
                self.fence()
                self._caller[1:, slab.places] = slab.caller[1:]
            self.fence()
            caller, engine, capacity = self.caller, self.engine, 2 * self.shape.input_frames
            np.clip(caller.written, engine.input_taken, engine.input_taken + capacity, out=caller.written)
            np.clip(caller.discarded, 0, caller.written, out=caller.discarded)
            np.clip(caller.taken, 0, engine.output_written, out=caller.taken)

    def publish(self) -> None:
        """Publish the engine's counters, and wake the front ends whose calls were in a tick."""
        self.fence()
        for slab in self.slabs:
            is_news = bool((slab.ticks != self.engine.ticks[slab.places]).any())
            slab.turn += 1
            self.fence()
            with self._copying:
                slab.engine[:] = self._engine[:, slab.places]
            self.fence()
            slab.turn += 1
            bell = slab.bell  # read once: another thread may set it to None
            if is_news and bell != NO_BELL:
                ring(bell)

    def move(self, source: int, target: int, taken: int, again: int, parameters: int) -> None:
        """Copy one lease to another as :meth:`Arena.move`, with the counters of the pools."""
        pool, place = divmod(target, self.plan.leases)
        with self._copying:
            super().move(source, target, taken, again, parameters)
            self.slabs[pool].caller[:, place] = self._caller[:, target]

    def set_counters(self, lease: int, caller: Counts, engine: Counts) -> None:
        """Set the counters of a lease, on both sides."""
        pool, place = divmod(lease, self.plan.leases)
        with self._copying:
            super().set_counters(lease, caller, engine)
            self.slabs[pool].caller[:, place] = caller

    def clear(self, lease: int) -> None:
        """Clear a lease, on both sides."""
        pool, place = divmod(lease, self.plan.leases)
        slab = self.slabs[pool]
        with self._copying:  # or a tick could restore one side while the other is cleared
            self._caller[0, lease] = max(0, slab.caller[0, place])  # it may have written since the last read
            super().clear(lease)
            slab.caller[:, place], slab.engine[:, place] = self._caller[:, lease], 0


def ring(bell: int) -> None:
    """Signal an eventfd; a full counter means that it is already signalled."""
    with suppress(BlockingIOError):
        os.eventfd_write(bell, 1)


def hush(bell: int) -> None:
    """Reset an eventfd."""
    with suppress(BlockingIOError):
        os.eventfd_read(bell)


def fence(locks: tuple[threading.Lock] = (threading.Lock(),)) -> None:
    """A memory barrier: no memory access is moved across it."""
    for lock in 2 * locks:
        lock.acquire()
        lock.release()
