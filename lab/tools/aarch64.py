"""Compares the built-in models' graphs on an emulated aarch64 with this machine.

    python -m lab.tools.aarch64 out/aarch64                  tiny, tiny-stt and tiny-tts
    python -m lab.tools.aarch64 out/aarch64 --cpu max        with every instruction that the emulator has

On Debian or Ubuntu, with qemu-aarch64 (package qemu-user) and network. A Python for arm64 is installed from
the distribution, into a separate folder with its own package database; numpy and onnxruntime are installed by
pip, in the versions of this machine. The same inputs pass through every graph on both, including state from
frame to frame, and here once more with the inputs of products with rounded weights left in float, the common
reference: processors round those inputs in different groups. Speed under an emulator has no meaning, and is
not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import Array, GraphFormat, TensorFormat
from antiphon_quantize.onnx_weights import STEP

MODELS: Final = ("tiny", "tiny-stt", "tiny-tts")
FRAMES, ROWS = 25, 2
ROOT: Final = Path(__file__).parents[2]
FLOAT_INPUTS: Final = 1
"""MatMulNBits' accuracy level of products in float32."""
LIBRARIES: Final = ("onnxruntime", "numpy")
PACKAGES: Final = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
PLATFORMS: Final = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
CPUINFO: Final = """processor\t: {core}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""The emulator shows programs this machine's own, with which onnxruntime for aarch64 fails at its import."""

MOST_TIMES: Final = 2.0
"""Largest error of an output compared with float inputs, as a multiple of the error here. A row that is
rounded as a whole has up to twice the error of one that is rounded block by block."""
MOST_BESIDE: Final = 1e-4
"""An addition to that limit: without rounding, sums are added in another order."""
MOST_CHANGED: Final = 0.05
"""Most additional codes and tokens that may differ: if two are about equally near, either may be chosen."""


class ToolError(Exception):
    """The tool cannot continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The error of an output here and on aarch64, both compared with a run with float inputs; see
    :func:`distance`."""

    name: str
    here: float
    there: float
    is_choice: bool

    @property
    def holds(self) -> bool:
        """Whether the error on aarch64 is within the tolerance."""
        if self.is_choice:
            return self.there <= self.here + MOST_CHANGED
        return self.there <= MOST_TIMES * self.here + MOST_BESIDE

    def __str__(self) -> str:
        """A line of a table."""
        shown = [f"{found:.1%} others" if self.is_choice else f"{found:.1e}" for found in self._both]
        return f"| {self.name} | {' | '.join(shown)} | {'yes' if self.holds else '**no**'} |"

    @property
    def _both(self) -> tuple[float, float]:
        return self.here, self.there


def built_in_graphs() -> dict[str, tuple[Path, GraphFormat]]:
    """Return every graph file of the built-in models once, by MODEL.STAGE."""
    found: dict[Path, tuple[str, GraphFormat]] = {}
    for model in MODELS:
        checkpoint = load_checkpoint(model)
        for stage, form in checkpoint.graphs.items():
            found.setdefault(checkpoint.file(form.file).resolve(), (f"{model}.{stage}", form))
    return {name: (path, form) for path, (name, form) in found.items()}


def make_inputs(form: GraphFormat, seed: int) -> dict[str, Array]:
    """Return random inputs of every frame, ``[FRAMES, ROWS, ...]``, in the range of a graph's real input."""
    random, state = np.random.default_rng(seed), {entry.name for entry in form.state}
    return {
        tensor.name: _values(tensor, (FRAMES, ROWS, *tensor.shape), random)
        for tensor in form.inputs
        if tensor.name not in state
    }


