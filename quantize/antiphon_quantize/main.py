"""``antiphon quantize``: a checkpoint in fewer bits, or as graphs, described by its manifest."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from antiphon import __version__
from antiphon.errors import MissingExtraError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint, read_checkpoint
from antiphon.models.manifest import (
    MANIFEST_NAME,
    BackendFormat,
    Manifest,
    QuantizationRecipe,
    file_entry,
    sha256,
    write_manifest,
)
from antiphon.models.source import Folder
from antiphon.models.weights import read_header
from antiphon_quantize.folder import appearing, check_target
from antiphon_quantize.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from antiphon_quantize.torch_target import Progress, Rounding

EXAMPLES = """\
examples:
  antiphon quantize --model hf://kyutai/moshiko-pytorch-bf16 ./moshiko-int8
  antiphon quantize --target torch --recipe int8 --model ./moshiko ./moshiko-int8
  antiphon quantize --recipe mine.toml --model ./moshiko ./moshiko-mine --force
  antiphon quantize --target mlx --recipe q4 --model ./moshiko ./moshiko-mlx-q4
  antiphon quantize --target onnx --recipe float32 --model ./stt-1b ./stt-1b-onnx
  antiphon serve --model ./moshiko-int8

A recipe says which tensors are rounded, and why the others are not; our own are in the package, in
antiphon_quantize/recipes. OUT appears when it is complete, and is a model like any other.
"""

TARGETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch", "torchao")),
    "onnx": ("quantize", ("torch", "onnx", "onnxscript")),
    "mlx": ("mlx", ("mlx",)),
}
"""By backend: the pip extra that brings what its target needs, and the modules that are."""

NAMES: Mapping[str, str] = {
    "lm": "model.safetensors",
    "mimi": "mimi.safetensors",
    "tokenizer": "tokenizer.model",
    "mimi_config": "mimi_config.json",
}
"""What the files of each role are called in OUT."""

DTYPES: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def main(argv: Sequence[str]) -> int:
    """Make a checkpoint; returns the exit code.

    Raises:
        AntiphonError: something cannot be read, quantised or written; OUT is then as it was.
    """
    options = _parse(argv)
    extra, modules = TARGETS[options.target]
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError("antiphon quantize", extra=extra, module=module)
    recipe = load_recipe(options.target, options.recipe)
    checkpoint = load_checkpoint(options.model)
    out = Path(options.out).absolute()
    check_target(out, source=checkpoint.root, force=options.force)
    write = quantize
    if options.target == "onnx":
        from antiphon_quantize.onnx_target import quantize as write
    elif options.target == "mlx":
        from antiphon_quantize.mlx_target import quantize as write
    print(write(checkpoint, recipe, options.recipe, out, _progress(sys.stderr)))  # noqa: T201
    return 0


def quantize(checkpoint: Checkpoint, recipe: Recipe, recipe_name: str, out: Path, progress: Progress) -> str:
    """Write ``checkpoint`` as the recipe says into the new folder ``out``. Returns a summary in words.

    Raises:
        UnsupportedError: no language model, INT8 already, or with a LoRA.
        ConfigError: ``out`` cannot be written.
    """
    from antiphon_quantize.torch_target import make_plan, write_rounded

    if checkpoint.spec.lm is None:
        raise UnsupportedError(f"{checkpoint.spec.name} has no language model; there is nothing to quantize")
    if "lora" in checkpoint.files:
        raise UnsupportedError(f"{checkpoint.spec.name} has a LoRA; merge it into the weights first")
    plan = make_plan(checkpoint.file("lm"), recipe)
    copied = {role: checkpoint.files[role] for role in NAMES if role != "lm" and role in checkpoint.files}
    before, after = plan.bytes
    room_bytes = after + sum(path.stat().st_size for path in copied.values())
    with appearing(out, room_bytes=room_bytes) as folder:
        rounding = write_rounded(checkpoint.file("lm"), folder / NAMES["lm"], plan, progress)
        for role, path in copied.items():
            shutil.copyfile(path, folder / NAMES[role])
        manifest = _manifest(checkpoint, recipe, recipe_name, folder)
        write_manifest(manifest, folder / MANIFEST_NAME)
        read_checkpoint(Folder(folder), str(out))
    return (
        f"{out}: {len(plan.chosen)} of {len(plan.before)} tensors are INT8, {before / 1e6:,.1f} MB became "
        f"{after / 1e6:,.1f} MB. {_error_line(rounding)}"
    )


def _error_line(rounding: Rounding) -> str:
    return (
        f"Rounding moved the weights by {rounding.mean_error:.2%}, at most by {rounding.worst_error:.2%} "
        f"({rounding.worst_name})."
    )


def _manifest(checkpoint: Checkpoint, recipe: Recipe, recipe_name: str, folder: Path) -> Manifest:
    """The manifest of what lies in ``folder``. Reads and hashes every file."""
    spec, source = checkpoint.spec, checkpoint.manifest
    assert spec.lm is not None
    dtype = DTYPES[read_header(folder / NAMES["lm"])["text_emb.weight"].dtype]
    backend = BackendFormat(("lm", "mimi"), dtype, requires={"torch": "2.9"}, options=recipe.options)
    files = {role: file_entry(folder, name) for role, name in NAMES.items() if (folder / name).is_file()}
    return Manifest(
        name=f"{spec.name}-{Path(recipe_name).stem}",
        family=spec.family,
        files=files,
        codebooks=spec.mimi.codebooks,
        mimi_config=spec.mimi.config,
        lm=spec.lm.config,
        generation=spec.generation,
        parameters=spec.parameters,
        backends={"torch": backend},
        quantization=QuantizationRecipe(
            scheme=recipe.scheme,
            bits=recipe.bits,
            keep=tuple(rule.tensors for rule in recipe.keep),
            source_sha256=sha256(checkpoint.file("lm")),
            tool=f"antiphon quantize {__version__}",
            options={"recipe": recipe_name, "quantize": [rule.tensors for rule in recipe.quantize]},
        ),
        description=recipe.description,
        license="" if source is None else source.license,
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="antiphon quantize",
        description="Make a smaller checkpoint: weights in fewer bits, by a recipe.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--model", required=True, help="a built-in name, a folder, or hf://owner/repo[@revision]"
    )
    parser.add_argument("--target", choices=TARGETS, default="torch", help="the backend it is for [torch]")
    parser.add_argument("--recipe", default="int8", help="a recipe's name, or its file (.toml) [int8]")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a checkpoint already")
    return parser.parse_args(list(argv))


def _progress(stream: TextIO) -> Progress:
    """Tells what is being written: on one line in a terminal, else nine lines in all."""
    is_terminal = stream.isatty()

    def show(done: int, total: int, what: str) -> None:
        if is_terminal:
            stream.write(f"\r\x1b[K{done}/{total} {what}" + ("\n" if done == total else ""))
        elif done * 8 // total > (done - 1) * 8 // total:
            stream.write(f"{done}/{total} {what}\n")
        stream.flush()

    return show
