"""Quantized weights of a graph: results, independence of rows, and refusals."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from antiphon.errors import CheckpointFormatError, ConfigError, UnsupportedError
from antiphon.install import antiphon_command
from antiphon_quantize.onnx_blocks import round_matrix
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import load_recipe
from tests.quantize.onnx_graphs import Array, nbits_model, product_graph, recipe, run_graph, write_graph

WIDTHS = (96, 256)


def gauss(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def relative(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_a_kernel_with_an_axis_of_one_is_a_weight_and_a_line_is_none(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["wide"]),
        helper.make_node("Conv", ["wide", "conv.weight"], ["y"], kernel_shape=[1, 2]),
        helper.make_node("Mul", ["x", "line"], ["z"]),
    ]
    weights = {"conv.weight": gauss(4, 6, 1, 2), "line": gauss(1, 24, seed=1)}
    shape = onnx.numpy_helper.from_array(np.array([0, 6, 1, 4]), "shape")
    source = write_graph(tmp_path / "a.onnx", nodes, weights, inputs={"x": 24})
    model = onnx.load(source)
    model.graph.initializer.append(shape)
    onnx.save(model, source)
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(16))
    assert report.halved == ("conv.weight",)
    x = {"x": gauss(2, 24, seed=2)}
    for found, wanted in zip(run_graph(tmp_path / "b.onnx", x), run_graph(source, x), strict=True):
        assert relative(found, wanted) < 2e-3


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 17])
@pytest.mark.parametrize(("bits", "block"), [(8, None), (4, 32), (4, 128)])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_runtime_computes_what_the_rounding_says(
    tmp_path: Path, width: int, bits: int, block: int | None, rows: int
) -> None:
    weight, x = gauss(width, 48), gauss(rows, width, seed=1)
    source = product_graph(tmp_path / "a.onnx", weight)
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(bits, block or 16))
    rounded = round_matrix(weight.T.copy(), bits, block, search=False)
    found = run_graph(tmp_path / "b.onnx", {"x": x})[0]
    assert relative(found, nbits_model(x, rounded.values(), rounded.block)) < 2e-5
    assert report.errors == {"layer.weight": rounded.error}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [2, 5, 8])
def test_a_loud_neighbour_moves_nobody(tmp_path: Path, rows: int, bits: int) -> None:
    quantize_graph(product_graph(tmp_path / "a.onnx", gauss(256, 64)), tmp_path / "b.onnx", recipe(bits, 128))
    x = gauss(rows, 256, seed=1)
    quiet = run_graph(tmp_path / "b.onnx", {"x": x})[0]
    x[0] *= 50
    loud = run_graph(tmp_path / "b.onnx", {"x": x})[0]
    assert np.array_equal(loud[1:], quiet[1:])
    x[0] = np.inf
    assert np.array_equal(run_graph(tmp_path / "b.onnx", {"x": x})[0][1:], quiet[1:])
    x[0] = 0
    silent = run_graph(tmp_path / "b.onnx", {"x": x})[0]
    assert not silent[0].any()
    assert np.array_equal(silent[1:], quiet[1:])


def test_every_way_to_multiply_by_a_matrix_is_found(tmp_path: Path) -> None:
    weight, bias = gauss(64, 32), gauss(32)
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["y0"]),
        helper.make_node("Transpose", ["b.weight"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y1"]),
        helper.make_node("Gemm", ["x", "c.weight", "bias"], ["y2"], "named", transB=1),
        helper.make_node("Gemm", ["x", "a.weight", "bias"], ["y3"]),
    ]
    turned = weight.T.copy()
    weights = {"a.weight": weight, "b.weight": turned, "c.weight": turned, "bias": bias}
    source = write_graph(tmp_path / "a.onnx", nodes, weights)
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(8, 32))
    assert set(report.errors) == {"a.weight", "b.weight", "c.weight"}
    graph = onnx.load(tmp_path / "b.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 4
    assert "named" in [node.name for node in graph.node if node.op_type == "MatMulIntegerToFloat"]
    x = gauss(3, 64, seed=1)
    for found, wanted in zip(
        run_graph(tmp_path / "b.onnx", {"x": x}), run_graph(source, {"x": x}), strict=True
    ):
        assert relative(found, wanted) < 0.02


def test_products_by_other_means_are_left_alone(tmp_path: Path) -> None:
    square = gauss(64, 64)
    nodes = [
        helper.make_node("MatMul", ["left.weight", "right.weight"], ["product"]),
        helper.make_node("Gemm", ["x", "scaled.weight"], ["y"], alpha=2.0),
        helper.make_node("Add", ["y", "product"], ["z"]),
    ]
    weights = {"left.weight": square, "right.weight": square, "scaled.weight": square}
    source = write_graph(tmp_path / "a.onnx", nodes, weights)
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(8))
    assert set(report.errors) == {"right.weight"}
    assert set(report.kept) == {"left.weight", "scaled.weight"}


def test_a_made_up_name_gives_way_to_the_module_that_reads_the_weight(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "val_7"], ["y"])
    scopes = "['', 'lm', 'lm.layers.0', 'lm.layers.0.out_proj', 'linear']"
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    source = write_graph(tmp_path / "a.onnx", [node], {"val_7": gauss(64, 64)})
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(8))
    assert set(report.errors) == {"lm.layers.0.out_proj.weight"}


def test_the_exporters_notes_are_not_kept(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    model = onnx.load(write_graph(tmp_path / "a.onnx", nodes, {"w": gauss(64, 64)}))
    graph = model.graph
    for noted in (graph, *graph.node, *graph.input, *graph.output):
        noted.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'lm', 'linear']")
    for name in ("y", "w"):
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", 64])
        graph.value_info.append(value)
    onnx.save(model, tmp_path / "a.onnx")
    quantize_graph(tmp_path / "a.onnx", tmp_path / "b.onnx", recipe(8))
    graph = onnx.load(tmp_path / "b.onnx").graph
    assert [value.name for value in graph.value_info] == ["y"]
    assert not any(it.metadata_props for it in (graph, *graph.node, *graph.input, *graph.output))


@pytest.mark.parametrize("external", [False, True])
def test_kept_weights_of_bfloat16_take_two_bytes_without_loss(tmp_path: Path, external: bool) -> None:
    weight = gauss(128, 64)
    exact = (weight.view(np.uint32) & 0xFFFF0000).view(np.float32)
    x = gauss(2, 128, seed=1)
    for values, bytes_per_weight in ((exact, 2), (weight, 4)):
        source = product_graph(tmp_path / "a.onnx", values, external=external)
        report = quantize_graph(source, tmp_path / "b.onnx", load_recipe("onnx", "float32"))
        assert report.kept == ("layer.weight",)
        assert report.after_bytes == bytes_per_weight * weight.size
        found, wanted = (run_graph(path, {"x": x})[0] for path in (tmp_path / "b.onnx", source))
        assert np.array_equal(found, wanted)


def test_tables_become_float16_and_are_widened_where_they_are_read(tmp_path: Path) -> None:
    table = gauss(100, 64).astype(np.float16).astype(np.float32)  # as bfloat16 would be: held exactly
    nodes = [
        helper.make_node("Gather", ["emb.weight", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "emb.head"], ["y"]),
    ]
    weights = {"emb.head": gauss(64, 8), "emb.weight": table}
    source = write_graph(tmp_path / "a.onnx", nodes, weights, inputs={"ids": 3})
    report = quantize_graph(source, tmp_path / "b.onnx", recipe(8, emb=16))
    assert set(report.halved) == {"emb.weight", "emb.head"}
    assert report.after_bytes == report.before_bytes / 2
    ids = np.array([[1, 99, 5], [0, 7, 7]])
    found, wanted = (run_graph(path, {"ids": ids})[0] for path in (tmp_path / "b.onnx", source))
    assert relative(found, wanted) < 1e-3


def test_sizes_are_what_bits_and_scales_take(tmp_path: Path) -> None:
    source = product_graph(tmp_path / "a.onnx", gauss(1024, 512))
    for bits, block, bytes_per_weight in ((8, 128, 1 + 4 / 1024), (4, 32, 0.5 + 4 / 32)):
        report = quantize_graph(source, tmp_path / f"{bits}.onnx", recipe(bits, block))
        assert report.before_bytes == 1024 * 512 * 4
        assert report.after_bytes == 1024 * 512 * bytes_per_weight
        assert (tmp_path / f"{bits}.onnx").stat().st_size < report.after_bytes + 2000


def test_data_beside_a_graph_stays_beside_it(tmp_path: Path) -> None:
    weight, x = gauss(128, 64), gauss(2, 128, seed=1)
    source = product_graph(tmp_path / "a.onnx", weight, external=True)
    inside = product_graph(tmp_path / "inside.onnx", weight)
    for path in (source, inside):
        quantize_graph(path, tmp_path / f"8-{path.name}", recipe(8, 64))
    assert (tmp_path / "8-a.onnx").stat().st_size < 2000
    assert (tmp_path / "8-a.onnx.data").is_file()
    assert not (tmp_path / "8-inside.onnx.data").exists()
    found = [run_graph(tmp_path / name, {"x": x})[0] for name in ("8-a.onnx", "8-inside.onnx")]
    assert np.array_equal(found[0], found[1])


def test_a_recipe_of_32_bits_copies(tmp_path: Path) -> None:
    source = product_graph(tmp_path / "a.onnx", gauss(64, 64))
    report = quantize_graph(source, tmp_path / "b.onnx", load_recipe("onnx", "float32"))
    assert report.errors == {}
    assert report.worst == ("", 0.0)
    assert report.mean_error == 0
    assert report.kept == ("layer.weight",)
    x = gauss(2, 64)
    assert np.array_equal(run_graph(source, {"x": x})[0], run_graph(tmp_path / "b.onnx", {"x": x})[0])


MEASURE = """
import resource, sys
from pathlib import Path
from antiphon_quantize.onnx_weights import quantize_graph
from tests.quantize.onnx_graphs import product_graph, recipe
source, target = map(Path, sys.argv[1:])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quantize_graph(source, target, recipe(8, 128))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_holds_a_matrix_and_not_the_graph(tmp_path: Path) -> None:
    width, count = 1024, 24
    weights = {f"layer.{index}.weight": gauss(width, width, seed=index) for index in range(count)}
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name}.y"]) for name in weights]
    source = write_graph(tmp_path / "a.onnx", nodes, weights, inputs={"x": width}, external=True)
    command = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "b.onnx")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    grown_bytes = int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
    matrix_bytes = width * width * 4
    assert grown_bytes < 12 * matrix_bytes < count * matrix_bytes / 1.9
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    source = product_graph(tmp_path / "a.onnx", gauss(64, 64))
    target = tmp_path / "b.onnx"
    with pytest.raises(ConfigError, match="3 bits: an ONNX graph's weights can have 4, 8, 16"):
        quantize_graph(source, target, recipe(3))
    with pytest.raises(ConfigError, match="2 bits"):
        quantize_graph(source, target, recipe(8, layer=2))
    with pytest.raises(ConfigError, match="blocks of 48 weights: it has to be a power of two from 16"):
        quantize_graph(source, target, recipe(8, 48))
    with pytest.raises(ConfigError, match="is the graph itself"):
        quantize_graph(source, source, recipe(8))