def _values(tensor: TensorFormat, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if tensor.dtype == "bool":
        return np.ones(shape, np.bool_)
    if tensor.name == "pcm":  # a voice: a gliding tone, its overtones, and breath
        times = np.arange(shape[0] * shape[2]).reshape(shape[0], 1, shape[2]) / 24000
        glide = 120 * times + 30 * np.sin(2 * np.pi * 1.3 * times)
        tones = sum(np.sin(2 * np.pi * (1 + order) * glide) / (1 + order) for order in range(12))
        sound: Array = (0.1 * tones + 0.01 * random.standard_normal(shape)).astype(np.float32)
        return sound
    if tensor.name in ("count", "topk"):
        return np.ones(shape, np.int64)
    if tensor.name == "inverse_temperature":
        return np.ones(shape, np.float32)
    if tensor.name == "noise":
        return np.zeros(shape, np.float32)
    if tensor.dtype == "float32":
        return random.standard_normal(shape).astype(np.float32)
    return random.integers(0, 100, shape).astype(tensor.numpy_dtype)


def compare(
    exact: Mapping[str, Array], here: Mapping[str, Array], there: Mapping[str, Array]
) -> Iterator[Difference]:
    """Yield the difference of each output: of ``here`` and of ``there``, both compared with ``exact``."""
    for name, wanted in sorted(exact.items()):
        is_choice = not np.issubdtype(wanted.dtype, np.floating)
        yield Difference(name, distance(here[name], wanted), distance(there[name], wanted), is_choice)


def distance(found: Array, wanted: Array) -> float:
    """Return for numbers the relative distance (of norms), for choices the share of different choices."""
    if not np.issubdtype(wanted.dtype, np.floating):
        return float((found != wanted).mean())
    wide, size = wanted.astype(np.float64), float(np.linalg.norm(wanted.astype(np.float64)))
    apart = float(np.linalg.norm(found.astype(np.float64) - wide)) / (size or 1.0)
    return apart if np.isfinite(apart) else np.inf


def leave_inputs(path: Path, target: Path) -> None:
    """Write a copy of a graph whose products leave their inputs in float."""
    model = onnx.load(path)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = {node.output[0]: node.input[0] for node in model.graph.node}
    for node in model.graph.node:
        if node.op_type == "MatMulIntegerToFloat" and node.input[2] == STEP:
            integers, scale = (numpy_helper.to_array(tensors[node.input[place]]) for place in (1, 3))
            weight = numpy_helper.from_array(integers * scale, f"{node.input[1]}.wide")
            model.graph.initializer.append(weight)
            operands = [inputs[node.input[0]], weight.name]
            node.CopyFrom(onnx.helper.make_node("MatMul", operands, list(node.output)))
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = FLOAT_INPUTS
    onnx.save(model, target)


def emulated_python(folder: Path, cpu: str) -> list[str]:
    """Return a command that runs Python for aarch64 with numpy and onnxruntime; made in ``folder`` once.

    Raises:
        ToolError: a program is missing, or a package cannot be found.
    """
    for program in ("qemu-aarch64", "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ToolError(f"{program} is missing; on Debian and Ubuntu: apt-get install qemu-user apt dpkg")
    root, libraries = folder / "root", folder / "libraries"
    if not root.is_dir():
        unpack_system(folder, root)
    if not libraries.is_dir():
        version = next(root.glob("usr/bin/python3.*")).name.removeprefix("python")
        unpack_libraries(libraries, version)
    return ["qemu-aarch64", "-cpu", cpu, "-L", str(root), str(root / "usr/bin/python3")]


def unpack_system(folder: Path, root: Path) -> None:
    """Unpack Python for arm64 and its dependencies without installing them; this system is unchanged."""
    state, part = folder / "apt", root.with_suffix(".part")
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::State": state,
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
    }
    apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    run([*apt, "update"])
    run([*apt, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES])
    for archive in sorted((state / "archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(archive), str(part)])
    (part / "proc").mkdir(exist_ok=True)
    cores = range(os.cpu_count() or 1)
    (part / "proc/cpuinfo").write_text("".join(CPUINFO.format(core=core) for core in cores))
    part.rename(root)


def unpack_libraries(target: Path, python: str) -> None:
    """Unpack numpy and onnxruntime for aarch64, in the versions of this machine."""
    part = target.with_suffix(".part")
    wanted = [f"{name}=={metadata.version(name)}" for name in LIBRARIES]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    own = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--target", str(part)]
    run([sys.executable, "-m", "pip", "install", "-q", *own, *platforms, *wanted])
    part.rename(target)


def run(command: Sequence[str], **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **environment}
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise ToolError(f"{' '.join(command[:6])} ... ended with {done.returncode}: {said}")


def ask(python: Sequence[str], folder: Path, name: str, **environment: str) -> dict[str, Array]:
    """Run every graph with the command ``python``, which writes ``folder/NAME.npz``; returns the outputs."""
    out = folder / f"{name}.npz"
    graphs = folder / ("exact.json" if name == "exact" else "graphs.json")
    words = [folder / "given.npz", graphs, out]
    run([*python, "-m", "lab.tools.graph_answers", *map(str, words)], **environment)
    return dict(np.load(out))


def write_questions(folder: Path, graphs: Mapping[str, tuple[Path, GraphFormat]]) -> None:
    """Write the inputs and the path of every graph."""
    folder.mkdir(parents=True, exist_ok=True)
    given: dict[str, Any] = {}
    entries, exact = {}, {}
    for seed, (name, (path, form)) in enumerate(graphs.items()):
        given |= {f"{name}/{key}": values for key, values in make_inputs(form, seed).items()}
        leave_inputs(path, folder / f"{name}.onnx")
        entries[name] = {"path": str(path), "form": asdict(form)}
        exact[name] = {**entries[name], "path": str(folder / f"{name}.onnx")}
    np.savez(folder / "given.npz", **given)
    (folder / "graphs.json").write_text(json.dumps(entries))
    (folder / "exact.json").write_text(json.dumps(exact))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if an output exceeds the tolerance or the tool could not run."""
    parser = argparse.ArgumentParser(
        prog="lab.tools.aarch64", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the emulated system and the answers go: 250 MB")
    parser.add_argument("--cpu", default="neoverse-n1", help="as qemu-aarch64 -cpu help lists [%(default)s]")
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    try:
        write_questions(folder, built_in_graphs())
        exact = ask([sys.executable], folder, "exact")
        here = ask([sys.executable], folder, "here")
        python = emulated_python(folder, options.cpu)
        paths = os.pathsep.join([str(folder / "libraries"), str(ROOT / "server"), str(ROOT)])
        there = ask(python, folder, options.cpu, PYTHONPATH=paths, PYTHONDONTWRITEBYTECODE="1")
    except ToolError as error:
        print(f"aarch64: {error}", file=sys.stderr)
        return 1
    differences = list(compare(exact, here, there))
    print(f"Distances from inputs in float, {FRAMES} frames of {ROWS} rows:\n")
    print(f"| graph, output | {platform.machine()} | aarch64, {options.cpu} | within the tolerance |")
    print("|---|---|---|---|", *differences, sep="\n")
    return 0 if all(difference.holds for difference in differences) else 1


if __name__ == "__main__":
    sys.exit(main())
