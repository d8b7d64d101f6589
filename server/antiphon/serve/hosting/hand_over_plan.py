"""How an engine of this server hands its calls over: where its secret and its name come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from antiphon.backends.base import BackendInfo
from antiphon.config import ServerConfig
from antiphon.engine.handing_over import HandOverPlan
from antiphon.models.checkpoint import Checkpoint
from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret
from antiphon.serve.hosting.identity import identity_of


def hand_over_plan(
    config: ServerConfig, model: str, checkpoint: Checkpoint
) -> Callable[[BackendInfo], HandOverPlan] | None:
    """What makes the plan of a model once its backend runs; None without a secret.

    Raises:
        ConfigError: the secret cannot be read.
    """
    if config.hand_over_secret is None:
        return None
    secret = SharedSecret.read(Path(config.hand_over_secret))
    timeout_s = config.limits.hand_over_timeout_s

    workers: dict[str, OtherWorker] = {}  # each is asked for its name once

    def post(target: str, call: bytes) -> str:
        worker = workers.get(target) or OtherWorker(target, secret, timeout_s=timeout_s)
        return workers.setdefault(target, worker).take(model, call)

    return lambda info: HandOverPlan(config.worker, identity_of(checkpoint, info), post, timeout_s)
