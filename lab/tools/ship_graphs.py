"""Give built-in models their ONNX graphs: export them into the folders of the package and list them in the
manifests.

  python lab/tools/ship_graphs.py tiny echo tiny-stt tiny-tts --recipe int8     the built-in models
  python lab/tools/ship_graphs.py path/to/a/folder                              a folder with an antiphon.json

A model with another's codec (``../tiny/mimi.safetensors``) shares its graphs too; name the other one first.
The packages of the extra 'quantize' are needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from antiphon.models.catalog import builtin_folder, weights_folder
from antiphon.models.checkpoint import Checkpoint, read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    FileEntry,
    GraphFormat,
    Manifest,
    read_manifest,
    write_manifest,
)
from antiphon.models.source import BUILTIN, Folder
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon_quantize.onnx_target import backend_format, describe_graphs, write_graphs
from antiphon_quantize.recipe import Recipe, load_recipe


def ship_graphs(folder: Path, recipe: Recipe, recipe_name: str, weights: Path | None = None) -> Manifest:
    """Export the graphs of the model in ``folder`` into the same folder; writes its manifest and returns it.

    ``weights`` is the folder of its published weights, if it is not ``folder``.
    """
    source = Folder(folder, beside=weights)
    manifest = without_graphs(read_manifest(folder / MANIFEST_NAME))
    write_manifest(manifest, folder / MANIFEST_NAME)  # the old graphs may be missing, or another's, by now
    checkpoint = read_checkpoint(source, str(folder))
    graphs, files = shared_codec(folder, checkpoint)
    made, lines = write_graphs(checkpoint, folder, recipe, say, leave_out=graphs)
    described = describe_graphs(checkpoint, folder, made, files, recipe, recipe_name)
    graphs |= made
    manifest = replace(
        manifest,
        files={**manifest.files, **described.files},
        graphs=graphs,
        backends={**manifest.backends, "onnx": backend_format(described.files, recipe)},
        quantization=described.quantization or manifest.quantization,
    )
    write_manifest(manifest, folder / MANIFEST_NAME)
    read_checkpoint(source, str(folder))
    print(*[f"{folder}: {', '.join(graphs)}", *lines], sep="\n")
    return manifest


def without_graphs(manifest: Manifest) -> Manifest:
    """Return the manifest of the model without its graphs."""
    return replace(
        manifest,
        files={role: entry for role, entry in manifest.files.items() if not role.startswith("onnx.")},
        graphs={},
        backends={name: entry for name, entry in manifest.backends.items() if name != "onnx"},
    )


def shared_codec(folder: Path, checkpoint: Checkpoint) -> tuple[dict[str, GraphFormat], dict[str, FileEntry]]:
    """Return the graphs and files of the codec that a model shares with another model, if they fit it.

    Paths are relative to ``folder``. Both are empty for a model with a codec of its own.
    """
    assert checkpoint.manifest is not None
    beside = PurePosixPath(checkpoint.manifest.files["mimi"].path).parent
    if beside == PurePosixPath():
        return {}, {}
    other = read_manifest(folder / beside / MANIFEST_NAME)
    if not fits(other, checkpoint):
        return {}, {}
    graphs = {name: other.graphs[name] for name in codec_graphs(checkpoint.spec)}
    roles = {graph.file for graph in graphs.values()}
    return graphs, {
        role: replace(entry, path=str(beside / entry.path))
        for role, entry in other.files.items()
        if role.removesuffix(".data") in roles
    }


def fits(other: Manifest, checkpoint: Checkpoint) -> bool:
    """Return whether another model's graphs have as many input and output codebooks as this model needs."""
    return all(
        name in other.graphs and _codebooks(other.graphs[name]) == count
        for name, count in codec_graphs(checkpoint.spec).items()
    )


def codec_graphs(spec: ModelSpec) -> Mapping[str, int]:
    """Return the graphs of the codec that a model needs, and the number of codebooks of each."""
    spoken = spec.mimi.codebooks if spec.lm is None else spec.lm.dep_q
    needed = {"encode": spec.mimi.codebooks, "decode": spoken}
    unused = {PipelineKind.STT: "decode", PipelineKind.TTS: "encode"}.get(spec.kind)
    return {name: count for name, count in needed.items() if name != unused}


def _codebooks(graph: GraphFormat) -> int:
    return next(t.shape[0] for t in (*graph.inputs, *graph.outputs) if t.name == "codes")


def say(done: int, total: int, what: str) -> None:
    """Print the progress of the export, and what is exported now."""
    print(f"{done}/{total} {what}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help=f"{', '.join(BUILTIN)}, or a folder")
    parser.add_argument("--recipe", default="float32", help="[%(default)s]")
    options = parser.parse_args(argv)
    recipe = load_recipe("onnx", options.recipe)
    for model in options.models:
        if model in BUILTIN:
            ship_graphs(builtin_folder(model), recipe, options.recipe, weights_folder(model))
        else:
            ship_graphs(Path(model), recipe, options.recipe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
