"""Smaller weights for an ONNX graph, by a recipe: 4 or 8 bits for products, float16 for look-ups.

Products round their inputs to INT8 at run time. A matrix of 8 bits has a scale for each output, and every
row of inputs has its own scale (MatMulIntegerToFloat). A matrix of 4 bits has a scale for each block of an
output's weights, and inputs have one for each row and block (MatMulNBits). The level of a row does not affect
another. No sum of integers overflows in a session of :mod:`antiphon.backends.onnx.sessions`, even on CPUs
without VNNI (decision 0010). Tables, and other tensors with a rule of 16 bits, are kept as float16 and
widened when read. Other matrices whose values are bfloat16 are stored as such, without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from antiphon.errors import ConfigError, UnsupportedError
from antiphon.install import antiphon_command
from antiphon_quantize.onnx_blocks import (
    Array,
    Blocks,
    TensorWriter,
    is_external,
    read_tensor,
    round_matrix,
    tensor_bytes,
    writing_data,
)
from antiphon_quantize.recipe import Recipe


class Kind(Enum):
    """The use of a weight in a node."""

    PRODUCT = "multiplies its input by the matrix"
    LOOKUP = "looks lines of the table up"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class WeightUse:
    """A node that reads a weight; ``transposed`` if it reads the tensor as ``[out, in]``."""

    node: NodeProto
    kind: Kind
    transposed: bool


def find_uses(graph: GraphProto) -> dict[str, list[WeightUse]]:
    """The nodes that read each matrix or kernel (float32, two axes longer than one), by the tensor's name.

    A product with a transposed matrix counts as a product with the matrix.
    """
    weights = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and sum(extent > 1 for extent in tensor.dims) >= 2
    }
    turned = {
        node.output[0]: weights[node.input[0]]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2
    }
    uses: dict[str, list[WeightUse]] = {}
    for node in graph.node:
        if node.op_type == "Transpose" and node.output[0] in turned:
            continue
        for position, name in enumerate(node.input):
            weight = weights.get(name, turned.get(name))
            if weight is not None:
                kind, transposed = _kind(node, position, weight), name in turned
                transposed ^= node.op_type == "Gemm" and bool(_attributes(node).get("transB"))
                uses.setdefault(weight.name, []).append(WeightUse(node, kind, transposed))
    return uses


def _kind(node: NodeProto, position: int, weight: TensorProto) -> Kind:
    found = _attributes(node)
    if len(weight.dims) == 2:
        plain = found.get("alpha", 1.0) == found.get("beta", 1.0) == 1.0 and not found.get("transA")
        if position == 1 and node.op_type in ("MatMul", "Gemm") and plain:
            return Kind.PRODUCT
        if position == 0 and node.op_type == "Gather" and not found.get("axis"):
            return Kind.LOOKUP
    return Kind.OTHER


def _attributes(node: NodeProto) -> dict[str, object]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def weight_name(tensor: TensorProto, uses: list[WeightUse]) -> str:
    """The name that rules match: the tensor's name if it is a path of modules, otherwise the name of its
    first reader.
    """
    if "." in tensor.name:
        return str(tensor.name)
    for use in uses:
        modules = _modules(use.node)
        if modules:
            return f"{modules}.weight"
    return str(tensor.name)


def _modules(node: NodeProto) -> str:
    """The innermost module in torch.export's metadata of a node: its scopes end with module and operation."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [part.strip(" '\"") for part in entry.value.strip("[]").split(",")]
            return scopes[-2] if len(scopes) > 1 else ""
    return ""


DOMAIN = "com.microsoft"
INT8_INPUTS = 4
"""MatMulNBits' accuracy level of INT8 inputs; with any other level, inputs stay float32."""
FLOAT = 32
HALF = 16
FOUR, _ = MULTIPLIED = (4, 8)
LAST_AXIS, STEP, ZERO = "rounding.axis", "rounding.step", "rounding.zero"
BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
NARROW_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
NARROWED_BYTES = 4096
"""Minimum bytes of a tensor that is stored as bfloat16; a node that widens it takes 150."""

