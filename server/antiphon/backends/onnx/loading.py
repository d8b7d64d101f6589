"""Makes the onnx backend for a checkpoint's graphs: sessions, threads, and the host for its pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from antiphon.backends.base import BackendInfo
from antiphon.backends.host import HostBackend
from antiphon.backends.machine import model_threads
from antiphon.backends.onnx.executor import OnnxFrames, OnnxTexts
from antiphon.backends.onnx.graph import check_graph
from antiphon.backends.onnx.pocket import OnnxUtterances, UtteranceBackend
from antiphon.backends.onnx.sessions import Opener, onnxruntime, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.tts import TtsBackend
from antiphon.cores import usable_cores
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.pocket_shape import CHUNK_TOKENS, MAX_CHUNK_TOKENS, PocketShape, PocketText
from antiphon.models.published import POCKET
from antiphon.models.spec import ModelSpec, PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

VOICE: Final = "voice"
"""The graph that turns voices into state of a tts row."""

READ: Final = "read"
"""The graph that reads a text or a voice for a row of Pocket-TTS, on the state of "lm"."""
ALONE: Final = (VOICE, READ)
"""Graphs that run one row at a time."""
SHARED: Final = (READ, "lm")
"""Graphs of Pocket-TTS that share state, which is stored once."""

SPLIT_BYTES: Final = 150_000_000
"""Maximum bytes of a graph that is loaded twice, to run parts of a tick at the same time. Mimi's graphs are
smaller, also with a recogniser's 32 codebooks (109 MB in INT8). A language model of a thousand million
weights is larger; its products are long enough for several threads.
"""


SHORT_BYTES: Final = 16_000_000
"""Maximum bytes of each graph of a model with short products: several threads on one product would wait for
each other longer than they compute (docs/adr/0021-ready-rows.md).
"""


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    threads: int | None = None,
    spin: bool | None = None,
    chunk_tokens: int | None = None,
) -> HostBackend | TtsBackend | UtteranceBackend:
    """Load a checkpoint's graphs and return its backend.

    ``device`` is "cpu" (also None), "cuda", "cuda:N" or "coreml". ``threads`` is the number for a step on a
    CPU (None: all usable cores if every graph is short, otherwise all but one), and ``spin`` whether waiting
    threads spin during a step (None: if a measurement shows that it is faster). ``chunk_tokens`` is the
    maximum number of tokens in a chunk of Pocket-TTS.

    Raises:
        CheckpointFormatError: a graph is missing, or differs from the manifest. ConfigError: the device does
        not exist, there is less than one slot or thread, or ``chunk_tokens`` is invalid or given for another
        model.
    """
    spec = checkpoint.spec
    is_pocket = spec.family == POCKET
    if chunk_tokens is not None and not (is_pocket and 1 <= chunk_tokens <= MAX_CHUNK_TOKENS):
        raise ConfigError(
            f"chunk_tokens is {chunk_tokens}; it can be 1 to {MAX_CHUNK_TOKENS}, for Pocket-TTS only"
        )
    name, providers = pick_provider(device)
    sizes = graph_bytes(checkpoint)
    is_short = name == "cpu" and has_short_products(sizes)
    cpu_threads = usable_cores() if threads is None and is_short else model_threads(threads)
    pool = ThreadPoolExecutor(cpu_threads - 1, "antiphon-rows") if cpu_threads > 1 and name == "cpu" else None
    openers = {}
    for stage, file_bytes in sizes.items():
        path = checkpoint.file(checkpoint.graphs[stage].file)
        others = pool if stage not in ALONE and file_bytes <= SPLIT_BYTES else None
        spins = spin if pool else False
        openers[stage] = Opener(path, providers, cpu_threads, spins, others, file_bytes, is_short)
    made = {}
    for (stage, opener), session in zip(openers.items(), _open(openers.values()), strict=True):
        form = checkpoint.graphs[stage]
        check_graph(session, form, opener.path)
        made[stage] = Stage(session, form, 1, opener, packs=not (is_pocket and stage in SHARED))
    wanted, recipe = checkpoint.backends.get("onnx"), checkpoint.quantization_for("onnx")
    facts = BackendInfo(
        name="onnx",
        device=name,
        spec=spec,
        dtype=(wanted.dtype if wanted is not None else None) or "float32",
        quantization="none" if recipe is None else recipe.scheme,
        versions={"onnxruntime": onnxruntime.__version__},
        memory={"weights": sum(stage.weight_bytes for stage in made.values())},
        cpu_threads=cpu_threads if name == "cpu" else 0,
        splits_rows=is_short and cpu_threads > 1,
        chooses_threads=any(stage.is_timed for stage in made.values()),
    )
    if is_pocket:
        return UtteranceBackend(
            _utterances(checkpoint, made, facts, chunk_tokens or CHUNK_TOKENS), slots=slots
        )
    if spec.kind is PipelineKind.TTS:
        voice = made.pop(VOICE, None)
        return TtsBackend(spec, OnnxTexts(spec, made, facts, voice), slots=slots)
    return HostBackend(spec, OnnxFrames(spec, made, facts), slots=slots)


def graph_bytes(checkpoint: Checkpoint) -> dict[str, int]:
    """The bytes of each stage's graph, with its data files.

    Raises:
        CheckpointFormatError: a graph is missing.
    """
    found = {}
    for stage in stages(checkpoint.spec):
        form = checkpoint.graphs.get(stage)
        if form is None:
            raise CheckpointFormatError(
                f"{checkpoint.spec.name} has no graph '{stage}', it has {', '.join(checkpoint.graphs)}"
            )
        files = checkpoint.files.items()
        found[stage] = sum(path.stat().st_size for role, path in files if role.startswith(form.file))
    return found


def has_short_products(sizes: Mapping[str, int]) -> bool:
    """Whether the products of a model with graphs of these sizes are too short for several threads."""
    return max(sizes.values()) <= SHORT_BYTES


def _open(openers: Collection[Opener]) -> list[onnxruntime.InferenceSession]:
    """A session of each graph. On a CPU small graphs are prepared at the same time, one on each core."""
    is_small = all(it.file_bytes <= SPLIT_BYTES and len(it.providers) == 1 for it in openers)
    with ThreadPoolExecutor(min(len(openers), usable_cores()) if is_small else 1) as threads:
        return list(threads.map(lambda opener: opener.open(spin=bool(opener.spin)), openers))


def _utterances(
    checkpoint: Checkpoint, made: dict[str, Stage], facts: BackendInfo, chunk_tokens: int
) -> OnnxUtterances:
    tokenizer = checkpoint.text_tokenizer()
    if tokenizer is None:
        raise CheckpointFormatError(f"{checkpoint.spec.name} has no tokenizer")
    text = PocketText.of(checkpoint.spec, tokenizer.encode)
    return OnnxUtterances(made, made.pop(READ), facts, text, chunk_tokens=chunk_tokens)


def stages(spec: ModelSpec) -> tuple[str, ...]:
    """The names of the graphs that a model of this spec needs."""
    if (pocket := PocketShape.of(spec)) is not None:
        return (*(("encode",) if pocket.clones else ()), READ, "lm", "decode")
    if spec.lm is None:
        return ("encode", "decode")
    if spec.kind is PipelineKind.STT:
        return ("encode", "lm")
    if spec.kind is PipelineKind.TTS:
        spoken = ("lm", "depformer", "decode")
        return spoken if SpeakerShape.of(spec) is None else (VOICE, *spoken)
    return ("encode", "lm", "depformer", "decode")
