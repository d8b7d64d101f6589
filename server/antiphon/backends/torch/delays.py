"""The delay cache on the device: every stream's tokens, read back in the order the model hears them.

Stream k's token for frame f enters the model at step f + delays[k] + 1 (0 for the initial token before
it). The rule is upstream's (``moshi/models/lm.py``, ``LMGen``), as in :mod:`antiphon.models.delays`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from antiphon.backends.torch.kernels.fused import load_tokens
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import PackedStep, Step

UNGENERATED = -2
"""A token that is not there yet."""


class DelayCache:
    """State ``lm.tokens`` int64 ``[1 + n_q, max_delay + 2]``, a ring over steps."""

    def __init__(
        self,
        delays: Sequence[int],
        generated: int,
        initial: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        is_fused: bool = False,
    ) -> None:
        """Keep the constants on the device, so that a step can be captured; ``is_fused``: by Triton kernels.

        ``delays`` are per stream, text first; ``generated`` counts the streams the model itself speaks
        (text included), which come first. ``initial`` is each stream's token before its first.
        """
        self.generated, self.max_delay = generated, max(delays)
        self.capacity = self.max_delay + 2
        self.delays = torch.tensor(tuple(delays), device=device)
        self.initial = torch.tensor(tuple(initial), device=device)[:, None]
        self._kernels = load_tokens() if is_fused else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this cache keeps."""
        yield TensorSpec("lm.tokens", (len(self.delays), self.capacity), torch.int64, fill=UNGENERATED)

    def heard(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Take what the rows hear in step ``offsets [n]``, and give every stream's input to the model.

        ``tokens`` int64 ``[n, n_q + 1 - generated]``, to int64 ``[n, 1 + n_q, 1]``.
        """
        if self._kernels is not None and isinstance(step, PackedStep):
            given: Tensor = self._kernels.heard_tokens(self._kept(step), step.rows, offsets, tokens)
            return given
        cache = step.read("lm.tokens")
        slots = torch.remainder(offsets[:, None] + self.delays[self.generated :], self.capacity)
        other = cache[:, self.generated :].scatter(2, slots[..., None], tokens[..., None])
        cache = torch.cat([cache[:, : self.generated], other], dim=1)
        step.write("lm.tokens", cache)
        now = torch.remainder(offsets, self.capacity).view(-1, 1, 1).expand(-1, cache.shape[1], 1)
        is_before = (offsets[:, None] <= self.delays)[..., None]
        if step.idle is not None:
            is_before = is_before | step.idle.view(-1, 1, 1)
        return torch.where(is_before, self.initial, cache.gather(2, now))

    def spoken(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Take what the model said in step ``offsets [n]``; give the frame that is now complete.

        ``tokens`` int64 ``[n, generated]`` to the same. Rows with ``offsets < max_delay`` get nothing
        of use: no frame of theirs is complete.
        """
        if self._kernels is not None and isinstance(step, PackedStep):
            done: Tensor = self._kernels.spoken_tokens(self._kept(step), offsets, tokens, self.max_delay)
            return done
        cache = step.read("lm.tokens")
        following = offsets[:, None] + 1
        slots = torch.remainder(following, self.capacity).expand(-1, self.generated)
        own = cache[:, : self.generated].scatter(2, slots[..., None], tokens[..., None])
        step.write("lm.tokens", torch.cat([own, cache[:, self.generated :]], dim=1))
        frame = following - self.max_delay + self.delays[: self.generated]
        return own.gather(2, torch.remainder(frame, self.capacity)[..., None])[..., 0]

    def _kept(self, step: PackedStep) -> Any:
        """The cache as its kernels take it."""
        assert self._kernels is not None
        tokens = step.whole("lm.tokens")
        return self._kernels.Delayed(tokens, step.at, self.delays, self.initial, self.generated)
