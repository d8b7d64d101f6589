"""The kernels that run whole layers, imported when a layer first asks for them: they need Triton."""

from __future__ import annotations

from types import ModuleType


def load_steps() -> ModuleType:
    """:mod:`antiphon.backends.torch.kernels.steps`, imported when it is first needed."""
    from antiphon.backends.torch.kernels import steps

    return steps
