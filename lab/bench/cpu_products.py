"""Times a matrix product in several forms of ONNX Runtime and torch.

    python -m lab.bench.cpu_products                   of stt-1b, 2048 by 11264, one thread
    python -m lab.bench.cpu_products --threads 2
    python -m lab.bench.cpu_products --sides 512 2048  of Mimi; the first is a multiple of 128
    python -m lab.bench.cpu_products --quick           a small product, to see that it works

Forms alternate, and the best of several runs counts: other programs can only lengthen one. The same inputs go
through every form.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from antiphon.backends.onnx.sessions import onnxruntime, session_options
from lab.bench.harness import tell, warn_if_busy

ROWS: Final = (1, 2, 4, 8, 16)
SIDES: Final = (2048, 11264)
FLOAT: Final = onnx.TensorProto.FLOAT
MICROSOFT: Final = "com.microsoft"

Floats: TypeAlias = NDArray[np.float32]
Product: TypeAlias = Callable[[Floats], object]


def graph(
    nodes: Sequence[onnx.NodeProto], weights: Mapping[str, NDArray[np.generic]], threads: int
) -> Product:
    """Return a function that runs the graph of ``nodes``, which computes "y" from "x"."""
    inputs, outputs = (helper.make_tensor_value_info(name, FLOAT, [None, None]) for name in "xy")
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_graph(nodes, "product", [inputs], [outputs], tensors)
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options(threads), providers)
    return lambda x: session.run(None, {"x": x})


def blocks(weight: Floats, bits: int, block: int, threads: int) -> Product:
    """Return a product by MatMulNBits with inputs in INT8, as the recipes make it."""
    width, outputs = weight.shape
    parts = weight.T.reshape(outputs, width // block, block)
    scale = (np.abs(parts).max(2) / (2 ** (bits - 1) - 1)).astype(np.float32)
    middle = 2 ** (bits - 1)
    whole = np.clip(np.round(parts / scale[..., None]) + middle, 0, 2 * middle - 1).astype(np.uint8)
    packed = whole if bits == 8 else whole[..., 0::2] | (whole[..., 1::2] << 4)
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain=MICROSOFT,
        K=width,
        N=outputs,
        bits=bits,
        block_size=block,
        accuracy_level=4,
    )
    return graph([node], {"w": packed, "s": scale.reshape(-1)}, threads)


def integers(weight: Floats, threads: int) -> Product:
    """Return a product by MatMulIntegerToFloat with a scale for each row and each output, as the recipes make
    it.
    """
    make, step, zero = helper.make_node, np.float32(1 / 127), np.uint8(128)
    scale = (np.abs(weight).max(0) / 127).astype(np.float32)
    nodes = [
        make("Abs", ["x"], ["a"]),
        make("ReduceMax", ["a", "axis"], ["most"], keepdims=1),
        make("Div", ["x", "most"], ["part"]),
        make("QuantizeLinear", ["part", "step", "zero"], ["q"]),
        make("MatMulIntegerToFloat", ["q", "w", "step", "s", "zero"], ["f"], domain=MICROSOFT),
        make("Mul", ["f", "most"], ["y"]),
    ]
    constants = {"axis": np.array([-1]), "step": np.array(step), "zero": np.array(zero), "s": scale}
    return graph(nodes, {"w": np.round(weight / scale).astype(np.int8), **constants}, threads)


def forms(weight: Floats, threads: int) -> dict[str, Product]:
    """Return every form of a product with ``weight`` ``[in, out]``, by name."""
    torch.set_num_threads(threads)
    plain = torch.from_numpy(np.ascontiguousarray(weight.T))
    half, linear = plain.bfloat16(), torch.nn.functional.linear
    layer = torch.nn.Sequential(torch.nn.Linear(weight.shape[0], weight.shape[1], bias=False))
    torch.backends.quantized.engine = "onednn"
    onednn = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, torch.qint8)
    return {
        "ONNX Runtime, float32": graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, threads
        ),
        "MatMulNBits, 8 bits": blocks(weight, 8, 128, threads),
        "MatMulNBits, 4 bits": blocks(weight, 4, 128, threads),
        "MatMulIntegerToFloat, scales by row": integers(weight, threads),
        "torch, float32": lambda x: linear(torch.from_numpy(x), plain),
        "torch, bfloat16": lambda x: linear(torch.from_numpy(x).bfloat16(), half).float(),
        "torch, oneDNN INT8": lambda x: onednn(torch.from_numpy(x)),
    }


def measure(sides: tuple[int, int], threads: int, runs: int) -> dict[str, list[float]]:
    """Measure each form; returns its best milliseconds at each number of rows."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal(sides) / sides[0] ** 0.5).astype(np.float32)
    products, found = forms(weight, threads), dict[str, list[float]]()
    with torch.no_grad():
        for rows in ROWS:
            x, best = rng.standard_normal((rows, sides[0])).astype(np.float32), dict[str, float]()
            for _ in range(runs):
                for name, product in products.items():
                    start_s = time.perf_counter()
                    product(x)
                    spent_ms = 1000 * (time.perf_counter() - start_s)
                    best[name] = min(spent_ms, best.get(name, spent_ms))
            for name, ms in best.items():
                found.setdefault(name, []).append(ms)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every form, and print a table of the times."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.cpu_products", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--sides", type=int, nargs=2, default=SIDES, help="inputs and outputs [%(default)s]")
    parser.add_argument("--quick", action="store_true", help="a small product, two runs")
    options = parser.parse_args(argv)
    warn_if_busy()
    found = measure(
        (128, 256) if options.quick else tuple(options.sides), options.threads, 2 if options.quick else 15
    )
    tell(f"{options.threads} threads, ms, best of the runs")
    print(f"| form | {' | '.join(map(str, ROWS))} |\n" + "|---" * (1 + len(ROWS)) + "|")
    for name, times_ms in found.items():
        print(f"| {name} | {' | '.join(f'{ms:.2f}' for ms in times_ms)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