@pytest.mark.parametrize(
    ("bits", "how"),
    [
        (8, "it has products of integers"),
        (16, "1 of its tensors have 16 bits"),
        (32, "1 of its tensors have"),
    ],
)
def test_a_graph_that_is_quantised_is_not_quantised_again(tmp_path: Path, bits: int, how: str) -> None:
    """Neither after a recipe, nor where its bfloat16 weights are stored as such."""
    weight = (gauss(64, 64).view(np.uint32) & 0xFFFF0000).view(np.float32)
    target = tmp_path / "b.onnx"
    quantize_graph(product_graph(tmp_path / "a.onnx", weight), target, recipe(bits))
    with pytest.raises(UnsupportedError) as caught:
        quantize_graph(target, tmp_path / "c.onnx", recipe(8))
    assert str(caught.value).startswith(f"{target} is quantised already ({how}")
    assert str(caught.value).endswith(antiphon_command("quantize --target onnx --model MODEL OUT"))
    assert not (tmp_path / "c.onnx").exists()


def test_weights_that_are_no_numbers_or_too_large_are_named(tmp_path: Path) -> None:
    weight = gauss(64, 64)
    weight[3, 5] = np.nan
    with pytest.raises(UnsupportedError, match=r"layer\.weight holds 1 values that are no numbers"):
        quantize_graph(product_graph(tmp_path / "a.onnx", weight), tmp_path / "b.onnx", recipe(8))
    weight[3, 5] = 70000
    with pytest.raises(UnsupportedError, match=r"layer\.weight holds 70000, float16 ends at 65504"):
        quantize_graph(product_graph(tmp_path / "a.onnx", weight), tmp_path / "b.onnx", recipe(16))


