"""One step of upstream's language model for all rows, with separate sampling for each row.

Upstream's ``LMGen`` samples with one global generator and one temperature for the whole batch. This module
calls upstream's model directly: ``forward_text``, then ``forward_depformer`` once per codebook, with the
delays and the choice of tokens computed in numpy by :mod:`antiphon.models`.

Upstream keeps the state of a whole batch in dataclasses of tensors, one per streaming module
(``moshi/modules/streaming.py``). Row r of these tensors is the whole state of row r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from moshi.models.lm import LMModel
from moshi.modules.streaming import State, StreamingModule
from moshi.modules.transformer import RingKVCache
from moshi.utils.compile import CUDAGraphed, no_compile

from antiphon.backends.base import FloatArray, IntArray
from antiphon.backends.snapshots import TensorSpec, part, with_prefix
from antiphon.errors import UnsupportedError
from antiphon.models.delays import DelayRings
from antiphon.models.sampling import RowSampler, SamplingParameters
from antiphon.models.spec import LMSpec

Module: TypeAlias = StreamingModule[Any]

_RING, _END = ".ring", ".end"
_CAPACITY: Final = 2
"""The axis of positions in a row's ring ``[2, heads, capacity, dim]``."""


class StreamRows:
    """The rows of a module that streams a batch."""

    def __init__(self, module: Module) -> None:
        """Index a module that streams."""
        self._module = module
        state = module._streaming_state
        assert state is not None
        self._batch, self._device = state.batch_size, state.device

    def views(self) -> dict[str, torch.Tensor]:
        """The state as views, rows on the first axis, by name.

        The names are stable for one model. The views are valid until the next step, because upstream replaces
        some tensors instead of writing to them. Raises UnsupportedError if all rows share a tensor of the
        state.
        """
        views: dict[str, torch.Tensor] = {}
        for module_name, state in self._module.get_streaming_state().items():
            for name, view in _views(state):
                if view.shape[0] != self._batch:
                    raise UnsupportedError(
                        f"state {module_name}.{name} is {list(view.shape)}, not one part for each of "
                        f"{self._batch} rows"
                    )
                views[f"{module_name}.{name}"] = view
        return views

    def mask(self, rows: Sequence[int] | IntArray) -> torch.Tensor:
        """The rows as a mask of the batch, bool ``[S]``."""
        mask = np.zeros(self._batch, np.bool_)
        mask[rows] = True
        return torch.from_numpy(mask).to(self._device)

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones.

        Upstream's own reset only clears the fill level of a KV ring. A zero attention weight masks the old
        content, but 0 times NaN is NaN, so the rings are cleared too.
        """
        if not rows:
            return
        self._module.reset_streaming(self.mask(rows))
        for name, view in self.views().items():
            if name.endswith(_RING):
                view[list(rows)] = 0

    def specs(self, prefix: str = "") -> list[TensorSpec]:
        """The shapes of a copied row, with names that begin with ``prefix``."""
        found = []
        for name, view in self.views().items():
            position = f"{prefix}{name.removesuffix(_RING)}{_END}" if name.endswith(_RING) else None
            shape = tuple(view.shape[1:])
            found.append(TensorSpec(prefix + name, shape, view.dtype, position=position, slot_axis=_CAPACITY))
        return found

    def take(self, row: int) -> dict[str, torch.Tensor]:
        """Copy the state of one row, by name, without the row axis; rings are cut to their filled part."""
        own = {name: view[row] for name, view in self.views().items()}
        return {spec.name: spec.cut(own[spec.name], own).clone() for spec in self.specs()}

    def put(self, row: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write ``tensors``, which were checked, to the state of ``row``, which was reset."""
        views = self.views()
        for spec in self.specs():
            spec.cut(views[spec.name][row], tensors).copy_(tensors[spec.name])

    def bytes(self) -> int:
        """Bytes of state of all rows."""
        return sum(view.nbytes for view in self.views().values())


def _views(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, RingKVCache):
            yield f"{field.name}{_RING}", value.cache.movedim(1, 0)  # [2, B, heads, capacity, dim]
            yield f"{field.name}{_END}", value.end_offset
        elif isinstance(value, torch.Tensor):
            yield field.name, value


_MODEL, _DELAYS, _SAMPLER = "model.", "delays.", "sampler."


