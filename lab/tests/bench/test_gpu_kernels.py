"""The machine code of every launch of a tick, counted on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton.compiler.errors import CompilationError

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.kernels.fused import LEAST_HEAD_DIM
from antiphon.backends.torch.kernels.steps import decode_attention
from antiphon.backends.torch.modules.attention import KVRing
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.state import State
from lab.bench import gpu_kernels
from lab.bench.gpu_kernels import faults, launches_of
from lab.bench.gpu_models import Form
from tests.backends.torch.compiled import AMPERE, HOPPER, assert_released_and_acquired
from tests.backends.torch.fake_cuda import Launch, fake_cuda
from tests.backends.torch.machine_code import count, machine_code

ROWS = (1, 4, 16, 128)
"""The buckets whose tiles differ most; ``python -m lab.bench.gpu_kernels`` has all."""
ON_AMPERE = (
    "attend_limbs",
    "choose_tokens",
    "make_and_multiply",
    "multiply_pairs",
    "multiply_rows",
    "prepare_rows",
)
MAY_FUSE = (
    "attend_limbs",
    "attend_split",
    "join_splits",
    "make_and_multiply",
    "prepare_rows",
    "write_window",
)
"""Kernels that may fuse multiply-adds: attention, an exact quotient, an exact sine. Other kernels must
not."""


@pytest.fixture(scope="module")
def launches() -> list[Launch]:
    """One launch of each kernel and shape; launches that differ only in runtime integers are not compiled
    again."""
    found: dict[object, Launch] = {}
    plain = launches_of(["moshi-7b"], [ROWS[-1]], Form.of(is_int8=False))
    packed = [
        launch
        for form in (KVForm.INT8_INT4, KVForm.INT4)
        for launch in launches_of(["moshi-7b"], [1], Form(8, form))
    ]
    small = launches_of(["stt-1b"], [1, 24], Form(4, KVForm.INT8))
    packed += [launch for launch in small if launch.name in ("multiply_pairs", "prepare_rows")]
    for launch in [*launches_of(["moshi-7b"], ROWS, Form.of(is_int8=True)), *plain, *packed]:
        shape = {name: value for name, value in launch.constants.items() if name.isupper()}
        found.setdefault((launch.name, str(shape)), launch)
    return list(found.values())


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def test_every_launch_of_a_tick_is_within_bounds(launches: list[Launch], tmp_path: Path) -> None:
    """Nothing spilled, short straight code, no barrier before a product's loop, weights at memory's rate.

    If the machine code has rules for the order of memory, they are checked, too.
    """
    assert len({launch.name for launch in launches}) == 18
    wrong = []
    for launch in launches:
        kernel = launch.compiled(HOPPER)
        ptx, code = kernel.asm["ptx"], machine_code(kernel, tmp_path)
        wrong += [f"{launch.name} {launch.constants}: {fault}" for fault in faults(launch, code)]
        if launch.name == "attend_limbs" or (
            launch.constants.get("IS_ROUNDED") and launch.name == "attend_steps"
        ):
            assert_released_and_acquired(ptx)
        if launch.name == "join_past":  # every thread has read the past before one writes it
            assert ptx.rindex("ld.global") < ptx.rindex("bar.sync") < ptx.rindex("st.global")
        if launch.name == "write_window":  # the GPU's own exp, sin and cos are too inexact for long calls
            assert ".approx" not in ptx
        if launch.name not in MAY_FUSE:
            assert "fma.rn.f32" not in ptx, launch.name
            assert "fma.rn.ftz.f32" not in ptx, launch.name
        if launch.name == "multiply_rows":  # from 64 rows on Hopper multiplies by warp groups
            parts = (code.straight, *code.loops)
            assert bool(sum(count(part, "IGMMA") for part in parts)) is (launch.constants["ROWS"] >= 64)
    assert wrong == []


def test_the_largest_kernels_are_within_bounds_on_older_cards(launches: list[Launch], tmp_path: Path) -> None:
    largest = {
        (launch.name, launch.constants.get("IS_K_PACKED"), launch.constants.get("IS_V_PACKED")): launch
        for launch in launches
        if launch.name in ON_AMPERE
    }
    assert len(largest) == len(ON_AMPERE) + 2
    for launch in largest.values():
        code = machine_code(launch.compiled(AMPERE), tmp_path)
        assert list(faults(launch, code)) == [], launch.name


def attention_over(form: KVForm, head_dim: int) -> Launch:
    """The launch that reads a page of a ring of one head."""
    ring = KVRing("ring", 1, PAGE_SLOTS, head_dim, torch.bfloat16, "position", form)
    with fake_cuda() as cuda:
        specs = [TensorSpec("position", (), torch.int64), *(spec.pooled() for spec in ring.specs())]
        step = State(specs, 1, "cuda").step([0])
        q = torch.zeros(1, 1, 1, head_dim, dtype=ring.dtype, device="cuda")
        decode_attention(q, ring.view(step), step.rows, step.rows, PAGE_SLOTS)
    return cuda.launches[-1]


@pytest.mark.parametrize("form", KVForm)
def test_attention_compiles_from_the_least_width_of_heads_and_not_below(form: KVForm) -> None:
    """An interpreted kernel accepts any width."""
    least = LEAST_HEAD_DIM[form]
    assert attention_over(form, least).compiled(HOPPER).asm["cubin"]
    assert attention_over(form, least).compiled(AMPERE).asm["cubin"]
    with pytest.raises(CompilationError):
        attention_over(form, least // 2).compiled(HOPPER)


def test_a_launch_out_of_bounds_is_told(
    launches: list[Launch], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_kernels.STRAIGHT, "remember_words", 10)
    words = ["--rows", "1", "--kernel", "remember_words"]
    assert gpu_kernels.main(words) == 1
    assert "straight instructions: 54, at most 10" in capsys.readouterr().out