Read: TypeAlias = Callable[[TensorProto, Path], Array]
"""A function from a weight and the folder of its graph to its values."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of quantizing a graph's weights.

    ``errors``: each rounded matrix's relative error (a ratio of norms). ``halved``: tensors that are now
    float16. ``kept``: unchanged matrices and tables. The numbers of bytes are for all weights.
    """

    errors: Mapping[str, float] = field(default_factory=dict)
    halved: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    before_bytes: int = 0
    after_bytes: int = 0

    @property
    def mean_error(self) -> float:
        """The mean of ``errors``; 0 if no matrix was rounded."""
        return sum(self.errors.values()) / len(self.errors) if self.errors else 0.0

    @property
    def worst(self) -> tuple[str, float]:
        """The matrix with the largest error, and the error; ("", 0) if no matrix was rounded."""
        return max(self.errors.items(), key=lambda entry: entry[1], default=("", 0.0))


def quantize_graph(source: Path, target: Path, recipe: Recipe, read: Read = read_tensor) -> Report:
    """Write the graph ``source`` as ``target``, its weights in the bits of the recipe.

    Rules match weights by name: the name of the tensor or, if an exporter invented it, the name of the module
    that reads it, with ``.weight`` (torch.export notes the modules at every node). External data of a graph
    goes to ``target`` + ".data", one tensor in memory at a time. A recipe of 32 bits rounds nothing. ``read``
    returns the values of a weight.

    Raises:
        ConfigError: no operator supports the recipe's bits or blocks; ``target`` is ``source``.
        CheckpointFormatError: a data file is missing or too short.
        UnsupportedError: the graph is quantised already, a chosen weight is not finite or exceeds the range
            of float16.
    """
    for bits in {recipe.bits, *(rule.bits for rule in recipe.quantize if rule.bits)}:
        if bits not in (*MULTIPLIED, HALF, FLOAT):
            raise ConfigError(f"{bits} bits: an ONNX graph's weights can have 4, 8, 16 (float16) or 32")
    if recipe.block < HALF or recipe.block & (recipe.block - 1):
        raise ConfigError(f"blocks of {recipe.block} weights: it has to be a power of two from 16")
    if target.resolve() == source.resolve():
        raise ConfigError(f"{target} is the graph itself; choose another file")
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    narrow = sum(tensor.data_type in NARROW_TYPES for tensor in graph.initializer)
    is_rounded = any(node.op_type == "MatMulNBits" for node in graph.node)
    is_rounded |= any(tensor.name.endswith((".q4", ".q8")) for tensor in graph.initializer)
    if narrow or is_rounded:
        stored = f"{narrow} of its tensors have 16 bits" if narrow else "it has products of integers"
        raise UnsupportedError(
            f"{source} is quantised already ({stored}); start from the float32 graph, or export the model's "
            f"weights again: {antiphon_command('quantize --target onnx --model MODEL OUT')}"
        )
    external = any(map(is_external, graph.initializer))
    with writing_data(target, external=external) as writer:
        report = _Rewriter(graph, recipe, writer, lambda tensor: read(tensor, source.parent)).run()
    known = {entry.domain for entry in model.opset_import}
    if DOMAIN not in known and any(node.domain == DOMAIN for node in graph.node):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    # Notes of the exporter that no runtime reads. The shapes of tensors that nodes make stay: without them
    # ONNX Runtime takes a third longer to open the graph.
    for noted in (graph, *graph.node, *graph.input, *graph.output):
        del noted.metadata_props[:]
    made = {name for node in graph.node for name in node.output}
    shapes = [value for value in graph.value_info if value.name in made]
    del graph.value_info[:]
    graph.value_info.extend(shapes)
    target.write_bytes(model.SerializeToString())
    return report


