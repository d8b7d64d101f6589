"""The delay cache on the device: every stream's tokens, read back in the order the model hears them.

Stream k's token for frame f enters the model at step f + delays[k] + 1 (0 for the initial token before
it). The rule is upstream's (``moshi/models/lm.py``, ``LMGen``), as in :mod:`antiphon.models.delays`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.backends.torch.state import Step, TensorSpec

UNGENERATED = -2
"""A token that is not there yet."""


@dataclass(frozen=True, slots=True)
class DelayCache:
    """State ``lm.tokens`` int64 ``[1 + n_q, max_delay + 2]``, a ring over steps.

    ``delays`` are per stream, text first; ``generated`` counts the streams the model itself speaks
    (text included), which come first. ``initial`` is each stream's token before its first.
    """

    delays: tuple[int, ...]
    generated: int
    initial: tuple[int, ...]

    @property
    def capacity(self) -> int:
        """Steps the ring holds."""
        return max(self.delays) + 2

    def specs(self) -> Iterator[TensorSpec]:
        """The state this cache keeps."""
        yield TensorSpec("lm.tokens", (len(self.delays), self.capacity), torch.int64, fill=UNGENERATED)

    def heard(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Take what the rows hear in step ``offsets [n]``, and give every stream's input to the model.

        ``tokens`` int64 ``[n, n_q + 1 - generated]``, to int64 ``[n, 1 + n_q, 1]``.
        """
        cache = step.read("lm.tokens")
        delays = torch.tensor(self.delays, device=offsets.device)
        initial = torch.tensor(self.initial, device=offsets.device)
        slots = torch.remainder(offsets[:, None] + delays[self.generated :], self.capacity)[..., None]
        other = cache[:, self.generated :].scatter(2, slots, tokens[..., None])
        cache = torch.cat([cache[:, : self.generated], other], dim=1)
        step.write("lm.tokens", cache)
        now = torch.remainder(offsets, self.capacity).view(-1, 1, 1).expand(-1, len(self.delays), 1)
        is_before = (offsets[:, None] <= delays)[..., None]
        if step.exec_mask is not None:
            is_before = is_before | ~step.exec_mask.view(-1, 1, 1)
        return torch.where(is_before, initial[:, None], cache.gather(2, now))

    def spoken(self, step: Step, offsets: Tensor, tokens: Tensor) -> Tensor:
        """Take what the model said in step ``offsets [n]``; give the frame that is now complete.

        ``tokens`` int64 ``[n, generated]`` to the same. Rows with ``offsets < max_delay`` get nothing
        of use: no frame of theirs is complete.
        """
        cache = step.read("lm.tokens")
        following = offsets[:, None] + 1
        slots = torch.remainder(following, self.capacity).expand(-1, self.generated)[..., None]
        own = cache[:, : self.generated].scatter(2, slots, tokens[..., None])
        step.write("lm.tokens", torch.cat([own, cache[:, self.generated :]], dim=1))
        delays = torch.tensor(self.delays[: self.generated], device=offsets.device)
        slots = torch.remainder(following - max(self.delays) + delays, self.capacity)[..., None]
        return own.gather(2, slots)[..., 0]
