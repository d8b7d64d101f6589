"""Finds the engines that hang while another engine works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon.supervisor.children import Child

ENGINE_SILENT_S = 10.0
"""Seconds without a heartbeat after which one of several engines is killed with its calls; the others
continue."""

STUCK_S = 2.0
"""Seconds of a stuck step after which such an engine is killed too. An engine also reports a stuck step after
the whole server was suspended.
"""


class Hangs:
    """The seconds for which each engine has been silent or stuck while another engine answered and worked.

    Other seconds do not count. A stall of the whole machine therefore finds no engine, even if one engine
    resumes before another. If another engine works for a share p of the time, a silent engine is found within
    ``ENGINE_SILENT_S / p`` seconds, and an engine that reports a stuck step within ``STUCK_S / p``.
    """

    def __init__(self) -> None:
        """Start with engines that have answered."""
        self._silent_s: dict[Child, float] = {}
        self._stuck_s: dict[Child, float] = {}
        self._found: set[Child] = set()  # each once: until a killed process is reaped, and after

    def find(self, engines: Sequence[Child], elapsed_s: float) -> Iterator[Child]:
        """Count ``elapsed_s`` for ready engines; yields the engines that hang, each once."""
        working = {engine for engine in engines if engine.is_responsive and not engine.stuck_s}
        for engine in engines:
            counted_s = elapsed_s if working - {engine} else 0.0
            silent_s = self._silent_s.get(engine, 0.0) + counted_s if engine.silent_s else 0.0
            stuck_s = self._stuck_s.get(engine, 0.0) if engine.stuck_s else 0.0
            if engine.stuck_s and not engine.silent_s:
                stuck_s += counted_s
            self._silent_s[engine], self._stuck_s[engine] = silent_s, stuck_s
            if (silent_s > ENGINE_SILENT_S or stuck_s > STUCK_S) and engine not in self._found:
                self._found.add(engine)
                yield engine