class _Rewriter:
    """One pass over a graph: the readers of each weight, then the recipe's result for each tensor."""

    def __init__(
        self, graph: GraphProto, recipe: Recipe, writer: TensorWriter, read: Callable[[TensorProto], Array]
    ) -> None:
        self.graph, self.recipe, self.writer, self.read = graph, recipe, writer, read
        self.tensors: list[TensorProto] = []
        self.before_node: dict[int, list[NodeProto]] = {}
        self.errors: dict[str, float] = {}
        self.halved: list[str] = []
        self.kept: list[str] = []

    def run(self) -> Report:
        uses = find_uses(self.graph)
        before_bytes = sum(map(tensor_bytes, self.graph.initializer))
        for tensor in self.graph.initializer:
            self._convert(tensor, uses.get(tensor.name, []))
        after_bytes = sum(map(tensor_bytes, self.tensors))
        if any(tensor.data_type == TensorProto.INT8 for tensor in self.tensors):
            self.tensors += [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
        del self.graph.initializer[:]
        self.graph.initializer.extend(self.tensors)
        self._put_nodes()
        return Report(self.errors, tuple(self.halved), tuple(self.kept), before_bytes, after_bytes)

    def _convert(self, tensor: TensorProto, uses: list[WeightUse]) -> None:
        name = weight_name(tensor, uses)
        bits = self.recipe.bits_of(name) if uses else None
        products = [use for use in uses if use.kind is Kind.PRODUCT]
        if bits in MULTIPLIED and products:
            self._multiply(name, tensor, products, bits)
            if len(products) == len(uses):
                return
        elif bits == HALF:
            values = _finite(name, self.read(tensor))
            if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
                raise UnsupportedError(f"{name} holds {np.abs(values).max():g}, float16 ends at 65504")
            self.halved.append(name)
            self._narrow(tensor, values.astype(np.float16), "half", uses)
            return
        elif uses:
            self.kept.append(name)
            values = self.read(tensor)
            if values.nbytes >= NARROWED_BYTES and not (values.view(np.uint32) & 0xFFFF).any():
                self._narrow(tensor, values.astype(BFLOAT16), "bfloat16", uses)
                return
        if is_external(tensor):
            tensor = self.writer.put(tensor.name, self.read(tensor))
        self.tensors.append(tensor)

    def _multiply(self, name: str, tensor: TensorProto, uses: list[WeightUse], bits: int) -> None:
        """Replace the products with this weight by products of integers; equal readers share the weight."""
        values = _finite(name, self.read(tensor))
        for transposed in sorted({use.transposed for use in uses}):
            weight = values if transposed else np.ascontiguousarray(values.T)
            block = self.recipe.block if bits == FOUR else None
            rounded = round_matrix(weight, bits, block, search=self.recipe.search)
            prefix = f"{tensor.name}.{'out_in' if transposed else 'in_out'}"
            inputs = [f"{prefix}.q{bits}", f"{prefix}.scale"]
            integers = rounded.integers if bits == FOUR else rounded.signed()
            self.tensors.append(self.writer.put(inputs[0], integers))
            self.tensors.append(self.writer.put(inputs[1], rounded.scales.reshape(-1)))
            self.errors[name] = max(rounded.error, self.errors.get(name, 0.0))
            for use in uses:
                if use.transposed == transposed:
                    if bits == FOUR:
                        _become_nbits(use.node, inputs, rounded)
                    else:
                        position = next(index for index, it in enumerate(self.graph.node) if it is use.node)
                        self.before_node.setdefault(position, []).extend(_become_bytes(use.node, inputs))

    def _narrow(self, tensor: TensorProto, values: Array, suffix: str, uses: list[WeightUse]) -> None:
        """Store a tensor as ``values`` of 16 bits, widened after a look-up; for all other nodes before them,
        once, at load.
        """
        narrow = f"{tensor.name}.{suffix}"
        self.tensors.append(self.writer.put(narrow, values))
        wide = False
        for use in uses:
            wide = wide or use.kind is not Kind.LOOKUP
            if use.kind is Kind.LOOKUP:
                output = use.node.output[0]
                use.node.input[0], use.node.output[0] = narrow, f"{output}.{suffix}"
                cast = helper.make_node("Cast", [f"{output}.{suffix}"], [output], to=TensorProto.FLOAT)
                position = next(index for index, it in enumerate(self.graph.node) if it is use.node)
                self.before_node.setdefault(position + 1, []).insert(0, cast)
        if wide:
            cast = helper.make_node("Cast", [narrow], [tensor.name], to=TensorProto.FLOAT)
            self.before_node.setdefault(0, []).append(cast)

    def _put_nodes(self) -> None:
        """Insert the new nodes in order and remove transpositions without a reader."""
        nodes: list[NodeProto] = []
        for position, node in enumerate([*self.graph.node, None]):
            nodes += self.before_node.get(position, [])
            nodes += [] if node is None else [node]
        read = {name for node in nodes for name in node.input} | {out.name for out in self.graph.output}
        nodes = [node for node in nodes if node.op_type != "Transpose" or node.output[0] in read]
        del self.graph.node[:]
        self.graph.node.extend(nodes)


CONSTANTS: Mapping[str, Array] = {
    LAST_AXIS: np.array([-1], np.int64),
    STEP: np.array(1 / 127, np.float32),
    ZERO: np.array(128, np.uint8),
}
"""Constants of all 8-bit products: inputs of -1 to 1 become bytes from 1 to 255."""


def _become_nbits(node: NodeProto, weights: list[str], rounded: Blocks) -> None:
    """Make ``node`` a product of 4-bit blocks."""
    bias = "".join(node.input[2:3])
    inputs = [node.input[0], *weights] + (["", "", bias] if bias else [])
    new = helper.make_node(
        "MatMulNBits",
        inputs,
        list(node.output),
        node.name,
        domain=DOMAIN,
        K=rounded.columns,
        N=len(rounded.scales),
        bits=rounded.bits,
        block_size=rounded.block,
        accuracy_level=INT8_INPUTS,
    )
    _become(node, new)


def _become_bytes(node: NodeProto, weights: list[str]) -> list[NodeProto]:
    """Make ``node`` the last of the nodes of an 8-bit product, and return the others.

    A row is divided by its largest magnitude and rounded. The magnitude of a row of zeros is 0: whatever byte
    the quotients become, the product is multiplied by 0.
    """
    x, y, bias = node.input[0], node.output[0], "".join(node.input[2:3])
    parts = ("magnitude", "largest", "quotient", "bytes", "product", "scaled")
    magnitude, largest, quotient, rounded, product, scaled = (f"{y}.{part}" for part in parts)
    make, operands = helper.make_node, [rounded, weights[0], STEP, weights[1], ZERO]
    nodes = [
        make("Abs", [x], [magnitude]),
        make("ReduceMax", [magnitude, LAST_AXIS], [largest], keepdims=1),
        make("Div", [x, largest], [quotient]),
        make("QuantizeLinear", [quotient, STEP, ZERO], [rounded]),
        # A profile finds the weights by this node's name.
        make("MatMulIntegerToFloat", operands, [product], node.name, domain=DOMAIN),
    ]
    if not bias:
        _become(node, make("Mul", [product, largest], [y]))
        return nodes
    _become(node, make("Add", [scaled, bias], [y]))
    return [*nodes, make("Mul", [product, largest], [scaled])]


def _become(node: NodeProto, new: NodeProto) -> None:
    new.metadata_props.extend(node.metadata_props)
    node.CopyFrom(new)


def _finite(name: str, values: Array) -> Array:
    values = np.array(values, dtype=np.float32)
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise UnsupportedError(f"{name} holds {count:,} values that are no numbers")
    return values
