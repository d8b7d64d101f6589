"""Running a tick's stages over the state: operation by operation, or compiled once per shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import mlx.core as mx

from antiphon.backends.mlx.state import State, Step
from antiphon.errors import DeviceLostError

Stage: TypeAlias = Callable[..., tuple[mx.array, ...]]
"""Called with a step and the stage's inputs, arrays all of them."""

_Arrays: TypeAlias = dict[str, mx.array]
_Pure: TypeAlias = Callable[[Sequence[mx.array], _Arrays, _Arrays], tuple[tuple[mx.array, ...], _Arrays]]


def evaluate(*arrays: object) -> None:
    """Have the device compute arrays, or trees of them.

    Raises:
        DeviceLostError: it did not. Inputs that gave their memory to a result may be gone with it, those
            of other rows included, so nothing can be trusted any more.
    """
    try:
        mx.eval(*arrays)
    except (RuntimeError, MemoryError) as error:
        raise DeviceLostError(f"mlx could not compute a step: {error}") from error


class StageRunner:
    """Runs stages over a state.

    With ``compiles`` a stage is traced once for every key, and mlx fuses its elementwise operations. The
    result replaces the state's tensors, so that these are held once when they are evaluated, and written
    in place.
    """

    def __init__(self, state: State, *, compiles: bool) -> None:
        """Begin with nothing compiled."""
        self._state, self._compiles = state, compiles
        self._compiled: dict[Hashable, _Pure] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def run(
        self,
        name: str,
        key: Hashable,
        stage: Stage,
        inputs: Sequence[mx.array],
        *,
        rows: int,
        exec_mask: mx.array | None,
        prefixes: tuple[str, ...],
    ) -> tuple[mx.array, ...]:
        """Run a stage over rows ``0 .. rows-1`` of the tensors that begin with ``prefixes``.

        ``key`` holds everything beside shapes that the stage's operations depend on.
        """
        mask = {} if exec_mask is None else {"exec": exec_mask}

        def pure(
            inputs: Sequence[mx.array], tensors: _Arrays, mask: _Arrays
        ) -> tuple[tuple[mx.array, ...], _Arrays]:
            step = Step(tensors, rows, mask.get("exec"))
            outputs = stage(step, *inputs)
            return outputs, step.tensors

        function: _Pure = pure
        if self._compiles:
            shape = (name, rows, key, bool(mask))
            if shape not in self._compiled:
                self._compiled[shape] = mx.compile(pure)
            function = self._compiled[shape]
        if name not in self._names:
            self._names[name] = tuple(n for n in self._state.tensors if n.startswith(prefixes))
        tensors = {tensor: self._state.tensors[tensor] for tensor in self._names[name]}
        outputs, tensors = function(list(inputs), tensors, mask)
        self._state.tensors.update(tensors)
        return outputs

    def finish(self, *outputs: mx.array) -> None:
        """Wait for a stage's outputs and for the state. Raises DeviceLostError."""
        evaluate(outputs, self._state.tensors)
