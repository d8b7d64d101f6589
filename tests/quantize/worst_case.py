"""Products of the largest integers, for a CPU that may saturate; prints the results as JSON.

    python -m tests.quantize.worst_case
    qemu-x86_64 -cpu Haswell .venv/bin/python -m tests.quantize.worst_case      without VNNI

``nbits``: the largest relative error of MatMulNBits over all cases, whose exact results are known.
``rows``: that of products with a scale for each row, in a session for a CPU without VNNI: an emulated CPU has
the ``/proc/cpuinfo`` of the one that runs it.
``control``: a product by MatMulInteger that is known to saturate without VNNI, and what it should be.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from antiphon.backends.onnx.sessions import onnxruntime, session_options

IN, OUT = 512, 48
GRAPHS = tuple(itertools.product((4, 8), (16, 32, 64, 128, 256)))
"""Bits and block; the runtime has other routines for others, and for other numbers of rows."""
ROWS = (1, 2, 3, 8)


Runner: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]


def runner(model: ModelProto, options: onnxruntime.SessionOptions | None = None) -> Runner:
    """The graph as a function from "x" to "y"."""
    if options is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


def model_of(node: NodeProto, tensors: Sequence[TensorProto], kinds: tuple[int, int]) -> ModelProto:
    """A graph of one node from "x" to "y", whose element types are ``kinds``."""
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip("xy", kinds, strict=True)]
    graph = helper.make_graph([node], "worst case", ends[:1], ends[1:], list(tensors))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def nbits_model(integers: NDArray[np.uint8], bits: int, block: int) -> ModelProto:
    """MatMulNBits by ``integers [out, in]``, each scale 1."""
    blocks = integers.reshape(OUT, IN // block, block)
    packed = blocks if bits == 8 else blocks[..., 0::2] | (blocks[..., 1::2] << 4)
    tensors = [
        numpy_helper.from_array(packed, "q"),
        numpy_helper.from_array(np.ones(OUT * IN // block, np.float32), "scale"),
    ]
    settings = {"K": IN, "N": OUT, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "q", "scale"], ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in settings.items())
    return model_of(node, tensors, (TensorProto.FLOAT, TensorProto.FLOAT))


def extremes(bits: int) -> NDArray[np.uint8]:
    """Weights ``[OUT, IN]``: a third at the upper end, a third at the lower, a third at both."""
    top = (1 << bits) - 1
    third = (OUT // 3, IN)
    both = np.random.default_rng(0).integers(0, 2, third) * top
    return np.concatenate([np.full(third, top, np.int64), np.zeros(third, np.int64), both]).astype(np.uint8)


def nbits_error() -> float:
    """The largest error of all graphs, relative to what is exact; inputs of one size round to it."""
    worst = 0.0
    for bits, block in GRAPHS:
        integers = extremes(bits)
        values = integers.astype(np.float64) - (1 << (bits - 1))
        run = runner(nbits_model(integers, bits, block))
        for rows in ROWS:
            signs = np.sign(np.random.default_rng(rows).standard_normal((rows, IN)))
            for x in (np.ones((rows, IN)), -np.ones((rows, IN)), signs):
                exact = x @ values.T
                found = run(x.astype(np.float32))
                worst = max(worst, float(np.abs(found - exact).max() / np.abs(exact).max()))
    return worst


def rows_error(*, vnni: bool | None = None) -> float:
    """The largest error of bytes at their ends, around 0 or 128, times weights of -128 and 127.

    ``vnni``: see :func:`session_options`.
    """
    ends = np.random.default_rng(0).integers(0, 2, (IN, OUT)) * 255 - 128
    ends[:, :16] = 127
    worst = 0.0
    for middle in (0, 128):
        tensors: dict[str, NDArray[Any]] = {
            "q": ends.astype(np.int8),
            "one": np.array(1, np.float32),
            "scale": np.ones(OUT, np.float32),
            "middle": np.array(middle, np.uint8),
        }
        node = helper.make_node("MatMulIntegerToFloat", ["x", *tensors], ["y"], domain="com.microsoft")
        made = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
        model = model_of(node, made, (TensorProto.UINT8, TensorProto.FLOAT))
        run = runner(model, session_options(1, vnni=vnni))
        for rows, byte in itertools.product(ROWS, (255, 1)):
            x = np.full((rows, IN), byte)
            exact = (x - middle) @ ends.astype(np.int64)
            worst = max(worst, float(np.abs(run(x.astype(np.uint8)) - exact).max() / np.abs(exact).max()))
    return worst


def control() -> tuple[int, int]:
    """A product of 512 times 255 and 127 by MatMulInteger, and the exact one."""
    node = helper.make_node("MatMulInteger", ["x", "q"], ["y"])
    weights = numpy_helper.from_array(np.full((IN, OUT), 127, np.int8), "q")
    model = model_of(node, [weights], (TensorProto.UINT8, TensorProto.INT32))
    return int(runner(model)(np.full((2, IN), 255, np.uint8))[0, 0]), IN * 255 * 127


if __name__ == "__main__":
    json.dump({"nbits": nbits_error(), "rows": rows_error(vnni=False), "control": control()}, sys.stdout)
