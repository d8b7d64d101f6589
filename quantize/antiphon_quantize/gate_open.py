"""Loads a checkpoint for the gate: one reader of logits a backend, imported with the backend's packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from antiphon.backends.registry import AUTO, make_backend, resolve_auto
from antiphon.errors import MissingExtraError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import PipelineKind
from antiphon_quantize.gate_subject import EvalModel, why_not


def open_eval_model(
    checkpoint: Checkpoint,
    backend: str,
    *,
    rows: int,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> EvalModel:
    """Load a checkpoint into a backend, to be judged.

    Raises:
        UnsupportedError: a pipeline or a backend whose thoughts are not read.
        MissingExtraError: the package that opens graphs is not installed.
        BackendError, CheckpointError, ConfigError: as :func:`antiphon.backends.registry.make_backend`.
    """
    name = resolve_auto(checkpoint) if backend == AUTO else backend
    if (reason := why_not(checkpoint.spec, name)) is not None:
        raise UnsupportedError(reason)
    if name == "onnx" and find_spec("onnx") is None:
        raise MissingExtraError("antiphon gate", extra="quantize", module="onnx")
    made = make_backend(name, checkpoint, slots=rows, device=device, options=options)
    if checkpoint.spec.kind is PipelineKind.TTS:
        from antiphon_quantize.gate_tts import TtsEvalModel

        return TtsEvalModel(checkpoint, made)
    if name == "torch":
        from antiphon_quantize.gate_torch import TorchEvalModel

        return TorchEvalModel(made)
    if name == "mlx":
        from antiphon_quantize.gate_mlx import MlxEvalModel

        return MlxEvalModel(made)
    from antiphon_quantize.gate_onnx import OnnxEvalModel

    return OnnxEvalModel(checkpoint, made)
