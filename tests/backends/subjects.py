"""The backends under the contract, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from antiphon.backends.base import Backend, FloatArray
from antiphon.backends.null import STAMP_SAMPLES
from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind
from tests.backends.contract import Subject
from tests.backends.onnx.exports import exported, exported_pocket
from tests.support.int4 import BLOCK, nearest_int4
from tests.support.make_checkpoint import make_checkpoint
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint
from tests.support.small_models import SMALL
from tests.support.stamp import read_stamp

CONTEXT = 12
"""Frames of a language model; Mimi's are 8 (16 steps at 25 Hz)."""


def blank_life(pcm: FloatArray) -> FloatArray:
    """Replace a null frame's stamp by what it says of the input, leaving out which session it is."""
    stamp = read_stamp(pcm)
    said = np.array([stamp.frame, stamp.frame_hash, stamp.history], dtype=np.uint32)
    return np.concatenate([said.view(np.uint16).astype(np.float32), pcm[STAMP_SAMPLES:]])


def null_spec(kind: PipelineKind) -> ModelSpec:
    mimi = MimiSpec(sample_rate=24000, frame_rate=12.5, codebooks=8, cardinality=512)
    delays = (0, 0, *[1] * 7, 0, *[1] * 7)
    lm = LMSpec(
        dim=32, num_layers=1, num_heads=1, context=8, n_q=16, dep_q=8, card=512, text_card=100, delays=delays
    )
    if kind is PipelineKind.STT:
        lm = replace(lm, delays=(0,) * 17, extra_heads=4)
    elif kind is PipelineKind.TTS:
        lm = replace(lm, config={"conditioners": {"speaker_wavs": {"tensor": {"dim": 4}}}})
    generation = {
        "stt_config": {"audio_delay_seconds": 0.24},
        "tts_config": {"audio_delay": 0.16, "speaker_frames": 3, "second_stream_ahead": 2},
    }
    has_lm = kind is not PipelineKind.CODEC
    return ModelSpec(f"null {kind}", kind, "test", mimi, lm if has_lm else None, generation=generation)


def make_null(spec: ModelSpec, slots: int) -> Backend:
    return make_backend("null", Checkpoint(spec, spec.name, Path("/nowhere"), {}), slots=slots)


def null(kind: PipelineKind) -> Subject:
    return Subject(
        f"null {kind}",
        lambda slots: make_null(null_spec(kind), slots),
        wrap_frames=20,
        comparable=blank_life,
        samples=False,
    )


def model(
    name: str, kind: str, folders: pytest.TempPathFactory, context: int = CONTEXT, **more: object
) -> Subject:
    """A backend of the table, running a small seeded checkpoint on one thread of the CPU, in float32."""
    folder = make_checkpoint(folders.mktemp(name) / kind, kind=kind, context=context)
    return served(name, kind, folder, context, **more)


def served(name: str, kind: str, folder: Path, context: int, **more: object) -> Subject:
    """The same, of the checkpoint in a folder."""
    checkpoint = load_checkpoint(str(folder))
    options: dict[str, object] = {"dtype": "float32", **more}
    if name != "mlx":  # which has no say in its threads
        options["threads"] = 1
    return Subject(
        f"{name} {kind}",
        lambda slots: make_backend(name, checkpoint, slots=slots, device="cpu", options=options),
        wrap_frames=context + min(context, 3 * CONTEXT) + 4,
        pcm_tolerance=2e-6,
        grows="overcommit" in more,  # by less than a byte a row
    )


def four_bit(folders: pytest.TempPathFactory) -> Subject:
    """The torch backend with INT4 weights, rounded inputs, keys in 8 bits and values in 4.

    Rows are of whole blocks.
    """
    folder = make_checkpoint(folders.mktemp("w4a8") / "moshi", context=CONTEXT, dim=64, hidden_scale=4.5)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if "transformer.layers" in name or "depformer.layers" in name]:
        if tensors[name].dim() == 2 and tensors[name].shape[1] % BLOCK == 0:
            packed, scale = nearest_int4(tensors[name])
            tensors |= {name: packed, f"{name}_scale": scale}
    save_file(tensors, path)
    return served("torch", "moshi", folder, CONTEXT, activations="int8", kv="int8-int4")


