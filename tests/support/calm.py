"""Servers and probes for tests, which refuse and lose nothing because the machine is slow.

Late frames and a late event loop close a server's admission. Tests share their machine with one another, so
every server that a test starts has these settings, but those of tests about overload, which give their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.engine.config import EngineConfig
from tests.support.launch import ANTIPHON

CALM: Mapping[str, float] = {"late_refuse_fraction": 1.0, "host_lag_ms": 60_000.0}
"""Fields of the engine's configuration: no share is above 1, and no event loop is a minute late."""

CALM_OPTIONS = tuple(word for name, value in CALM.items() for word in ("--tune", f"{name}={value:g}"))
"""The same as options of ``antiphon serve``; of a constant given twice the last holds."""

SERVE = (*ANTIPHON, "serve", *CALM_OPTIONS)
"""The command of a calm server."""

PATIENT = f"""\
import functools
from antiphon_client import load, session
session.Pacer = functools.partial(session.Pacer, stale_s=60.0)
load.GRACE_S = 60.0
{ANTIPHON[-1]}
"""
PATIENT_ANTIPHON = (*ANTIPHON[:-1], PATIENT)
"""The `antiphon` command; after a pause of the machine its probe sends all messages, awaits all replies."""

PROBE = (*PATIENT_ANTIPHON, "probe")


def calm(**settings: Any) -> EngineConfig:
    """A calm engine's configuration with ``settings``."""
    return EngineConfig(**{**CALM, **settings})
