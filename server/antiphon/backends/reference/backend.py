"""The reference backend: S rows of upstream's Mimi and language model, stepped through their masks."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import torch
from moshi.models.compression import MimiModel

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    FloatArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.devices import device_bytes, device_probe, pick_device
from antiphon.backends.faults import FaultJudge
from antiphon.backends.reference import loading, rows
from antiphon.backends.reference.duplex import DuplexLM, part
from antiphon.backends.threads import model_threads
from antiphon.errors import UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

_WARM_UP_FRAMES = 3  # upstream captures its CUDA graphs in the second call; the third replays them
_MIMI, _LM = "mimi.", "lm."


class ReferenceBackend:
    """Upstream's modules over a fixed batch of ``slots`` rows, with per-row masks and sampling.

    Every tick computes all rows, so there is one bucket. Mimi runs in float32, the language model in
    its own dtype; upstream's modules are used as they are (moshi 0.2.13).
    """

    def __init__(self, spec: ModelSpec, mimi: MimiModel, lm: DuplexLM | None, *, slots: int) -> None:
        """Take over a loaded Mimi (and language model) and give them ``slots`` fresh rows.

        Raises:
            ConfigError: less than one slot.
        """
        check_slots(slots)
        self._mimi = mimi
        self._lm = lm
        self._device = next(mimi.parameters()).device
        self._judge = FaultJudge(device_probe(self._device))
        mimi.streaming_forever(slots)
        self._has_begun = np.zeros(slots, dtype=np.bool_)
        modules: list[torch.nn.Module] = [mimi] if lm is None else [mimi, lm.model]
        weights = sum(t.nbytes for m in modules for t in (*m.parameters(), *m.buffers()))
        self._info = BackendInfo(
            name="reference",
            device=str(self._device),
            spec=spec,
            slots=slots,
            buckets=(slots,),
            dtype="float32" if lm is None else str(lm.model.dtype).removeprefix("torch."),
            can_snapshot=True,
            versions={"moshi": version("moshi"), "torch": torch.__version__},
            memory={
                "weights": weights,
                "state_per_row": self.state_bytes() // slots,
                **device_bytes(self._device),
            },
        )

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change while the backend lives."""
        return self._info

    def warm_up(self, progress: Progress) -> None:
        """Run silent frames through all rows, then make them fresh again."""
        everyone = np.ones(self._info.slots, dtype=np.bool_)
        frames = _WARM_UP_FRAMES + self._info.spec.silent_frames
        for frame in range(frames):
            progress(frame, frames, "warm-up frames")
            self.step(StepInputs(exec=everyone, reset=everyone & (frame == 0), pcm=self._silence()))
        with torch.no_grad():
            self._reset(everyone)
        progress(frames, frames, "warm-up frames")

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        check_row(self._info, row)
        if self._lm is not None:
            self._lm.set_parameters(row, parameters)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the executed rows by one frame; see :meth:`Backend.step`."""
        check_inputs(self._info, inputs)
        assert inputs.pcm is not None
        try:
            with torch.no_grad():
                self._reset(inputs.reset)
                outputs = self._step(inputs.pcm, inputs.exec)
        except Exception as error:  # upstream may raise anything; the judge says what it means for whom
            touched = tuple(int(row) for row in np.flatnonzero(inputs.exec | inputs.reset))
            raise self._judge.judge(error, touched) from error
        self._judge.note_success()
        return outputs

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Upstream's modules cannot force a row's tokens while others go on. Raises UnsupportedError."""
        check_row(self._info, row)
        raise UnsupportedError(
            f"the reference backend takes no prompts (this one has {prompt.count} frames); torch does"
        )

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state; the tensors stay on the device."""
        check_row(self._info, row)
        tensors = {_MIMI + name: tensor for name, tensor in rows.take_row(self._mimi, row).items()}
        tensors["has_begun"] = torch.tensor(self._has_begun[row])
        if self._lm is not None:
            tensors |= {_LM + name: tensor for name, tensor in self._lm.take_row(row).items()}
        return RowSnapshot(self._info.name, tensors, sum(tensor.nbytes for tensor in tensors.values()))

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back. Raises UnsupportedError for a snapshot of another model or backend."""
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        rows.put_row(self._mimi, row, part(snapshot.tensors, _MIMI))
        if self._lm is not None:
            self._lm.put_row(row, part(snapshot.tensors, _LM))
        self._has_begun[row] = bool(snapshot.tensors["has_begun"])

    def move(self, source: int, target: int) -> None:
        """Copy the state and parameters of one row over another."""
        check_row(self._info, source)
        check_row(self._info, target)
        rows.copy_row(self._mimi, source, target)
        if self._lm is not None:
            self._lm.copy_row(source, target)
        self._has_begun[target] = self._has_begun[source]

    def state_bytes(self) -> int:
        """Bytes of streaming state for all rows."""
        return rows.state_bytes(self._mimi) + (self._lm.state_bytes() if self._lm is not None else 0)

    def close(self) -> None:
        """Let go of the modules, and of the memory the device keeps for them."""
        del self._mimi, self._lm
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _reset(self, mask: BoolArray) -> None:
        if not mask.any():
            return
        rows.reset_rows(self._mimi, self._to_device(mask))
        if self._lm is not None:
            self._lm.reset(mask)
        self._has_begun[mask] = False

    def _step(self, pcm: FloatArray, executed: BoolArray) -> StepOutputs:
        if not executed.any():
            return self._idle()
        watch = _Stopwatch()
        codes = self._encode(pcm, executed)
        watch.lap("encode")
        if self._lm is None:
            emitted, tokens, reply_codes = executed.copy(), None, codes
        else:
            heard = codes[:, :, 0].cpu().numpy().astype(np.int32)
            watch.lap("encode")
            spoken = self._lm.step(heard, executed, watch.lap)
            emitted = spoken.is_ready
            tokens = np.where(emitted, spoken.text_tokens, np.int32(NO_TOKEN))
            reply_codes = torch.from_numpy(spoken.codes).to(self._device)[:, :, None]
        out = self._decode(reply_codes, emitted)
        watch.lap("decode")
        return StepOutputs(
            consumed=executed.copy(), emitted=emitted, pcm=out, text_tokens=tokens, stage_ms=watch.stage_ms
        )

    def _idle(self) -> StepOutputs:
        slots = self._info.slots
        nobody = np.zeros(slots, dtype=np.bool_)
        tokens = None if self._lm is None else np.full(slots, NO_TOKEN, dtype=np.int32)
        return StepOutputs(consumed=nobody, emitted=nobody.copy(), pcm=self._silence(), text_tokens=tokens)

    def _encode(self, pcm: FloatArray, executed: BoolArray) -> torch.Tensor:
        """Encode ``[S, samples]`` to codes ``[S, K, 1]``.

        A language model hears the codes of its first frame, but Mimi then forgets having encoded it,
        so that its left padding comes again before the second (``skip_frames`` of ``moshi/server.py``).
        """
        self._mimi.set_exec_mask(self._to_device(executed))
        codes = self._mimi.encode(self._to_device(pcm)[:, None])
        if self._info.kind is PipelineKind.DUPLEX:
            first = executed & ~self._has_begun
            if first.any():
                rows.reset_rows(self._mimi, self._to_device(first))
        self._has_begun |= executed
        return codes

    def _decode(self, codes: torch.Tensor, emitted: BoolArray) -> FloatArray:
        """Decode codes ``[S, K, 1]`` to float32 ``[S, samples]``, advancing the emitting rows alone."""
        if not emitted.any():
            return self._silence()
        self._mimi.set_exec_mask(self._to_device(emitted))
        pcm: FloatArray = self._mimi.decode(codes)[:, 0].float().cpu().numpy()
        return pcm

    def _silence(self) -> FloatArray:
        return np.zeros((self._info.slots, self._info.spec.frame_samples), dtype=np.float32)

    def _to_device(self, array: BoolArray | FloatArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


class _Stopwatch:
    """Milliseconds by stage, laps of the same stage added up."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._lap_s = time.perf_counter()

    def lap(self, stage: str) -> None:
        now_s = time.perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + 1000.0 * (now_s - self._lap_s)
        self._lap_s = now_s


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> ReferenceBackend:
    """Load a checkpoint with upstream's loaders.

    ``dtype`` is the language model's (None: float32 on a CPU, bfloat16 elsewhere); ``threads`` is how
    many threads torch may use on a CPU, process-wide (None: all cores but one).

    Raises:
        UnsupportedError: a pipeline or checkpoint upstream's modules cannot run here.
        ConfigError: no such device or dtype, or less than one slot or thread.
    """
    spec = checkpoint.spec
    if spec.kind not in (PipelineKind.CODEC, PipelineKind.DUPLEX):
        raise UnsupportedError(f"the reference backend runs codec and duplex models, not {spec.kind}")
    check_slots(slots)
    torch_device, cpu_threads = pick_device(device), model_threads(threads)
    if torch_device.type == "cpu":
        torch.set_num_threads(cpu_threads)
    lm_dtype = loading.pick_dtype(dtype, torch_device)
    mimi = loading.load_mimi(checkpoint, torch_device)
    lm = None
    if spec.kind is PipelineKind.DUPLEX:
        assert spec.lm is not None
        model = loading.load_lm(checkpoint, torch_device, lm_dtype)
        lm = DuplexLM(model, spec.lm, slots, condition=loading.sum_condition(model, spec.family))
    return ReferenceBackend(spec, mimi, lm, slots=slots)
