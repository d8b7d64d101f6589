"""Makes a recogniser of stt-1b's size with random weights, as a folder of graphs for the server.

    python -m lab.bench.stt_folder out/bench/stt-1b-int8
    python -m lab.bench.model_capacity out/bench/stt-1b-int8 --start 1 --limit 1 --runs 1 \\
        --backend-option threads=2 --backend-option spin=true
    python -m lab.bench.stt_folder out/bench/stt-1b-int4 --recipe int4

The graphs are those of `lab.bench.cpu_models --only onnx`, reused or exported: the encoder with the 32
codebooks of stt-1b's input, and its step. Its transcripts have no meaning; its cost is that of the real
model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from antiphon.models.checkpoint import read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    CodecEntry,
    Manifest,
    file_entry,
    graph_from_json,
    write_manifest,
)
from antiphon.models.source import Folder
from antiphon_quantize.onnx_target import backend_format, graph_files
from antiphon_quantize.recipe import load_recipe
from lab.bench.harness import tell
from lab.bench.onnx_models import EXPORTS, export
from lab.bench.seeded_models import MODELS, upstream_mimi
from tests.support.make_checkpoint import train_tokenizer

STAGES: Final = {"encode": "listener", "lm": "lm"}
"""The exported model of each graph."""
TIMING: Final = {"audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 0.0}
TOKENIZER_NAME: Final = "tokenizer.model"
MIMI_NAME: Final = "mimi.safetensors"
SOURCES: Final = {"tokenizer": TOKENIZER_NAME, "mimi": MIMI_NAME}
"""A manifest names its Mimi, whose shape is read from its weights: random ones, as those of the graphs."""
PIECES: Final = 256
"""Pieces of the tokenizer: transcripts have no meaning, and other tokens are not words."""


def make_folder(out: Path, graphs: Path, recipe_name: str) -> Manifest:
    """Write the model's folder ``out``, and return its manifest; graphs are linked from ``graphs``, and
    exported if missing."""
    out.mkdir(parents=True, exist_ok=True)
    forms = {}
    for stage, model in STAGES.items():
        folder = graphs / f"{model}-full"
        export(MODELS[folder.name], folder, EXPORTS[model])
        for path in (folder / recipe_name).glob(f"{stage}.onnx*"):
            (out / path.name).unlink(missing_ok=True)
            os.link(path, out / path.name)
        table = folder / recipe_name / f"{stage}.json"
        form = graph_from_json(json.loads(table.read_text()), stage)
        forms[stage] = replace(form, file=f"onnx.{stage}")
    (out / TOKENIZER_NAME).write_bytes(train_tokenizer(PIECES))
    listener, lm = (MODELS[f"{model}-full"] for model in STAGES.values())
    weights = upstream_mimi(listener.codebooks, listener.config).state_dict()
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}, out / MIMI_NAME
    )
    sources = {role: file_entry(out, name) for role, name in SOURCES.items()}
    files = {role: file_entry(out, name) for role, name in graph_files(out, forms)}
    manifest = Manifest(
        name=out.name,
        family="stt",
        files={**sources, **files},
        mimi=CodecEntry(listener.codebooks, listener.config),
        lm=lm.config,
        generation={"stt_config": TIMING, "lm_gen_config": {"temp": 0.0, "temp_text": 0.0}},
        backends={"onnx": backend_format(files, load_recipe("onnx", recipe_name))},
        graphs=forms,
        description="Random weights.",
    )
    write_manifest(manifest, out / MANIFEST_NAME)
    read_checkpoint(Folder(out), str(out))
    return manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder; its name is the model's")
    parser.add_argument("--recipe", default="int8", choices=("int8", "int4"), help="[%(default)s]")
    parser.add_argument("--graphs", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    options = parser.parse_args(argv)
    make_folder(options.out, options.graphs, options.recipe)
    size_bytes = sum(path.stat().st_size for path in options.out.iterdir())
    tell(f"{options.out}: {size_bytes / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
