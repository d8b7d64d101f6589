"""INT8 convolutions in exported graphs compared with float ones, row by row, and their selection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from antiphon.backends.base import FloatArray
from antiphon.backends.machine import has_vnni
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.backends.onnx.stage import Stage
from antiphon.backends.torch.modules.mimi import (
    CausalConv1d,
    CausalConvTranspose1d,
    ResidualBlock,
    Seanet,
    StreamingConv,
)
from antiphon.backends.torch.state import MaskedStep, Step
from antiphon.models.architecture import ConvShape, SeanetConfig
from antiphon.models.manifest import GraphFormat
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_int8 import DECODER_MIDDLE, IntegerConv, Turn, WholeConvTranspose, round_network
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.recipe import load_recipe

ROWS: Final = 3
FRAMES: Final = 6
SAMPLES: Final = 24
CONFIG: Final = SeanetConfig(
    channels=1,
    dimension=24,
    n_filters=8,
    n_residual_layers=1,
    ratios=(4,),
    kernel_size=7,
    residual_kernel_size=3,
    last_kernel_size=3,
    dilation_base=2,
    compress=2,
    alpha=1.0,
)
PLAIN: Final = replace(CONFIG, n_residual_layers=0)
"""What is exported."""


class Codec(ExportedStage):
    """An encoder and a decoder behind each other: ``pcm [n, samples]`` to the same."""

    inputs, outputs = ("pcm",), ("heard",)

    def __init__(self, networks: Sequence[Seanet]) -> None:
        found = [child for network in networks for child in network.modules()]
        convs = [child for child in found if isinstance(child, StreamingConv)]
        for conv in convs:
            conv.prepare()
        super().__init__([spec for conv in convs for spec in conv.specs()])
        self.networks = nn.ModuleList(networks)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        x = inputs[0][:, None]
        for network in self.networks:
            x = network(x, step)
        return (x[:, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, SAMPLES),)


def networks(config: SeanetConfig = CONFIG, most_positions: int = 0) -> list[Seanet]:
    random, inner = torch.Generator().manual_seed(1), SAMPLES // math.prod(config.ratios)
    found = [Seanet("encoder", config, SAMPLES), Seanet("decoder", config, inner)]
    for network, middle in zip(found, (0, DECODER_MIDDLE), strict=True):
        for tensor in network.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=random) * (2 / tensor[0].numel()) ** 0.5)
        round_network(network, most_positions, middle=middle)
    return found


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphFormat]:
    path = tmp_path_factory.mktemp("convolutions") / "codec.onnx"
    return path, export_stage(Codec(networks(PLAIN, most_positions=SAMPLES)), path, "codec")


def opened(graph: tuple[Path, GraphFormat]) -> Stage:
    path, form = graph
    return Stage(open_session(path, pick_provider("cpu")[1], 1), form, ROWS)


def sound(seed: int) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 1, (FRAMES, ROWS, SAMPLES)).astype(np.float32)


def eager(codec: Codec, frames: FloatArray) -> FloatArray:
    """What the modules themselves make of frames."""
    state = {s.name: torch.full((ROWS, *s.shape), s.fill, dtype=s.dtype) for s in codec.specs}
    found = []
    for frame in frames:
        step = MaskedStep(state, torch.ones(ROWS, dtype=torch.bool))
        found.append(codec.run((torch.from_numpy(frame),), step)[0].numpy())
        state = step.tensors
    return np.stack(found)


def distance(found: FloatArray, wanted: FloatArray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_they_give_what_float_ones_do_frame_by_frame() -> None:
    frames = sound(2)
    wanted = eager(Codec(networks()), frames)
    found = eager(Codec(networks(most_positions=SAMPLES)), frames)
    assert 0.001 < distance(found, wanted) < 0.05


def test_a_graph_computes_what_the_modules_do(graph: tuple[Path, GraphFormat]) -> None:
    stage, frames = opened(graph), sound(3)
    rows = np.arange(ROWS, dtype=np.int32)
    found = np.stack([stage.run(rows, {"pcm": frame})["heard"] for frame in frames])
    assert distance(found, eager(Codec(networks(PLAIN, most_positions=SAMPLES)), frames)) < 0.005


def test_every_convolution_behind_an_elu_is_one_product_of_integers(graph: tuple[Path, GraphFormat]) -> None:
    kinds = [node.op_type for node in onnx.load(graph[0]).graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 4
    assert not {"ConvTranspose", "MatMulInteger"}.intersection(kinds)


def test_a_row_is_the_same_bits_alone_beside_loud_ones_and_after_it_stood_still(
    graph: tuple[Path, GraphFormat],
) -> None:
    alone, beside = opened(graph), opened(graph)
    calm, loud = sound(4), sound(4)
    loud[:, [0, 2]] *= 1000
    everyone, one = np.arange(ROWS, dtype=np.int32), np.array([1], np.int32)
    for number, frame in enumerate(loud):
        wanted = alone.run(one, {"pcm": calm[number, one]})["heard"]
        assert np.array_equal(beside.run(everyone, {"pcm": frame})["heard"][one], wanted)
        beside.run(np.array([0, 2], np.int32), {"pcm": frame[[0, 2]]}, is_fixed=True)


def test_a_row_of_zeros_and_one_that_is_no_number_stay_by_themselves(graph: tuple[Path, GraphFormat]) -> None:
    calm, broken = opened(graph), opened(graph)
    everyone = np.arange(ROWS, dtype=np.int32)
    for frame in sound(5):
        frame[0] = 0
        wanted = calm.run(everyone, {"pcm": frame})["heard"]
        assert np.isfinite(wanted).all()
        frame[2] = np.nan
        assert np.array_equal(broken.run(everyone, {"pcm": frame})["heard"][:2], wanted[:2])


def test_a_reset_row_is_a_fresh_one(graph: tuple[Path, GraphFormat]) -> None:
    stage, fresh = opened(graph), opened(graph)
    for frame in sound(6):
        stage.run(np.arange(ROWS, dtype=np.int32), {"pcm": frame})
    stage.state.reset(range(ROWS))
    for name, array in stage.state.arrays.items():
        np.testing.assert_array_equal(array, fresh.state.arrays[name], err_msg=name)


def test_the_shortest_behind_an_elu_are_chosen_and_a_block_as_a_whole() -> None:
    encoder, _ = networks(replace(CONFIG, ratios=(3, 4)), most_positions=SAMPLES // 4)
    kinds = [type(layer) for layer in encoder.model if not isinstance(layer, nn.ELU)]
    first = [CausalConv1d, ResidualBlock, Turn, IntegerConv]
    assert kinds == [*first, ResidualBlock, IntegerConv, IntegerConv, Turn]
    small, large = (layer for layer in encoder.model if isinstance(layer, ResidualBlock))
    assert [type(small.block[index]) for index in (1, 3)] == [CausalConv1d] * 2
    assert [type(large.block[index]) for index in (1, 3)] == [IntegerConv] * 2


def test_what_has_gaps_between_its_taps_stays() -> None:
    encoder, _ = networks(replace(CONFIG, n_residual_layers=2), most_positions=SAMPLES)
    blocks = [layer for layer in encoder.model if isinstance(layer, ResidualBlock)]
    assert [type(block.block[1]) for block in blocks] == [IntegerConv, CausalConv1d]


def test_what_is_behind_an_elu_that_goes_below_minus_one_stays() -> None:
    for network in networks(replace(CONFIG, alpha=1.5), most_positions=SAMPLES):
        assert not any(isinstance(module, IntegerConv) for module in network.modules())


def test_a_long_transposed_convolution_keeps_its_last_input_instead_of_an_overlap() -> None:
    random = torch.Generator().manual_seed(1)
    plain = CausalConvTranspose1d("up", ConvShape(5, 3, 8, 4, is_transposed=True), positions=SAMPLES)
    for tensor in plain.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=random))
    layers = (plain, WholeConvTranspose(plain))
    states = [{spec.name: torch.zeros(ROWS, *spec.shape) for spec in layer.specs()} for layer in layers]
    for _ in range(FRAMES):
        x = torch.randn(ROWS, 5, SAMPLES, generator=random)
        outputs = []
        for layer, state in zip(layers, states, strict=True):
            step = MaskedStep(state, torch.ones(ROWS, dtype=torch.bool))
            outputs.append(layer(x, step))
            state.update(step.tensors)
        torch.testing.assert_close(outputs[1], outputs[0])


def test_a_long_transposed_convolution_is_replaced_where_others_are_rounded() -> None:
    for most_positions, kind in ((0, CausalConvTranspose1d), (2, WholeConvTranspose)):
        decoder = Seanet("decoder", replace(CONFIG, ratios=(4, 4)), 18)
        round_network(decoder, most_positions, middle=DECODER_MIDDLE)
        found = [type(layer) for layer in decoder.model if isinstance(layer, StreamingConv)]
        assert found.count(kind) == 2


def test_recipes_of_8_and_4_bits_choose_by_positions() -> None:
    most = {"encoder": 96, "decoder": 96}
    wanted = {"float32": {}, "int8": most, "int4": most, "small": most}
    assert {name: load_recipe("onnx", name).int8_convolution_positions for name in wanted} == wanted


@pytest.mark.parametrize(
    ("flags", "is_there"), [("sse2 avx512_vnni", True), ("avx2 avx_vnni", True), ("avx2 avx512f", False)]
)
def test_a_cpu_says_whether_it_has_vnni(tmp_path: Path, flags: str, is_there: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    assert has_vnni(cpuinfo) == is_there
    assert not has_vnni(tmp_path / "none")
