"""What a call belongs to: the hash of its model's files, and the backend with its versions."""

from __future__ import annotations

from antiphon.backends.base import BackendInfo
from antiphon.engine.row_state import StateIdentity
from antiphon.models.checkpoint import WEIGHT_ROLES, Checkpoint
from antiphon.models.fingerprint import fingerprint


def identity_of(checkpoint: Checkpoint, info: BackendInfo) -> StateIdentity:
    """What the calls of a running model belong to.

    Published weights beside the graphs that run do not count: a worker may lack them.
    """
    form = checkpoint.backends.get(info.name)
    unread = set() if form is None else {*WEIGHT_ROLES} - {*form.files}
    files = {role: path for role, path in checkpoint.files.items() if role not in unread}
    versions = " ".join(f"{what} {version}" for what, version in sorted(info.versions.items()))
    backend = f"{info.name} {versions}".strip()
    return StateIdentity(fingerprint(files), backend, info.dtype, info.quantization)
