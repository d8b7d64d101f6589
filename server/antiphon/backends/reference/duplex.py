"""One step of upstream's language model for all rows, with the sampling of each row its own.

Upstream's ``LMGen`` samples with one global generator and one temperature for the whole batch. Here its
model is driven directly: ``forward_text``, then ``forward_depformer`` once per codebook, with the delays
and the choice of tokens made in numpy by :mod:`antiphon.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from moshi.models.lm import LMModel
from moshi.utils.compile import CUDAGraphed, no_compile
from numpy.typing import NDArray

from antiphon.backends.base import BoolArray, FloatArray, IntArray
from antiphon.backends.reference import rows
from antiphon.errors import UnsupportedError
from antiphon.models.delays import DelayCache
from antiphon.models.row_sampler import RowSampler
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec

_MODEL, _DELAYS, _SAMPLER = "model.", "delays.", "sampler."


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one step said: text int32 ``[S]``, codes int64 ``[S, dep_q]``, and which rows said anything.

    Codes are valid ids in every row, so that all of them can be decoded; ``is_ready`` is bool ``[S]``.
    """

    text_tokens: IntArray
    codes: NDArray[np.int64]
    is_ready: BoolArray


class DuplexLM:
    """A Moshi-family language model over ``slots`` rows: codes heard in, text and codes spoken out."""

    def __init__(
        self, model: LMModel, spec: LMSpec, slots: int, *, condition: torch.Tensor | None = None
    ) -> None:
        """Take over a loaded model; ``condition`` ``[1, 1, dim]`` is added to every step's input.

        Raises:
            UnsupportedError: the model hears nothing, or has no depformer.
        """
        heard = spec.n_q - spec.dep_q
        if heard < 1 or spec.dep_q < 1:
            raise UnsupportedError(
                f"a duplex model needs streams to hear and to speak, this one has {heard} and {spec.dep_q}"
            )
        self.model = model
        self._spec = spec
        self._slots = slots
        self._condition = condition
        self._delays = DelayCache(spec, slots)
        self._sampler = RowSampler(spec, slots)
        model.streaming_forever(slots)
        self._on_cuda = model.device.type == "cuda"
        self._forward_text = CUDAGraphed(model.forward_text, disable=not self._on_cuda)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""
        self._sampler.set_parameters(row, parameters)

    def reset(self, mask: BoolArray) -> None:
        """Make the rows of a bool mask ``[S]`` like fresh ones."""
        rows.reset_rows(self.model, torch.from_numpy(mask).to(self.model.device))
        self._delays.reset(mask)
        self._sampler.reset(mask)

    def step(self, heard: IntArray, executed: BoolArray, lap: Callable[[str], None]) -> Spoken:
        """Advance the executed rows by one frame of codes heard, int32 ``[S, >= n_q - dep_q]``.

        ``lap`` is called with the name of each stage when it is done.
        """
        # On a CPU upstream would compile one norm of the model, with a C++ compiler, for no gain.
        with nullcontext() if self._on_cuda else no_compile():
            return self._step(heard, executed, lap)

    def _step(self, heard: IntArray, executed: BoolArray, lap: Callable[[str], None]) -> Spoken:
        device = self.model.device
        inputs = torch.from_numpy(self._delays.inputs(heard, executed)).to(device, torch.int64)
        self.model.set_exec_mask(torch.from_numpy(executed).to(device))
        hidden, text_logits = self._forward_text(inputs[:, :, None], self._condition, None)
        logits = _to_numpy(text_logits[:, 0, 0])
        lap("lm")
        text = self._sampler.text(logits, self._delays.offsets, executed)
        lap("sample")
        voice = self._speak(text, hidden, executed, lap)
        tokens, is_ready = self._delays.outputs(text, voice, executed)
        codes = np.where(is_ready[:, None], tokens[:, 1:], 0).astype(np.int64)
        return Spoken(tokens[:, 0], codes, is_ready)

    def _speak(
        self, text: IntArray, hidden: torch.Tensor, executed: BoolArray, lap: Callable[[str], None]
    ) -> IntArray:
        """Run the depformer over the codebooks of one frame; it starts afresh at every frame."""
        depformer = self.model.depformer
        assert depformer is not None
        steps = self._delays.offsets
        voice = np.empty((self._slots, self._spec.dep_q), dtype=np.int32)
        token = text
        with depformer.streaming(self._slots):
            for codebook in range(self._spec.dep_q):
                previous = torch.from_numpy(token).to(hidden.device, torch.int64)[:, None, None]
                logits = _to_numpy(self.model.forward_depformer(codebook, previous, hidden)[:, 0, 0])
                lap("depformer")
                token = voice[:, codebook] = self._sampler.voice(logits, steps, executed, codebook)
                lap("sample")
        return voice

    def take_row(self, row: int) -> dict[str, torch.Tensor]:
        """Copy the state of one row, by name, without the row axis."""
        host = {_DELAYS + name: array for name, array in self._delays.snapshot(row).items()}
        host |= {_SAMPLER + name: array for name, array in self._sampler.snapshot(row).items()}
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in host.items()}
        return tensors | {_MODEL + name: t for name, t in rows.take_row(self.model, row).items()}

    def put_row(self, row: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a copied row into any row of the same model. Raises UnsupportedError when it does not fit."""
        rows.put_row(self.model, row, part(tensors, _MODEL))
        self._delays.restore(row, {name: t.numpy() for name, t in part(tensors, _DELAYS).items()})
        self._sampler.restore(row, {name: t.numpy() for name, t in part(tensors, _SAMPLER).items()})

    def copy_row(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        rows.copy_row(self.model, source, target)
        self._delays.move(source, target)
        self._sampler.move(source, target)

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return rows.state_bytes(self.model) + self._delays.state_bytes + self._sampler.state_bytes


def part(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _to_numpy(logits: torch.Tensor) -> FloatArray:
    array: FloatArray = logits.float().cpu().numpy()
    return array
