"""A model in float32 graphs with the weights rounded by a recipe, without a new export."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from antiphon.errors import UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import MANIFEST_NAME, QuantizationRecipe, file_entry, write_manifest
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import Rule, load_recipe

ENCODER_CONVOLUTIONS = Rule(
    "*encoder.model.*.linear.weight", "an INT8 convolution of an encoder has bytes that count from -1"
)


def rounded(checkpoint: Checkpoint, recipe_name: str, folder: Path) -> Checkpoint:
    """A model whose graphs' weights are rounded as a recipe says, in a new folder; other files are copies.

    What a recipe changes in the export itself, ``int8_ring_bytes`` and ``int8_convolution_positions``, is
    left out: rings and the encoder's convolutions stay float32.

    Raises:
        UnsupportedError: it has no graphs, or they are quantised already.
    """
    manifest, recipe = checkpoint.manifest, load_recipe("onnx", recipe_name)
    recipe = replace(recipe, keep=(*recipe.keep, ENCODER_CONVOLUTIONS))
    if manifest is None or not checkpoint.graphs:
        raise UnsupportedError(
            f"{checkpoint.ref} has no graphs: antiphon quantize --target onnx --recipe float32"
        )
    folder.mkdir(parents=True)
    graphs = {form.file for form in checkpoint.graphs.values()}
    entries = {}
    for role, path in checkpoint.files.items():
        target = folder / path.name
        if role in graphs:
            quantize_graph(path, target, recipe)
        elif not path.name.endswith(".onnx.data"):
            shutil.copyfile(path, target)
        if target.exists():
            entries[role] = file_entry(folder, target.name)
    made = QuantizationRecipe(recipe.scheme, recipe.bits, recipe.group_size, options={"recipe": recipe_name})
    name = f"{manifest.name}-{Path(recipe_name).stem}"
    write_manifest(replace(manifest, name=name, files=entries, quantization=made), folder / MANIFEST_NAME)
    return load_checkpoint(str(folder))
