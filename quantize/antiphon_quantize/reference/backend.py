"""The reference backend: S rows of upstream's Mimi and language model, in which masks select the rows of a
step.

Upstream's own loaders read a checkpoint's local files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel
from moshi.models.loaders import get_mimi, get_moshi_lm
from moshi.run_inference import get_condition_tensors
from numpy.typing import NDArray

from antiphon.backends.base import BackendInfo, FloatArray, IntArray, Progress, Result, Work
from antiphon.backends.host import HostBackend
from antiphon.backends.snapshots import check_state, part, with_prefix
from antiphon.backends.stopwatch import Stopwatch
from antiphon.backends.torch_devices import device_bytes, device_probe, open_device, pick_dtype, to_numpy
from antiphon.errors import UnsupportedError
from antiphon.models.checkpoint import as_checkpoint_error
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon_quantize.reference.duplex import DuplexLM, StreamRows

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint


def load_mimi(checkpoint: Checkpoint, device: torch.device) -> MimiModel:
    """Load Mimi, always float32, with the codebooks that the model uses."""
    spec = checkpoint.spec.mimi
    config = deepcopy(dict(spec.config)) or None  # None is upstream's full-size Mimi
    with as_checkpoint_error(checkpoint.spec.name, torch.OutOfMemoryError):
        return get_mimi(checkpoint.file("mimi"), config, device=device, num_codebooks=spec.codebooks)


def load_lm(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> LMModel:
    """Load the language model, with fine-tuning merged in and upstream's corrections after loading.

    Raises UnsupportedError for upstream's own INT8 files, whose scales its loader rounds to the dtype, and
    CheckpointFormatError if the weights and the configuration do not match.
    """
    assert checkpoint.spec.lm is not None
    config = deepcopy(dict(checkpoint.spec.lm.config))
    if config.get("quantize"):
        raise UnsupportedError(
            "moshi 0.2.13 cannot load its own INT8 checkpoints correctly; use the bf16 one"
        )
    lora = checkpoint.files.get("lora")
    with as_checkpoint_error(checkpoint.spec.name, torch.OutOfMemoryError):
        model = get_moshi_lm(
            checkpoint.file("lm"), config, device=device, dtype=dtype, lora_weights=lora, fuse_lora=True
        )
    if checkpoint.spec.family == "hibiki":
        # As upstream: padding replaces an end of text that is sampled too early.
        model.text_emb.weight.data[2] = model.text_emb.weight.data[3]
    return model


def sum_condition(model: LMModel, family: str) -> torch.Tensor | None:
    """The vector ``[1, 1, dim]`` that a conditioned model (Hibiki) adds to the input of every step; None for
    other models.

    Raises UnsupportedError if the model has other conditions.
    """
    if model.fuser is None:
        return None
    try:
        conditions = get_condition_tensors(family, model, batch_size=1, cfg_coef=1.0)
    except RuntimeError as error:
        raise UnsupportedError(str(error)) from error
    if model.fuser.get_cross(conditions) is not None:
        raise UnsupportedError("the reference backend runs no model with cross-attention")
    condition = model.fuser.get_sum(conditions)
    return None if condition is None else condition.to(model.dtype)


_WARM_UP_FRAMES = 3  # upstream captures its CUDA graphs in the second call; the third replays them
_MIMI, _LM = "mimi.", "lm."


class ReferenceExecutor:
    """Upstream's modules over a fixed batch; see :class:`antiphon.backends.base.FrameExecutor`.

    Every tick computes all rows; rows that are not named are masked. Mimi runs in float32, the language model
    in its own dtype; upstream's modules are unchanged (moshi 0.2.13).
    """

    def __init__(self, spec: ModelSpec, mimi: MimiModel, lm: DuplexLM | None) -> None:
        """Take ownership of a loaded Mimi (and language model)."""
        self.mimi, self.lm = mimi, lm
        self._spec = spec
        self._device = next(mimi.parameters()).device
        self._streams = ExitStack()
        self.probe = device_probe(self._device)
        modules: list[torch.nn.Module] = [mimi] if lm is None else [mimi, lm.model]
        self.facts = BackendInfo(
            name="reference",
            device=str(self._device),
            spec=spec,
            dtype="float32" if lm is None else str(lm.model.dtype).removeprefix("torch."),
            quantization="none",
            versions={"moshi": version("moshi"), "torch": str(torch.__version__)},
            memory={
                "weights": sum(t.nbytes for m in modules for t in (*m.parameters(), *m.buffers())),
                **device_bytes(self._device),
            },
        )

    def allocate(self, slots: int) -> None:
        """Make upstream's modules stream a batch of ``slots``."""
        self._streams.close()
        self._slots = slots
        self._streams.enter_context(self.mimi.streaming(slots))
        self._mimi_rows = StreamRows(self.mimi)
        if self.lm is not None:
            self.lm.allocate(slots)

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:  # noqa: ARG002  (both ways it is the batch)
        """The number of all rows, because every tick computes the whole batch."""
        return self._slots

    def warm_up(self, progress: Progress) -> None:
        """Run silent frames through all rows."""
        rows = np.arange(self._slots, dtype=np.int32)
        every, none = np.ones(self._slots, np.bool_), np.zeros(self._slots, np.bool_)
        silence = np.zeros((self._slots, self._spec.frame_samples), np.float32)
        for frame in range(_WARM_UP_FRAMES):
            progress(frame, _WARM_UP_FRAMES, "warm-up frames")
            self.run(Work(rows, np.full(self._slots, frame, np.int64), none, none, every, silence))
        progress(_WARM_UP_FRAMES, _WARM_UP_FRAMES, "warm-up frames")

    @torch.no_grad()
    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones."""
        if rows:
            self._mimi_rows.reset(rows)
            if self.lm is not None:
                self.lm.reset(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Set a row's sampling parameters; a codec ignores them."""
        if self.lm is not None:
            self.lm.set_parameters(row, parameters)

    @torch.no_grad()
    def run(self, work: Work) -> Result:
        """Run one tick: scatter the named rows over the whole batch, and gather their outputs."""
        watch = Stopwatch()
        self.reset(work.rows[work.is_fresh].tolist())
        whole = np.zeros((self._slots, work.pcm.shape[1]), np.float32)
        whole[work.rows] = work.pcm
        self.mimi.set_exec_mask(self._mimi_rows.mask(work.rows))
        codes = self.mimi.encode(self._to_device(whole)[:, None])  # [S, K, 1], valid in the named rows
        self._mimi_rows.reset(work.rows[work.is_forgotten].tolist())
        watch.lap("encode")
        tokens = None
        if self.lm is not None:
            heard = codes[work.rows, :, 0].cpu().numpy().astype(np.int32)
            watch.lap("encode")
            said = self.lm.step(heard, work.rows, watch.lap)
            tokens = said[:, 0]
            codes = torch.zeros(self._slots, said.shape[1] - 1, 1, dtype=torch.int64, device=self._device)
            codes[work.rows, :, 0] = self._to_device(np.maximum(said[:, 1:], 0)).to(torch.int64)
        pcm = self._decode(codes, work.rows[work.is_emitting])[work.rows]
        watch.lap("decode")
        return Result(pcm, tokens, stage_ms=watch.stage_ms)

    def snapshot(self, row: int) -> dict[str, torch.Tensor]:
        """Copy a row's state; the tensors remain on the device."""
        tensors = with_prefix(_MIMI, self._mimi_rows.take(row))
        if self.lm is not None:
            tensors |= with_prefix(_LM, self.lm.take_row(row))
        return tensors

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError for a snapshot of another model."""
        own = [] if self.lm is None else self.lm.specs(_LM)
        check_state(tensors, [*self._mimi_rows.specs(_MIMI), *own])

    @torch.no_grad()
    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Restore a row's state."""
        self._mimi_rows.put(row, part(tensors, _MIMI))
        if self.lm is not None:
            self.lm.put_row(row, part(tensors, _LM))

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The tensors as numpy arrays, bfloat16 as uint16."""
        return to_numpy(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Reverse :meth:`to_host`; upstream's state itself has no uint16."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return {
            name: (tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor).to(self._device)
            for name, tensor in tensors.items()
        }

    def choose_threads(self) -> None:
        """No effect: every tick uses the same number of threads."""

    def state_bytes(self) -> int:
        """Bytes of streaming state for all rows."""
        return self._mimi_rows.bytes() + (self.lm.state_bytes() if self.lm is not None else 0)

    def age(self, frames: int) -> None:
        """No effect: a tick takes the same time for fresh and for old rows, because attention reads whole
        rings and masks their empty positions.
        """

    def close(self) -> None:
        """Release the modules, and the memory that the device keeps for them."""
        del self.mimi, self.lm, self._mimi_rows
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _decode(self, codes: torch.Tensor, rows: IntArray) -> FloatArray:
        """Decode codes ``[S, K, 1]`` to float32 ``[S, samples]``, advancing the given rows only."""
        if not rows.size:
            return np.zeros((self._slots, self._spec.frame_samples), np.float32)
        self.mimi.set_exec_mask(self._mimi_rows.mask(rows))
        pcm: FloatArray = self.mimi.decode(codes)[:, 0].float().cpu().numpy()
        return pcm

    def _to_device(self, array: FloatArray | IntArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> HostBackend:
    """Load a checkpoint with upstream's loaders.

    ``dtype`` is the language model's dtype (None: float32 on a CPU, bfloat16 elsewhere); ``threads`` is the
    number of torch's threads on a CPU, process-wide (None: all usable cores but one).

    Raises:
        UnsupportedError: upstream's modules cannot run the pipeline or the checkpoint here. ConfigError: the
            device or dtype does not exist, or there is less than one slot or thread.
    """
    spec = checkpoint.spec
    if spec.kind not in (PipelineKind.CODEC, PipelineKind.DUPLEX):
        raise UnsupportedError(f"the reference backend runs codec and duplex models, not {spec.kind}")
    torch_device = open_device(device, threads)
    lm_dtype = pick_dtype(dtype, torch_device, ("float32", "bfloat16", "float16"))
    mimi = load_mimi(checkpoint, torch_device)
    lm = None
    if spec.kind is PipelineKind.DUPLEX:
        assert spec.lm is not None
        model = load_lm(checkpoint, torch_device, lm_dtype)
        lm = DuplexLM(model, spec.lm, condition=sum_condition(model, spec.family))
    return HostBackend(spec, ReferenceExecutor(spec, mimi, lm), slots=slots)
