"""A process that restores a row: ``python -m tests.backends.transfer BACKEND MODEL STATE FRAMES OUT``.

It makes the backend, puts the state into row 0, and steps the frames of the file; PCM, text tokens and
pauses go into ``OUT``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.registry import make_backend
from antiphon.engine.call_state import StateIdentity, unpack
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import fingerprint
from tests.backends.contract import Driver, Reply

SLOTS = 2


def make(name: str, model: str) -> tuple[Backend, StateIdentity]:
    """A backend of the table on one thread, and what its rows' states belong to."""
    checkpoint = load_checkpoint(model)
    options: dict[str, object] = {} if name == "onnx" else {"dtype": "float32"}
    if name != "mlx":
        options["threads"] = 1
    device = None if name == "onnx" else "cpu"
    backend = make_backend(name, checkpoint, slots=SLOTS, device=device, options=options)
    versions = " ".join(f"{what} {version}" for what, version in sorted(backend.info.versions.items()))
    identity = StateIdentity(
        fingerprint(checkpoint.files), f"{name} {versions}", backend.info.dtype, backend.info.quantization
    )
    return backend, identity


def as_arrays(replies: Sequence[Reply]) -> dict[str, FloatArray]:
    """Replies as arrays that compare bit by bit."""
    nothing = np.zeros(0, np.float32)
    return {
        "token": np.array([reply.text_token for reply in replies], np.float32),
        "pcm": np.concatenate([nothing if reply.pcm is None else reply.pcm for reply in replies]),
        "vad": np.concatenate([nothing if reply.vad is None else reply.vad for reply in replies]),
    }


def main() -> None:
    name, model, state, frames, out = sys.argv[1:]
    backend, identity = make(name, model)
    backend.restore(0, backend.from_host(unpack(Path(state).read_bytes(), identity)))
    driver = Driver(backend)
    replies = [driver.tick({0: frame}, fixed=True)[0] for frame in np.load(frames)]
    np.savez(out, allow_pickle=False, **as_arrays(replies))


if __name__ == "__main__":
    main()
