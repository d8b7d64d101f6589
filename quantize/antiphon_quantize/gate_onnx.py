"""The onnx backend under judgement: its own graphs, and the depformer's with its logits laid open.

The depformer's graph chooses tokens itself, by a race that begins with a TopK of the logits
(:func:`antiphon_quantize.onnx_modules.race`). So the first inputs of its TopK nodes, in order, are the logits
of its codebooks; and a token wins whose noise is larger than anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
import onnxruntime

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.onnx.backend import OnnxBackend
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.language import Language
from antiphon.backends.onnx.sessions import pick_provider
from antiphon.errors import CheckpointFormatError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.delays import DelayCache
from antiphon.models.graphs import GraphFormat, TensorFormat
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec
from antiphon_quantize.gate_subject import Codes, StepCollector, Thoughts

SURE: Final = np.float32(1e30)
"""Noise with which a token wins against all others."""


class OnnxJudged:
    """See :class:`antiphon_quantize.gate_subject.Judged`."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        """Take over a backend that was just made of ``checkpoint``."""
        self._backend, self._spec = cast("OnnxBackend", backend), checkpoint.spec
        self._graphs = self._backend.graphs
        self._open: Graph | None = None
        if "depformer" in self._graphs:
            form = checkpoint.graphs["depformer"]
            self._open = open_depformer(checkpoint.file(form.file), form, backend)

    @property
    def backend(self) -> Backend:
        """See the protocol."""
        return self._backend

    def _fresh(self, stage: str) -> Graph:
        graph = self._graphs[stage]
        graph.state.reset(range(self._backend.info.slots))
        graph.inputs["exec"][:] = True
        return graph

    def encode(self, pcm: FloatArray) -> Codes:
        """See the protocol."""
        graph, codes = self._fresh("encode"), []
        for frame in np.split(pcm, pcm.shape[1] // self._spec.frame_samples, axis=1):
            graph.inputs["pcm"][: len(pcm)] = frame
            graph.run(len(pcm))
            codes.append(graph.outputs["codes"][: len(pcm)].copy())
        return np.stack(codes, axis=1)

    def decode(self, codes: Codes) -> FloatArray:
        """See the protocol."""
        graph, heard = self._fresh("decode"), []
        for frame in codes.swapaxes(0, 1):
            graph.inputs["codes"][: len(codes)] = frame
            graph.run(len(codes))
            heard.append(graph.outputs["pcm"][: len(codes)].copy())
        return np.concatenate(heard, axis=1)

    def answer(self, heard: Codes, parameters: Sequence[SamplingParameters]) -> Codes:
        """See the protocol."""
        spec, rows = self._lm(), len(heard)
        graph = self._fresh("lm")
        language = Language(spec, graph, self._graphs.get("depformer"), self._backend.info.slots)
        for row, own in enumerate(parameters):
            language.set_parameters(row, own)
        everyone, said = np.ones(rows, np.bool_), []
        for frame in heard.swapaxes(0, 1):
            spoken = language.step(frame, everyone, lambda _: None)
            said.append(np.concatenate([spoken.text_tokens[:, None], spoken.codes], axis=1))
        return np.stack(said[spec.max_delay :], axis=1).astype(np.int64)

    def think(self, heard: Codes, said: Codes) -> Thoughts:
        """See the protocol."""
        spec, rows = self._lm(), len(heard)
        graph, delays, collector = self._fresh("lm"), DelayCache(spec, rows), StepCollector(spec)
        everyone = np.ones(rows, np.bool_)
        for index, frame in enumerate(heard.swapaxes(0, 1)):
            graph.inputs["tokens"][:rows] = delays.inputs(frame.astype(np.int32), everyone)
            graph.run(rows)
            tokens = collector.forced(said, index).astype(np.int32)
            voice = self._voice(graph.outputs["hidden"][:rows], tokens)
            pauses = graph.outputs.get("pauses", np.zeros((rows, 0), np.float32))[:rows].copy()
            collector.add(graph.outputs["logits"][:rows].copy(), voice, pauses)
            delays.outputs(tokens[:, 0], tokens[:, 1:], everyone)
        return collector.thoughts()

    def _voice(
        self, hidden: FloatArray, tokens: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    ) -> FloatArray:
        """Logits ``[n, dep_q, card]`` of a frame in which ``tokens [n, 1 + dep_q]`` are said."""
        rows, graph, spec = len(hidden), self._open, self._lm()
        if graph is None:
            return np.zeros((rows, 0, spec.card), np.float32)
        graph.inputs["hidden"][:rows], graph.inputs["text"][:rows] = hidden, tokens[:, 0]
        graph.inputs["inverse_temperature"][:rows], graph.inputs["topk"][:rows] = 1, spec.card
        noise = graph.inputs["noise"][:rows]
        noise[:] = 0
        np.put_along_axis(noise, tokens[:, 1:, None].astype(np.int64), SURE, axis=2)
        graph.run(rows)
        return np.stack([graph.outputs[_logits(k)][:rows] for k in range(spec.dep_q)], axis=1)

    def _lm(self) -> LMSpec:
        assert self._spec.lm is not None
        return self._spec.lm


def _logits(codebook: int) -> str:
    return f"gate.logits.{codebook}"


def open_depformer(path: Path, form: GraphFormat, backend: Backend) -> Graph:
    """The depformer's graph with its logits as further outputs, for the backend's rows.

    Raises:
        CheckpointFormatError: it does not begin its choices as ours do.
    """
    model = onnx.load(str(path), load_external_data=False)
    races = [node.input[0] for node in model.graph.node if node.op_type == "TopK"]
    steps, card = form.input("noise").shape
    if len(races) != steps:
        raise CheckpointFormatError(f"{path} chooses {len(races)} times among the largest, not {steps} times")
    extra = []
    for codebook, race in enumerate(races):
        name = _logits(codebook)
        model.graph.node.append(onnx.helper.make_node("Identity", [race], [name]))
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", card])
        )
        extra.append(TensorFormat(name, "float32", (card,)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    providers = pick_provider(backend.info.device)[1]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return Graph(session, replace(form, outputs=(*form.outputs, *extra)), backend.info.slots)
