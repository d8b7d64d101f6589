"""Making the onnx backend for a checkpoint: its graphs, found, loaded and held against the manifest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from antiphon.backends.checks import check_slots
from antiphon.backends.executor import ExecutorFacts
from antiphon.backends.onnx.executor import OnnxBackend, OnnxFrames, OnnxTexts
from antiphon.backends.onnx.graph import check_graph
from antiphon.backends.onnx.runtime import onnxruntime
from antiphon.backends.onnx.sessions import Opener, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.threads import model_threads
from antiphon.backends.tts import TtsBackend
from antiphon.errors import CheckpointFormatError
from antiphon.models.speaker import SpeakerShape
from antiphon.models.spec import ModelSpec, PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

VOICE: Final = "voice"
"""The graph that turns voices into what a tts row remembers of them."""

APART_BYTES: Final = 150_000_000
"""The largest graph that is loaded once more, for parts of a tick at the same time: Mimi's, with the 32
codebooks of a recogniser too (109 MB in INT8), and not a language model of a thousand million weights, whose
products are long enough for several threads each."""


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    threads: int | None = None,
    spin: bool | None = None,
) -> OnnxBackend | TtsBackend:
    """Load a checkpoint's graphs.

    ``device`` is "cpu" (also None), "cuda", "cuda:N" or "coreml"; ``threads`` is how many a step may use on
    a CPU (None: all cores it may use but one), and ``spin`` whether they keep their cores while a step runs
    (None: where that is measured to be faster).

    Raises:
        CheckpointFormatError: a graph is missing, or not what the manifest says.
        ConfigError: no such device, or less than one slot or thread.
    """
    spec = checkpoint.spec
    check_slots(slots)
    name, providers = pick_provider(device)
    cpu_threads = model_threads(threads)
    pool = ThreadPoolExecutor(cpu_threads - 1, "antiphon-rows") if cpu_threads > 1 and name == "cpu" else None
    made, weight_bytes = {}, 0
    for stage in stages(spec):
        if stage not in checkpoint.graphs:
            raise CheckpointFormatError(
                f"{spec.name} has no graph '{stage}', it has {', '.join(checkpoint.graphs)}"
            )
        form = checkpoint.graphs[stage]
        path = checkpoint.file(form.file)
        file_bytes = sum(p.stat().st_size for r, p in checkpoint.files.items() if r.startswith(form.file))
        others = pool if stage != VOICE and file_bytes <= APART_BYTES else None
        opener = Opener(path, providers, cpu_threads, spin if pool else False, others, file_bytes)
        session = opener.open(spin=bool(opener.spin))
        check_graph(session, form, path)
        made[stage] = Stage(session, form, 1, opener)
        weight_bytes += file_bytes * (1 if others is None else 2)
    wanted, recipe = checkpoint.backends.get("onnx"), checkpoint.quantization_for("onnx")
    facts = ExecutorFacts(
        name="onnx",
        device=name,
        dtype=(wanted.dtype if wanted is not None else None) or "float32",
        quantization="none" if recipe is None else recipe.scheme,
        versions={"onnxruntime": onnxruntime.__version__},
        memory={"weights": weight_bytes},
    )
    if spec.kind is PipelineKind.TTS:
        voice = made.pop(VOICE, None)
        return TtsBackend(spec, OnnxTexts(spec, made, facts, voice), slots=slots)
    return OnnxBackend(spec, OnnxFrames(spec, made, facts), slots=slots)


def stages(spec: ModelSpec) -> tuple[str, ...]:
    """The graphs a model of this shape needs."""
    if spec.lm is None:
        return ("encode", "decode")
    if spec.kind is PipelineKind.STT:
        return ("encode", "lm")
    if spec.kind is PipelineKind.TTS:
        spoken = ("lm", "depformer", "decode")
        return spoken if SpeakerShape.of(spec) is None else (VOICE, *spoken)
    return ("encode", "lm", "depformer", "decode")
