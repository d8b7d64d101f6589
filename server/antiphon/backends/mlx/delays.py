"""The delay cache on the device: every stream's tokens, read back in the order the model hears them.

Stream k's token for frame f enters the model at step f + delays[k] + 1 (0 for the initial token before
it). The rule is upstream's (``moshi/models/lm.py``, ``LMGen``), as in :mod:`antiphon.models.delays`.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from antiphon.backends.mlx.state import Packed, TensorSpec
from antiphon.models.spec import LMSpec

UNGENERATED = -2
"""A token that is not there yet."""


class DelayCache:
    """State ``lm.tokens`` int32 ``[1 + n_q, max_delay + 2]``, a ring over steps."""

    def __init__(self, spec: LMSpec) -> None:
        """Keep the constants on the device. What the model itself speaks comes first, text before all."""
        self.generated, self.max_delay = spec.dep_q + 1, spec.max_delay
        self.capacity = self.max_delay + 2
        self.delays = mx.array(spec.delays)
        self.initial = mx.array((spec.text_card, *[spec.card] * spec.n_q))

    def specs(self) -> Iterator[TensorSpec]:
        """The state this cache keeps."""
        yield TensorSpec("lm.tokens", (self.delays.shape[0], self.capacity), mx.int32, fill=UNGENERATED)

    def heard(self, step: Packed, offsets: mx.array, tokens: mx.array) -> mx.array:
        """Take what the rows hear in step ``offsets [n]``, and give every stream's input to the model.

        ``tokens`` int32 ``[n, n_q + 1 - generated]``, to int32 ``[n, 1 + n_q]``.
        """
        cache = step.read("lm.tokens")
        if tokens.shape[1]:
            slots = (offsets[:, None] + self.delays[self.generated :]) % self.capacity
            other = mx.put_along_axis(cache[:, self.generated :], slots[..., None], tokens[..., None], axis=2)
            cache = mx.concatenate([cache[:, : self.generated], other], axis=1)
            step.write("lm.tokens", cache)
        is_before = offsets[:, None] <= self.delays
        now = mx.broadcast_to((offsets % self.capacity)[:, None, None], (*cache.shape[:2], 1))
        return mx.where(is_before, self.initial, mx.take_along_axis(cache, now, axis=2)[..., 0])

    def spoken(self, step: Packed, offsets: mx.array, tokens: mx.array) -> mx.array:
        """Take what the model said in step ``offsets [n]``; give the frame that is now complete.

        ``tokens`` int32 ``[n, generated]`` to the same. Rows with ``offsets < max_delay`` get nothing
        of use: no frame of theirs is complete.
        """
        cache = step.read("lm.tokens")
        following = offsets[:, None] + 1
        slots = mx.broadcast_to(following % self.capacity, tokens.shape)
        own = mx.put_along_axis(cache[:, : self.generated], slots[..., None], tokens[..., None], axis=2)
        step.write("lm.tokens", mx.concatenate([own, cache[:, self.generated :]], axis=1))
        frame = following - self.max_delay + self.delays[: self.generated]
        return mx.take_along_axis(own, (frame % self.capacity)[..., None], axis=2)[..., 0]
