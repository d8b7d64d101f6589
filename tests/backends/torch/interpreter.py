"""Triton's interpreter without its repeated work for each call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def language_patched_once() -> Iterator[None]:
    """Patch Triton's language for its interpreter now, not in each launch and at each call of a function.

    A model's kernels take a third of the time. Until the end no kernel can be compiled.
    """

    def leave(_: object) -> interpreter._LangPatchScope:
        return interpreter._LangPatchScope()

    patched = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        with mock.patch.object(interpreter, "_patch_lang", leave):
            yield
    finally:
        patched.restore()
