"""``antiphon quantize``: makes a checkpoint with fewer bits, or as graphs, with its manifest."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from antiphon.errors import ConfigError, DegradedError, MissingExtraError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.folder import Approve, approve_all, check_target, part_of
from antiphon_quantize.recipe import load_recipe

if TYPE_CHECKING:
    from antiphon.backends.base import Progress
    from antiphon.models.checkpoint import Checkpoint
    from antiphon_quantize.recipe import Recipe

    Write = Callable[[Checkpoint, Recipe, str, Path, Progress, Approve], str]

EXAMPLES = """\
examples:
  antiphon quantize --model hf://kyutai/moshiko-pytorch-bf16 ./moshiko-int8
  antiphon quantize --target torch --recipe int8 --model ./moshiko ./moshiko-int8
  antiphon quantize --recipe int4-awq --model ./moshiko ./moshiko-int4 --calibration speech/*.wav
  antiphon quantize --recipe mine.toml --model ./moshiko ./moshiko-mine --force
  antiphon quantize --target mlx --recipe q4 --model ./moshiko ./moshiko-mlx-q4
  antiphon quantize --target onnx --recipe float32 --model ./stt-1b ./stt-1b-onnx
  antiphon quantize --target onnx --model pocket://english ./pocket-onnx
  antiphon quantize --here ./stt-1b-int4 ./stt-1b-float32 --model ./stt-1b-int8 ./stt-1b-here
  antiphon quantize --gguf model.q8.gguf --model ./moshiko ./moshiko-int8
  antiphon serve --model ./moshiko-int8

A recipe lists the tensors to round, with reasons for the others; the built-in recipes are in
antiphon_quantize/recipes. OUT is created when it is complete. With target torch, a stopped run leaves
OUT.part, and the same command continues it. The quality gate compares OUT with the original (antiphon gate,
docs/gate.md); if it misses a limit of its recipe, OUT is not created and the exit code is 1.
"""

TARGETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "torch": ("torch", ("torch", "torchao")),
    "onnx": ("quantize", ("torch", "onnx", "onnxscript")),
    "mlx": ("mlx", ("mlx",)),
}
"""By backend: the pip extra that its target needs, and the modules of that extra."""


def main(argv: Sequence[str]) -> int:
    """Make a checkpoint; returns the exit code: 1 if the gate rejects it.

    Raises:
        AntiphonError: a file cannot be read, quantised or written; OUT is then unchanged.
    """
    options = parse(argv)
    if options.here:
        return _choose(options)
    extra, modules = TARGETS[options.target]
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError("antiphon quantize", extra=extra, module=module)
    recipe = load_recipe(options.target, options.recipe)
    checkpoint = load_checkpoint(options.model)
    out = Path(options.out).absolute()
    check_target(out, source=checkpoint.root, force=options.force)
    progress = show_progress(sys.stderr, time.monotonic)
    with _language_model(options.gguf, checkpoint, out, progress) as source:
        return _make(options, recipe, source, out, progress)


def _choose(options: argparse.Namespace) -> int:
    """Choose among finished graphs, which needs no other package; returns the exit code."""
    from antiphon_quantize.onnx_here import choose_here

    forms = [load_checkpoint(ref) for ref in (options.model, *options.here)]
    out = Path(options.out).absolute()
    for form in forms:
        check_target(out, source=form.root, force=options.force)
    print(choose_here(forms, out))  # noqa: T201
    return 0


def _language_model(
    gguf: Path | None, checkpoint: Checkpoint, out: Path, progress: Progress
) -> AbstractContextManager[Checkpoint]:
    """The checkpoint, with the language model of a GGUF file if one is given."""
    if gguf is None:
        return nullcontext(checkpoint)
    from antiphon_quantize.gguf_source import language_model_from

    return language_model_from(gguf, checkpoint, out, progress)


def _make(
    options: argparse.Namespace, recipe: Recipe, checkpoint: Checkpoint, out: Path, progress: Progress
) -> int:
    """Make the checkpoint and judge it; returns the exit code."""
    write, approve = _writer(options.target, options.calibration), _approver(options, checkpoint, recipe)
    try:
        summary = write(checkpoint, recipe, options.recipe, out, progress, approve)
    except DegradedError as error:
        if options.target == "torch":  # the others leave nothing, and a stopped run's part is not theirs
            shutil.rmtree(part_of(out), ignore_errors=True)
        sys.stderr.write(f"antiphon quantize: {error}\n")
        return 1
    print(summary)  # noqa: T201
    return 0


def _approver(options: argparse.Namespace, checkpoint: Checkpoint, recipe: Recipe) -> Approve:
    """The check before OUT appears: the gate, unless it is off."""
    if options.no_gate:
        return approve_all
    from antiphon_quantize.gate import make_check

    return make_check(
        checkpoint, options.target, recipe, questions=options.questions, accepts=options.accept_degradation
    )


def _writer(target: str, calibration: list[Path]) -> Write:
    """The function that makes checkpoints for a backend, imported here because most of them are large.

    Raises:
        ConfigError: recordings for a target without calibration.
    """
    if target == "torch":
        from antiphon_quantize.torch_target import quantize

        return partial(quantize, calibration=calibration)
    if calibration:
        raise ConfigError(f"--calibration is for the target torch; {target} has no calibration")
    if target == "onnx":
        from antiphon_quantize import onnx_target

        return onnx_target.quantize
    from antiphon_quantize import mlx_target

    return mlx_target.quantize


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options of ``antiphon quantize``; invalid options end the process with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="antiphon quantize",
        description="Make a smaller checkpoint: weights in fewer bits, by a recipe.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument(
        "--model", required=True, help="a built-in name, a folder, hf://owner/repo[@revision], pocket://NAME"
    )
    parser.add_argument(
        "--target", choices=TARGETS, default="torch", help="backend of the new checkpoint [torch]"
    )
    parser.add_argument("--recipe", default="int8", help="a recipe's name, or its file (.toml) [int8]")
    parser.add_argument(
        "--calibration",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="recordings for recipes with calibration (awq, gptq, smooth) [built-in clips]",
    )
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE", help="GGUF file to replace the language model's weights"
    )
    parser.add_argument(
        "--here",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="the same model's graphs by other recipes; OUT gets each stage's fastest graph on this CPU",
    )
    parser.add_argument("--no-gate", action="store_true", help="skip the quality gate")
    parser.add_argument("--accept-degradation", action="store_true", help="write OUT even if the gate fails")
    parser.add_argument(
        "--questions", type=Path, metavar="FOLDER", help="spoken questions for the gate (docs/gate.md)"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a checkpoint already")
    return parser.parse_args(list(argv))


def show_progress(stream: TextIO, clock: Callable[[], float]) -> Progress:
    """A function that shows the current tensor and the estimated remaining time: on one line of a terminal,
    or on at most nine lines of another output.
    """
    is_terminal = stream.isatty()
    began: dict[int, tuple[float, int]] = {}

    def show(done: int, total: int, what: str) -> None:
        now = clock()
        if total not in began:
            began.clear()
            began[total] = (now, done)
        began_s, first = began[total]
        seconds = 0.0 if done == first else (now - began_s) * (total - done) / (done - first)
        words = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        left = "" if done in (first, total) else f", {words} left"
        if is_terminal:
            stream.write(f"\r\x1b[K{done}/{total} {what}{left}" + ("\n" if done == total else ""))
        elif done * 8 // total > (done - 1) * 8 // total:
            stream.write(f"{done}/{total} {what}{left}\n")
        stream.flush()

    return show