class DuplexLM:
    """A Moshi-family language model: codes in, text and codes out."""

    def __init__(self, model: LMModel, spec: LMSpec, *, condition: torch.Tensor | None = None) -> None:
        """Take ownership of a loaded model; ``condition`` ``[1, 1, dim]`` is added to every step's input.

        Raises:
            UnsupportedError: the model has no audio input, or no depformer.
        """
        heard = spec.n_q - spec.dep_q
        if heard < 1 or spec.dep_q < 1:
            raise UnsupportedError(
                f"a duplex model needs input and output streams, this one has {heard} and {spec.dep_q}"
            )
        self.model = model
        self._spec, self._condition = spec, condition
        self._streams = ExitStack()
        self._on_cuda = model.device.type == "cuda"

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters."""
        self._streams.close()
        self._streams.enter_context(self.model.streaming(slots))
        self._slots = slots
        self._rows = StreamRows(self.model)
        self._delays = DelayRings(self._spec, slots)
        self._sampler = RowSampler(self._spec, slots)
        self._forward_text = CUDAGraphed(self.model.forward_text, disable=not self._on_cuda)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""
        self._sampler.set_parameters(row, parameters)

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones."""
        self._rows.reset(rows)
        self._delays.reset(rows)
        self._sampler.reset(rows)

    def step(self, heard: IntArray, rows: IntArray, lap: Callable[[str], None]) -> IntArray:
        """Advance rows ``[m]`` by one frame of received codes, int32 ``[m, >= n_q - dep_q]``.

        Returns int32 ``[m, 1 + dep_q]``, the complete frame, text first. ``lap`` is called with the name of
        each stage when it is done.
        """
        # On a CPU upstream would compile one norm of the model, with a C++ compiler, for no gain.
        with nullcontext() if self._on_cuda else no_compile():
            return self._step(heard, rows, lap)

    def _step(self, heard: IntArray, rows: IntArray, lap: Callable[[str], None]) -> IntArray:
        self.model.set_exec_mask(self._rows.mask(rows))
        inputs = self._spread(self._delays.inputs(rows, heard), rows)
        hidden, text_logits = self._forward_text(inputs[:, :, None], self._condition, None)
        logits = _to_numpy(text_logits[:, 0, 0], rows)
        lap("lm")
        text = self._sampler.text(rows, logits, self._delays.offsets[rows])
        lap("sample")
        voice = self._speak(text, hidden, rows, lap)
        tokens, _ = self._delays.outputs(rows, text, voice)
        return tokens

    def _speak(
        self, text: IntArray, hidden: torch.Tensor, rows: IntArray, lap: Callable[[str], None]
    ) -> IntArray:
        """Run the depformer over the codebooks of one frame; its state restarts in every frame."""
        depformer = self.model.depformer
        assert depformer is not None
        steps = self._delays.offsets[rows]
        voice = np.empty((len(rows), self._spec.dep_q), dtype=np.int32)
        token = text
        with depformer.streaming(self._slots):
            for codebook in range(self._spec.dep_q):
                previous = self._spread(token, rows)[:, None, None]
                logits = _to_numpy(self.model.forward_depformer(codebook, previous, hidden)[:, 0, 0], rows)
                lap("depformer")
                token = voice[:, codebook] = self._sampler.voice(rows, logits, steps, codebook)
                lap("sample")
        return voice

    def _spread(self, tokens: IntArray, rows: IntArray) -> torch.Tensor:
        """Tokens ``[m, ...]`` of some rows as int64 ``[S, ...]`` on the device, 0 elsewhere."""
        whole = np.zeros((self._slots, *tokens.shape[1:]), np.int64)
        whole[rows] = tokens
        return torch.from_numpy(whole).to(self.model.device)

    def take_row(self, row: int) -> dict[str, torch.Tensor]:
        """Copy the state of one row, by name, without the row axis."""
        return self._take_host(row) | with_prefix(_MODEL, self._rows.take(row))

    def _take_host(self, row: int) -> dict[str, torch.Tensor]:
        parts = {_DELAYS: self._delays.snapshot(row), _SAMPLER: self._sampler.snapshot(row)}
        return {
            prefix + name: torch.from_numpy(np.array(array))
            for prefix, arrays in parts.items()
            for name, array in arrays.items()
        }

    def specs(self, prefix: str) -> list[TensorSpec]:
        """The shapes of a copied row, with names that begin with ``prefix``."""
        host = self._take_host(0).items()
        own = [TensorSpec(prefix + name, tuple(tensor.shape), tensor.dtype) for name, tensor in host]
        return [*own, *self._rows.specs(prefix + _MODEL)]

    def put_row(self, row: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write ``tensors``, which were checked, to the state of ``row``, which was reset."""
        self._rows.put(row, part(tensors, _MODEL))
        self._delays.restore(row, {name: t.cpu().numpy() for name, t in part(tensors, _DELAYS).items()})
        self._sampler.restore(row, {name: t.cpu().numpy() for name, t in part(tensors, _SAMPLER).items()})

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        return self._rows.bytes() + self._delays.state_bytes + self._sampler.state_bytes


def _to_numpy(logits: torch.Tensor, rows: IntArray) -> FloatArray:
    """The logits of some rows, float32 ``[m, V]``."""
    array: FloatArray = logits.float().cpu().numpy()[rows]
    return array
