"""Makes the plan by which an engine of this server hands its calls over. Front ends can import this module
without the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from antiphon.backends.base import BackendInfo
from antiphon.config import ServerConfig
from antiphon.engine.call_state import StateIdentity
from antiphon.engine.handover import HandOverPlan
from antiphon.models.checkpoint import WEIGHT_ROLES, Checkpoint, fingerprint
from antiphon.serve.access.other_worker import OtherWorker
from antiphon.serve.access.shared_secret import SharedSecret


def identity_of(checkpoint: Checkpoint, info: BackendInfo) -> StateIdentity:
    """The model and backend to which the states of a running model's rows belong.

    It excludes weights that the backend does not load, because another worker may lack them.
    """
    form = checkpoint.backends.get(info.name)
    unread = set() if form is None else {*WEIGHT_ROLES} - {*form.files}
    files = {role: path for role, path in checkpoint.files.items() if role not in unread}
    versions = " ".join(f"{what} {version}" for what, version in sorted(info.versions.items()))
    backend = f"{info.name} {versions}".strip()
    return StateIdentity(fingerprint(files), backend, info.dtype, info.quantization)


def hand_over_plan(
    config: ServerConfig, model: str, checkpoint: Checkpoint
) -> Callable[[BackendInfo], HandOverPlan] | None:
    """A function that makes a model's plan once its backend runs; None without a secret.

    Raises:
        ConfigError: the secret cannot be read.
    """
    if config.hand_over_secret is None:
        return None
    secret = SharedSecret.read(Path(config.hand_over_secret))
    timeout_s = config.limits.hand_over_timeout_s

    workers: dict[str, OtherWorker] = {}  # each keeps its given name

    def post(target: str, call: bytes) -> str:
        worker = workers.get(target) or OtherWorker(target, secret, timeout_s=timeout_s)
        return workers.setdefault(target, worker).take(model, call)

    return lambda info: HandOverPlan(config.worker, identity_of(checkpoint, info), post, timeout_s)
