"""The end of a server: drained by a signal, ended at once by a second one, or with its device lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from aiohttp import web

from antiphon.config import Limits, ServerConfig
from antiphon.errors import AntiphonError, ConfigError, DrainingError
from antiphon.log import Log
from antiphon.serve.access.callers import Access
from antiphon.serve.calls.call import Call
from antiphon.serve.hosting.app import close_calls
from antiphon.serve.hosting.services import SERVICES
from antiphon.serve.transport.tls import PortTls
from antiphon.supervisor.supervisor import EXIT_CODES, EXIT_DEVICE_LOST


class Lifecycle:
    """Waits for the end, prepares it, and holds the exit code.

    ``device_lost`` may be called from any thread, before or after :meth:`watch`; everything else belongs
    to the event loop.
    """

    def __init__(self, limits: Limits, log: Log | None = None) -> None:
        """Nothing is watched yet."""
        self._limits = limits
        self._log = log or Log()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: web.Application | None = None
        self._signals: list[signal.Signals] = []
        self._lost: AntiphonError | None = None
        self._target: str | None = None

    def watch(self, app: web.Application) -> None:
        """Take over the signals that end the process, for a running application."""
        self._app = app
        self._loop = asyncio.get_running_loop()
        app[SERVICES].begin_drain = self.begin_drain
        for number in EXIT_CODES:
            self._loop.add_signal_handler(number, self.signalled, number)

    @property
    def is_lost(self) -> bool:
        """Whether an engine has lost its device."""
        return self._lost is not None

    def device_lost(self, error: AntiphonError) -> None:
        """An engine has ended all its sessions and cannot go on."""
        self._lost = error
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we are leaving anyway
                self._loop.call_soon_threadsafe(self._change)

    def signalled(self, number: signal.Signals) -> None:
        """The first signal begins to drain, the second one ends it."""
        self._signals.append(number)
        self._change()

    def begin_drain(self, target: str) -> None:
        """Drain, and let calls go to the worker at ``target`` where they can."""
        self._target = target
        self._change()

    def _change(self) -> None:
        assert self._app is not None
        self._app[SERVICES].changed.set()

    async def wait(self) -> int:
        """Return the exit code once no call is left, or none may be left.

        When one of several engines has lost its device, the process must leave too, but those who talk to
        the others may finish.
        """
        assert self._app is not None
        changed = self._app[SERVICES].changed
        while not (self._signals or self.is_lost) and self._target is None:
            changed.clear()
            await changed.wait()
        await drain(
            self._app,
            self._limits.drain_timeout_s,
            is_cut=lambda: len(self._signals) > 1,
            lost=lambda: self._lost,
            log=self._log,
            target=self._target or "",
        )
        code = EXIT_CODES[self._signals[0]] if self._signals else 0
        return EXIT_DEVICE_LOST if self.is_lost else code


def reread_files(config: ServerConfig, access: Access, tls: PortTls, log: Log) -> None:
    """Read keys and the certificate of callers again; what cannot be used changes nothing but the log."""
    access.reread_keys()
    try:
        tls.reread(config.tls_cert, config.tls_key)
    except ConfigError as error:
        log.error("certificate not read again", reason=str(error))
    else:
        log.info("keys and certificates read again", keys=config.api_keys, certificate=config.tls_cert)


async def drain(
    app: web.Application,
    limit_s: float,
    *,
    is_cut: Callable[[], bool],
    lost: Callable[[], AntiphonError | None],
    log: Log,
    target: str = "",
) -> None:
    """Take no new callers, and let calls go on until they have ended, the limit is over, or ``is_cut``.

    Those that can go to the worker at ``target`` do. What is left is closed, with the error of the engine
    that was ``lost`` where none is left.
    """
    services = app[SERVICES]
    calls: set[Call] = services.calls
    engines = [model.engine for model in services.models if model.engine.health().alive]
    if engines:
        log.info("draining", calls=len(calls), limit_s=limit_s)
        for call in tuple(calls):
            if not (target and call.can_move):
                _announce(call, limit_s, log)
    for engine in engines:
        engine.drain(target)
        engine.on_change(services.changed.set)

    def has_calls() -> bool:
        """Whether any go on; one that comes back here is without a connection for a moment."""
        return bool(calls) or (bool(target) and any(engine.health().active for engine in engines))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while has_calls() and not is_cut() and any(engine.health().alive for engine in engines):
                services.changed.clear()
                await services.changed.wait()
    is_dead = not any(engine.health().alive for engine in engines)
    words = f"the server is leaving; calls had {limit_s:g} s to finish"
    await close_calls(app, (lost() if is_dead else None) or DrainingError(words))
    log.info("drained", cut=len(calls))


def _announce(call: Call, limit_s: float, log: Log) -> None:
    try:
        call.announce_draining(limit_s)
    except Exception as error:  # a boundary: whatever is wrong with one call, the server must leave
        log.error("notifying a call of draining failed", exc_info=error)
