"""Mimi compared with upstream's, and with itself for each way to call it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from antiphon.backends.torch.modules.mimi import CausalConvTranspose1d, Mimi
from antiphon.backends.torch.state import NO_ROW, MaskedStep, State, row_bytes
from antiphon.backends.torch.weights import load_mimi
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.architecture import ConvShape
from tests.backends.torch.small import MimiPair

FRAME = 1920
ROWS = 4


def alone(pair: MimiPair, pcm: Tensor) -> tuple[Tensor, Tensor]:
    """Upstream on one session by itself: codes ``[codebooks, F]`` and PCM ``[F * 1920]``."""
    codes, out = [], []
    with pair.upstream.streaming(1):
        for frame in pcm.split(FRAME):
            codes.append(pair.upstream.encode(frame.view(1, 1, -1)))
            out.append(pair.upstream.decode(codes[-1]))
    return torch.cat(codes, -1)[0], torch.cat(out, -1)[0, 0]


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> bool:
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())


@pytest.mark.parametrize("packed", [False, True])
def test_sessions_that_join_pause_and_restart_equal_upstream_alone(mimi: MimiPair, packed: bool) -> None:
    model = mimi.ours
    if packed:
        model = copy.deepcopy(model).prepare(pack=True)
    state = State(model.specs(), ROWS)
    generator = torch.Generator().manual_seed(3)
    loudness = torch.tensor([0.1, 5.0, 0.02, 0.3])
    heard: dict[tuple[int, int], list[Tensor]]
    heard = {(row, life): [] for row in range(ROWS) for life in range(2)}
    codes: dict[tuple[int, int], list[Tensor]] = {key: [] for key in heard}
    spoken: dict[tuple[int, int], list[Tensor]] = {key: [] for key in heard}
    life = [0] * ROWS
    for tick in range(44):
        mask = torch.rand(ROWS, generator=generator) < 0.8
        mask &= torch.tensor([tick >= 2 * row for row in range(ROWS)])
        if tick in (19, 22, 25):
            row = (tick - 19) // 3
            state.reset([row])
            life[row] = 1
        pcm = torch.randn(ROWS, FRAME, generator=generator) * loudness[:, None]
        rows = mask.nonzero().flatten().tolist()[:: (-1) ** tick]
        if not rows:
            continue
        got = model.encode(pcm[rows], state.step(rows))
        out = model.decode(got, state.step(rows))
        for place, row in enumerate(rows):
            heard[row, life[row]].append(pcm[row])
            codes[row, life[row]].append(got[place])
            spoken[row, life[row]].append(out[place])
    assert sum(len(frames) > 10 for frames in heard.values()) >= 6  # past the window of 5 frames, twice
    for key, frames in heard.items():
        if not frames:
            continue
        want_codes, want_pcm = alone(mimi, torch.cat(frames))
        assert torch.equal(torch.cat(codes[key], -1), want_codes)
        assert close(torch.cat(spoken[key]), want_pcm)


def test_several_frames_at_once_equal_one_by_one(mimi: MimiPair) -> None:
    model, pcm = mimi.ours, torch.randn(2, 24 * FRAME) * 0.1
    one, many = State(model.specs(), 2), State(model.specs(), 2)
    by_one = torch.cat([model.encode(frame, one.step()) for frame in pcm.split(FRAME, dim=1)], -1)
    at_once = torch.cat([model.encode(part, many.step()) for part in pcm.split(8 * FRAME, dim=1)], -1)
    assert torch.equal(by_one, at_once)
    pcm_one = torch.cat([model.decode(code, one.step()) for code in by_one.split(1, dim=-1)], -1)
    pcm_many = torch.cat([model.decode(code, many.step()) for code in by_one.split(8, dim=-1)], -1)
    assert close(pcm_many, pcm_one)
    assert all(torch.allclose(one.tensors[name], many.tensors[name], atol=1e-4) for name in one.tensors)


def test_offline_equals_upstream_offline_inside_the_window(mimi: MimiPair) -> None:
    pcm = torch.randn(1, 5 * FRAME) * 0.1
    codes = mimi.ours.encode(pcm, State(mimi.ours.specs(), 1).step())
    assert torch.equal(codes, mimi.upstream.encode(pcm[:, None]))
    out = mimi.ours.decode(codes, State(mimi.ours.specs(), 1).step())
    assert close(out, mimi.upstream.decode(codes)[:, 0])


def test_reads_bounded_by_what_is_filled_change_nothing(mimi: MimiPair) -> None:
    model, pcm = mimi.ours, torch.randn(8, 2, FRAME) * 0.1
    bounded, full = State(model.specs(), 2), State(model.specs(), 2)
    for done, frame in enumerate(pcm):
        codes = model.encode(frame, full.step())
        step = bounded.step(filled=[done + 1] * 2)
        assert torch.equal(codes, model.encode(frame, step))
        out = model.decode(codes, full.step())
        assert close(model.decode(codes, step), out, 1e-6)


def test_a_restored_row_continues_bit_identically(mimi: MimiPair) -> None:
    model, pcm = mimi.ours, torch.randn(20, 2, FRAME) * 0.1
    state, other = State(model.specs(), 2), State(model.specs(), 2)
    for frame in pcm[:9]:
        model.decode(model.encode(frame, state.step()), state.step())
    for target, row in ((other, 0), (other, 1), (state, 1)):
        kept = state.snapshot(row if target is other else 0)
        target.reset([row])
        target.check(kept)
        target.restore(row, kept)
    for frame in pcm[9:]:
        frame = frame[:1].expand(2, -1)
        codes = model.encode(frame, state.step())
        assert torch.equal(codes[0], model.encode(frame, other.step())[0])
        out = model.decode(codes, state.step())
        assert torch.equal(out[0], out[1])
        assert torch.equal(out[0], model.decode(codes, other.step())[0])


def test_a_reset_row_is_a_fresh_one_whatever_it_held(mimi: MimiPair) -> None:
    state, fresh = State(mimi.ours.specs(), 3), State(mimi.ours.specs(), 3)
    for _ in range(7):
        codes = mimi.ours.encode(torch.full((3, FRAME), float("nan")), state.step())
        mimi.ours.decode(codes, state.step())
    kept = state.snapshot(1)
    state.reset([0, 2])
    for name, tensor in state.tensors.items():
        assert torch.equal(tensor[[0, 2]], fresh.tensors[name][[0, 2]])
    for name, tensor in state.snapshot(1).items():
        assert torch.equal(tensor.nan_to_num(), kept[name].nan_to_num())


def test_a_row_that_is_not_named_does_not_move(mimi: MimiPair) -> None:
    state = State(mimi.ours.specs(), 2)
    mimi.ours.encode(torch.randn(2, FRAME), state.step())
    before = state.snapshot(1)
    mimi.ours.encode(torch.full((1, FRAME), float("inf")), state.step([0]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.snapshot(1).items())


def test_pure_functions_and_updates_in_place_agree(mimi: MimiPair) -> None:
    state = State(mimi.ours.specs(), 2)
    pcm, mask = torch.randn(2, FRAME), torch.tensor([True, False])
    start = {name: tensor[:2].clone() for name, tensor in state.tensors.items()}
    pure = MaskedStep(start, mask)
    codes = mimi.ours.encode(pcm, pure)
    assert all(torch.equal(start[name], tensor[:2]) for name, tensor in state.tensors.items())
    assert torch.equal(codes[:1], mimi.ours.encode(pcm, state.step([0, NO_ROW]))[:1])
    assert all(torch.equal(pure.tensors[name], tensor[:2]) for name, tensor in state.tensors.items())


def test_state_is_counted_before_it_is_allocated(mimi: MimiPair) -> None:
    assert State(mimi.ours.specs(), 3).bytes() == 3 * row_bytes(mimi.ours.specs())


def test_a_published_file_loads_and_a_broken_one_is_named(mimi: MimiPair, tmp_path: Path) -> None:
    path = tmp_path / "mimi.safetensors"
    tensors = {name: tensor.clone() for name, tensor in mimi.upstream.state_dict().items()}
    save_file(tensors, path)
    loaded = load_mimi(path, mimi.config, 4).prepare()
    pcm = torch.randn(1, FRAME)
    codes = loaded.encode(pcm, State(loaded.specs(), 1).step())
    assert torch.equal(codes, mimi.ours.encode(pcm, State(mimi.ours.specs(), 1).step()))
    del tensors["upsample.convtr.convtr.convtr.weight"]
    tensors["extra"] = torch.zeros(1)
    save_file(tensors, path)
    message = r"1 tensors missing \['upsample.weight'\], 1 unknown \['extra'\]"
    with pytest.raises(CheckpointFormatError, match=message):
        load_mimi(path, mimi.config, 4)


def test_a_bfloat16_file_computes_in_float32(mimi: MimiPair, tmp_path: Path) -> None:
    paths = tmp_path / "bf16.safetensors", tmp_path / "widened.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in mimi.upstream.state_dict().items()}
    save_file(tensors, paths[0])
    save_file({name: tensor.float() for name, tensor in tensors.items()}, paths[1])
    halves, wide = (load_mimi(path, mimi.config, 4).state_dict() for path in paths)
    assert all(tensor.dtype == torch.float32 and torch.equal(tensor, wide[k]) for k, tensor in halves.items())


def test_a_shape_that_disagrees_is_named(mimi: MimiPair, tmp_path: Path) -> None:
    path = tmp_path / "mimi.safetensors"
    tensors = {name: tensor.clone() for name, tensor in mimi.upstream.state_dict().items()}
    tensors["encoder.model.0.conv.conv.bias"] = torch.zeros(9)
    save_file(tensors, path)
    with pytest.raises(
        CheckpointFormatError, match=r"encoder.model.0.bias is \(9,\), the configuration says \(4,\)"
    ):
        load_mimi(path, mimi.config, 4)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("seanet", {"pad_mode": "reflect"}, "pad_mode is 'reflect'; only 'constant' can be run"),
        ("transformer", {"d_model": 64}, "width 64 between 32 and"),
        ("transformer", {"norm": "batch"}, "norm is 'batch'; it can be one of"),
        ("transformer", {"gating": "glu"}, "gating is 'glu'; it can be none, silu"),
    ],
)
def test_what_cannot_be_run_is_said(mimi: MimiPair, part: str, change: dict[str, Any], message: str) -> None:
    config = copy.deepcopy(mimi.config)
    config[part] |= change
    with pytest.raises(UnsupportedError, match=message):
        Mimi(config, 4)


def test_a_depthwise_layer_of_more_outputs_than_inputs_spreads_as_the_library_does() -> None:
    shape = ConvShape(2, 4, 4, stride=2, bias=False, is_transposed=True)
    layer = CausalConvTranspose1d("upsample", shape, positions=1, depthwise=True)
    random = torch.Generator().manual_seed(3)
    layer.weight.data.normal_(generator=random)
    x = torch.randn(3, 2, 1, generator=random)
    wanted = functional.conv_transpose1d(x, layer.weight, stride=2, groups=2)
    torch.testing.assert_close(layer.spread(x), wanted)
