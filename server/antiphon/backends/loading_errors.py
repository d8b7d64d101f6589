"""Errors of loading: weights and a configuration that do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.errors import CheckpointFormatError


@contextmanager
def as_checkpoint_error(name: str, *unless: type[Exception]) -> Iterator[None]:
    """Turn what modules raise while they are built and filled into an error of the model called ``name``.

    A configuration has too many arguments for each to be checked beforehand, so this boundary is wide.
    Exceptions of the types ``unless`` go through.

    Raises:
        CheckpointFormatError: with the words of the exception.
    """
    try:
        yield
    except unless:
        raise
    except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise CheckpointFormatError(
            f"{name} cannot be loaded: its weights and configuration do not fit each other, or the program: "
            f"{type(error).__name__}: {words:.500}"
        ) from error
