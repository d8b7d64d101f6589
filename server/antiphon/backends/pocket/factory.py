"""Makes the Pocket-TTS backend for a checkpoint: checks the options, loads the model and starts the
threads.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from antiphon.backends.machine import model_threads
from antiphon.errors import CheckpointFormatError, ConfigError, UnsupportedError
from antiphon.models.pocket_shape import CHUNK_TOKENS, MAX_CHUNK_TOKENS, PocketShape

if TYPE_CHECKING:
    from antiphon.backends.pocket.backend import PocketBackend
    from antiphon.models.checkpoint import Checkpoint


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo side effects of importing the package: one thread for torch, and logging that prints."""
    threads, root = torch.get_num_threads(), logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)
    try:
        yield
    finally:
        root.removeHandler(quiet)
        torch.set_num_threads(threads)


WEIGHTS: Final = ("float32", "int8")


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    threads: int | None = None,
    weights: str = "float32",
    chunk_tokens: int = CHUNK_TOKENS,
    sampler_steps: int = 1,
) -> PocketBackend:
    """Load a checkpoint with the package ``pocket-tts``.

    ``threads`` rows are stepped at once (None: all usable cores but one), each on one core. With ``weights``
    "int8" the package quantises the language model's matrices. A chunk contains whole sentences of up to
    ``chunk_tokens`` tokens; with a lower value, text that arrives slowly is spoken sooner. ``sampler_steps``
    above 1 are for models that were trained with several steps per frame.

    Raises:
        UnsupportedError: a model of another family. ConfigError: the device is not the CPU, an option out of
        range, or fewer than one slot. CheckpointFormatError: the package cannot load the files.
    """
    spec, shape = checkpoint.spec, PocketShape.of(checkpoint.spec)
    if shape is None:
        raise UnsupportedError(f"the pocket backend runs Pocket-TTS models, {spec.name} is {spec.family}")
    if device not in (None, "cpu"):
        raise ConfigError(f"device is '{device}'; the pocket backend runs on the cpu")
    if weights not in WEIGHTS:
        raise ConfigError(f"weights is '{weights}'; it can be {', '.join(WEIGHTS)}")
    for what, value, most in (
        ("chunk_tokens", chunk_tokens, MAX_CHUNK_TOKENS),
        ("sampler_steps", sampler_steps, 64),
    ):
        if not 1 <= value <= most:
            raise ConfigError(f"{what} is {value}; it can be 1 to {most}")
    workers = model_threads(threads)
    with undisturbed():
        from antiphon.backends.pocket.backend import PocketBackend, PocketRows
        from antiphon.backends.pocket.model import PocketModel

        model = PocketModel(_load(checkpoint, is_int8=weights == "int8"), sampler_steps=sampler_steps)
        quantization = "none" if weights == "float32" else weights
        rows = PocketRows(
            spec, model, shape, chunk_tokens=chunk_tokens, threads=workers, quantization=quantization
        )
        return PocketBackend(rows, slots=slots)


def _load(checkpoint: Checkpoint, *, is_int8: bool) -> Any:
    """The package's model, from a configuration with the paths of these files."""
    import yaml
    from pocket_tts import TTSModel

    with tempfile.TemporaryDirectory(prefix="antiphon-pocket-") as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(yaml.safe_dump(dict(checkpoint.raw_config), allow_unicode=True), encoding="utf-8")
        try:
            return TTSModel.load_model(config=path, quantize=is_int8)
        except Exception as error:  # it raises many types for files that do not match
            reason = " ".join(str(error).split())
            raise CheckpointFormatError(f"pocket-tts cannot load {checkpoint.ref}: {reason}") from error
