"""One tick on the device: encode, the language model, decode.

The kinds differ only in which stages they have: codec encodes and decodes, stt encodes and listens,
duplex does all three.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import BoolArray, FloatArray, IntArray
from antiphon.backends.mlx.generation import Generator
from antiphon.backends.mlx.mimi import Mimi
from antiphon.backends.mlx.sampling import Sampler
from antiphon.backends.mlx.stages import StageRunner
from antiphon.backends.mlx.state import State, Step, TensorSpec
from antiphon.models.spec import ModelSpec, PipelineKind

PAUSE_INDEX = 0
"""The entry of an extra head's softmax that is the probability of a pause."""


@dataclass(slots=True)
class Tick:
    """What the stages of one tick know: which rows advance and how long they have lived, before it.

    ``filled`` bounds ring reads: no executed row has seen more frames, this one included.
    """

    executed: BoolArray
    emitted: BoolArray
    frames: NDArray[np.int64]
    filled: int
    stage_ms: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of this tick."""
        return len(self.executed)


class Pipeline:
    """The modules of one model, their state for S rows, and the three stages over them."""

    def __init__(
        self, spec: ModelSpec, mimi: Mimi, generator: Generator | None, *, rows: int, compiles: bool
    ) -> None:
        """Take over loaded modules and allocate ``rows`` fresh rows beside them."""
        self.spec, self.mimi, self.generator = spec, mimi, generator
        self.sampler = None if spec.lm is None else Sampler(spec.lm, rows)
        self.state = State(self._specs(), rows)
        self._runner = StageRunner(self.state, compiles=compiles)
        if compiles and generator is not None and generator.model.depformer is not None:
            generator.model.depformer.compile()

    def _specs(self) -> Iterator[TensorSpec]:
        yield from self.mimi.specs()
        if self.generator is not None and self.sampler is not None:
            yield from self.generator.specs()
            yield from self.sampler.specs()

    def encode(self, pcm: FloatArray, tick: Tick) -> mx.array:
        """PCM ``[n, frame_samples]`` to codes int32 ``[n, codebooks]``."""
        began_s = time.perf_counter()
        filled = min(tick.filled, self.mimi.context_frames)
        (codes,) = self._runner.run(
            "encode",
            filled,
            lambda step, x: (self.mimi.encode(x, step, filled),),
            [mx.array(pcm)],
            rows=tick.rows,
            exec_mask=_mask(tick.executed),
            prefixes=("encoder",),
        )
        self._note("encode", tick, began_s, codes)
        return codes

    def think(self, codes: mx.array, tick: Tick) -> tuple[IntArray, FloatArray | None, mx.array]:
        """Codes heard to text tokens ``[n]``, pause probabilities, and the codes to be spoken."""
        began_s = time.perf_counter()
        generator, sampler = self.generator, self.sampler
        assert generator is not None
        assert sampler is not None
        filled = min(tick.filled, generator.spec.context)
        mask = _mask(tick.executed)
        hidden, logits = self._runner.run(
            "listen",
            filled,
            lambda step, heard: generator.listen(heard, step, filled),
            [codes[:, : generator.heard_codes]],
            rows=tick.rows,
            exec_mask=mask,
            prefixes=("lm.",),
        )
        step = Step(self.state.tensors, tick.rows, mask)
        tokens = generator.speak(
            hidden, logits, step, sampler, lambda: sampler.draw(tick.frames, tick.executed)
        )
        self.state.tensors.update(step.tensors)
        outputs = [tokens]
        if self.spec.kind is PipelineKind.STT and generator.model.extra_heads:
            outputs.append(generator.model.pause_heads(hidden)[:, :, PAUSE_INDEX])
        del step
        self._note("lm", tick, began_s, *outputs)
        text, *vad = (np.array(output) for output in (outputs[0][:, 0], *outputs[1:]))
        return text, vad[0] if vad else None, mx.maximum(tokens[:, 1:], 0)

    def decode(self, codes: mx.array, tick: Tick) -> FloatArray:
        """Codes ``[n, codebooks]`` to PCM ``[n, frame_samples]``, for the rows that emit."""
        began_s = time.perf_counter()
        filled = min(tick.filled, self.mimi.context_frames)
        (pcm,) = self._runner.run(
            "decode",
            filled,
            lambda step, spoken: (self.mimi.decode(spoken, step, filled),),
            [codes],
            rows=tick.rows,
            exec_mask=_mask(tick.emitted),
            prefixes=("decoder",),
        )
        self._note("decode", tick, began_s, pcm)
        return np.array(pcm)

    def _note(self, name: str, tick: Tick, began_s: float, *outputs: mx.array) -> None:
        self._runner.finish(*outputs)
        tick.stage_ms[name] = 1000.0 * (time.perf_counter() - began_s)


def _mask(rows: BoolArray) -> mx.array | None:
    """A mask for the device, or None where every row takes part."""
    return None if rows.all() else mx.array(rows)
