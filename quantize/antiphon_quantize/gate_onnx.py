"""Evaluates the onnx backend with its own graphs; the depformer's graph also outputs its logits.

The depformer's graph itself chooses tokens, by a race that begins with a TopK of the logits
(:func:`antiphon_quantize.onnx_modules.race`). The first inputs of its TopK nodes, in order, are therefore the
logits of its codebooks, and a token with very large noise is always chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx

from antiphon.backends.base import Backend, FloatArray, IntArray
from antiphon.backends.host import HostBackend
from antiphon.backends.onnx.executor import Language, OnnxFrames
from antiphon.backends.onnx.sessions import onnxruntime, pick_provider, session_options
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.stopwatch import Stopwatch
from antiphon.errors import CheckpointFormatError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.delays import DelayRings
from antiphon.models.manifest import GraphFormat, TensorFormat
from antiphon.models.sampling import SamplingParameters
from antiphon_quantize.gate_subject import Codes, Logits, StepCollector, known

SURE: Final = np.float32(1e30)
"""Noise with which a token is always chosen."""


class OnnxEvalModel:
    """An :class:`antiphon_quantize.gate_subject.EvalModel` on the onnx backend."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        """Take ownership of a new backend of ``checkpoint``."""
        self.backend, self._spec = backend, checkpoint.spec
        self._stages = cast("OnnxFrames", cast("HostBackend", backend).executor).stages
        self._open: Stage | None = None
        if "depformer" in self._stages:
            form = checkpoint.graphs["depformer"]
            self._open = open_depformer(checkpoint.file(form.file), form, backend)

    def _fresh(self, stage: str) -> Stage:
        self._stages[stage].state.reset(range(self.backend.info.slots))
        return self._stages[stage]

    def encode(self, pcm: FloatArray) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.encode`."""
        stage, rows = self._fresh("encode"), first(len(pcm))
        frames = np.split(pcm, pcm.shape[1] // self._spec.frame_samples, axis=1)
        return np.stack([stage.run(rows, {"pcm": frame})["codes"] for frame in frames], axis=1)

    def decode(self, codes: Codes) -> FloatArray:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.decode`."""
        stage, rows = self._fresh("decode"), first(len(codes))
        heard = [stage.run(rows, {"codes": frame})["pcm"] for frame in codes.swapaxes(0, 1)]
        return np.concatenate(heard, axis=1)

    def answer(self, input_codes: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.answer`."""
        spec, rows, watch, said = known(self._spec.lm), first(len(input_codes)), Stopwatch(), []
        language = Language(spec, self._fresh("lm"), self._stages.get("depformer"))
        for row, own in enumerate(parameters):
            language.sampler.set_parameters(row, own)
        for frame in input_codes.swapaxes(0, 1):
            text, outputs = language.read(rows, frame.astype(np.int32), watch)
            voice = language.speak(rows, text, outputs["hidden"], watch)
            said.append(language.delays.outputs(rows, text, voice)[0])
        return np.stack(said[spec.max_delay :], axis=1).astype(np.int64)

    def forced_logits(self, input_codes: Codes, forced_tokens: Codes) -> Logits:
        """See :meth:`antiphon_quantize.gate_subject.EvalModel.forced_logits`."""
        spec, rows = known(self._spec.lm), first(len(input_codes))
        stage, delays, collector = self._fresh("lm"), DelayRings(spec, rows.size), StepCollector(spec)
        for index, frame in enumerate(input_codes.swapaxes(0, 1)):
            outputs = stage.run(rows, {"tokens": delays.inputs(rows, frame.astype(np.int32))})
            tokens = collector.forced(forced_tokens, index).astype(np.int32)
            voice = self._voice(outputs["hidden"], tokens)
            pauses = outputs.get("pauses", np.zeros((rows.size, 0), np.float32))
            collector.add(outputs["logits"], voice, pauses)
            delays.outputs(rows, tokens[:, 0], tokens[:, 1:])
        return collector.logits()

    def _voice(self, hidden: FloatArray, tokens: IntArray) -> FloatArray:
        """Logits ``[n, dep_q, card]`` of a frame with the forced ``tokens [n, 1 + dep_q]``."""
        rows, spec = first(len(hidden)), known(self._spec.lm)
        if self._open is None:
            return np.zeros((rows.size, 0, spec.card), np.float32)
        noise = np.zeros((rows.size, spec.dep_q, spec.card), np.float32)
        np.put_along_axis(noise, tokens[:, 1:, None].astype(np.int64), SURE, axis=2)
        given = {"hidden": hidden, "text": tokens[:, 0], "noise": noise}
        outputs = self._open.run(rows, {**given, "inverse_temperature": 1, "topk": spec.card})
        return np.stack([outputs[_logits(k)] for k in range(spec.dep_q)], axis=1)


def first(count: int) -> IntArray:
    """The numbers of the first ``count`` rows of a backend."""
    return np.arange(count, dtype=np.int32)


def _logits(codebook: int) -> str:
    return f"gate.logits.{codebook}"


def open_depformer(path: Path, form: GraphFormat, backend: Backend) -> Stage:
    """The depformer's graph with its logits as additional outputs, for the backend's rows.

    Raises:
        CheckpointFormatError: its choices do not start with a TopK of the logits.
    """
    model = onnx.load(str(path), load_external_data=False)
    races = [node.input[0] for node in model.graph.node if node.op_type == "TopK"]
    steps, card = form.input("noise").shape
    if len(races) != steps:
        raise CheckpointFormatError(f"{path} has {len(races)} TopK nodes, its depformer has {steps} steps")
    extra = []
    for codebook, race in enumerate(races):
        name = _logits(codebook)
        model.graph.node.append(onnx.helper.make_node("Identity", [race], [name]))
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", card])
        )
        extra.append(TensorFormat(name, "float32", (card,)))
    options = session_options(1)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    providers = pick_provider(backend.info.device)[1]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return Stage(session, replace(form, outputs=(*form.outputs, *extra)), backend.info.slots)