def graphs(kind: str, *, int8_ring_bytes: int | None = None) -> Subject:
    """The onnx backend, running the graphs of a small seeded checkpoint on one thread."""
    checkpoint = exported(kind, int8_ring_bytes=int8_ring_bytes)
    return Subject(
        f"onnx {kind}",
        lambda slots: make_backend("onnx", checkpoint, slots=slots, options={"threads": 1}),
        wrap_frames=2 * SMALL["context"] + 4,
        pcm_tolerance=2e-6,
    )


def pocket(folders: pytest.TempPathFactory) -> Subject:
    """A small model in the package's own format, whose chunks are single sentences."""
    checkpoint = load_checkpoint(str(make_pocket_checkpoint(folders.mktemp("pocket") / "small")))
    options = {"threads": 1, "chunk_tokens": 1}
    return Subject(
        "pocket tts",
        lambda slots: make_backend("pocket", checkpoint, slots=slots, options=options),
        wrap_frames=30,  # an utterance's ring ends with it
        grows=True,
        ignores=("audio_topk",),
    )


def pocket_graphs() -> Subject:
    """The graphs of that model, whose chunks are single sentences."""
    checkpoint, options = exported_pocket(), {"threads": 1, "chunk_tokens": 1}
    return Subject(
        "onnx pocket",
        lambda slots: make_backend("onnx", checkpoint, slots=slots, options=options),
        wrap_frames=30,
        pcm_tolerance=5e-6,
        ignores=("audio_topk",),
    )


SUBJECTS: Mapping[str, Callable[[pytest.TempPathFactory], Subject]] = {
    "null-codec": lambda folders: null(PipelineKind.CODEC),
    "null-duplex": lambda folders: null(PipelineKind.DUPLEX),
    "null-stt": lambda folders: null(PipelineKind.STT),
    "null-tts": lambda folders: null(PipelineKind.TTS),
    "reference-codec": lambda folders: model("reference", "codec", folders),
    "reference-duplex": lambda folders: model("reference", "moshi", folders),
    "onnx-codec": lambda folders: graphs("codec"),
    "onnx-duplex": lambda folders: graphs("moshi"),
    "onnx-stt": lambda folders: graphs("stt", int8_ring_bytes=0),
    "onnx-tts": lambda folders: graphs("tts"),
    "onnx-pocket": lambda folders: pocket_graphs(),
    "mlx-codec": lambda folders: model("mlx", "codec", folders),
    "mlx-duplex": lambda folders: model("mlx", "moshi", folders),
    "mlx-stt": lambda folders: model("mlx", "stt", folders),
    "mlx-tts": lambda folders: model("mlx", "tts", folders),
    "pocket-tts": pocket,
    "torch-codec": lambda folders: model("torch", "codec", folders),
    "torch-duplex": lambda folders: model("torch", "moshi", folders),
    # The form of the shipped deployments, in two pages a row, of which rows share four fifths.
    "torch-duplex-int8": lambda folders: model(
        "torch", "moshi", folders, PAGE_SLOTS + 1, kv="int8", overcommit=1.25
    ),
    "torch-stt": lambda folders: model("torch", "stt", folders),
    "torch-tts": lambda folders: model("torch", "tts", folders),
}

PACKED: Mapping[str, Callable[[pytest.TempPathFactory], Subject]] = {
    "torch-duplex-int4": lambda folders: model("torch", "moshi", folders, kv="int4"),
    "torch-duplex-w4a8": four_bit,
}
"""Subjects of a part of the contract, which a form of rings or weights can break: neighbours, snapshots and
prompts."""

packed_too = pytest.mark.parametrize("subject", [*SUBJECTS, *PACKED], indirect=True)