def test_missing_and_cut_data_is_named(tmp_path: Path) -> None:
    source = product_graph(tmp_path / "a.onnx", gauss(64, 64), external=True)
    data = tmp_path / "a.onnx.data"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(CheckpointFormatError, match=r"16,384 bytes at 0 of .*, which has 16,383 bytes"):
        quantize_graph(source, tmp_path / "b.onnx", recipe(8))
    data.unlink()
    with pytest.raises(CheckpointFormatError, match="there is no such file"):
        quantize_graph(source, tmp_path / "b.onnx", recipe(8))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_our_recipes_round_layers_and_leave_heads_and_codebooks(name: str) -> None:
    found = load_recipe("onnx", name)
    bits = 8 if name == "int8" else 4
    for tensor, wanted in {
        "model.transformer.layers.3.self_attn.in_proj.weight": 8,
        "model.transformer.layers.3.self_attn.out_proj.weight": 8,
        "model.transformer.layers.3.feed_forward.linear_in.weight": bits,
        "mimi.encoder_transformer.layers.0.self_attn.in_proj.weight": 8,
        "mimi.encoder_transformer.layers.0.feed_forward.linear1.weight": 8,
        "depformer.layers.0.gating.7.linear_in.weight": bits,
        "mimi.decoder.model.2.linear.weight": 8,
        "voices.0.weight": 8,
        "mimi.downsample.linear.weight": None,
        "model.audio_emb.weight": 16,
        "model.text_emb.weight": 16,
        "depformer.emb.3.weight": 16,
        "depformer.text_emb.weight": 16,
        "model.text_linear.weight": None if name == "int8" else 8,
        "model.extra_heads.1.weight": None,
        "depformer.linears.0.weight": None,
        "depformer.inputs.0.weight": None,
        "mimi.quantizer.rvq_rest.tables": None,
        "mimi.quantizer.rvq_first.input_proj.weight": None,
        "mimi.encoder.model.1.block.1.weight": None,
    }.items():
        assert found.bits_of(tensor) == wanted, tensor
        assert found.chooses(tensor) == (wanted is not None)


def test_the_smallest_recipe_has_short_blocks_and_heads_and_long_convolutions_in_float16() -> None:
    small, four = load_recipe("onnx", "small"), load_recipe("onnx", "int4")
    assert (small.bits, small.block, small.search) == (four.bits, 32, four.search)
    for tensor, bits in {
        "model.text_linear.weight": (16, 8),
        "depformer.linears.0.weight": (16, None),
        "depformer.inputs.0.weight": (16, None),
        "mimi.encoder.model.1.block.1.weight": (16, None),
        "model.transformer.layers.3.self_attn.in_proj.weight": (4, 8),
    }.items():
        assert (small.bits_of(tensor), four.bits_of(tensor)) == bits, tensor
    for tensor in (
        "model.transformer.layers.3.feed_forward.linear_in.weight",
        "mimi.decoder.model.2.linear.weight",
        "mimi.downsample.linear.weight",
        "model.audio_emb.weight",
        "model.extra_heads.1.weight",
        "mimi.quantizer.rvq_rest.tables",
    ):
        assert small.bits_of(tensor) == four.bits_of(tensor), tensor
