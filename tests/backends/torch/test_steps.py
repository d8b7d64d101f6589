"""The kernels around linears, rings and tokens: interpreted in a process of their own, and compiled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.backends.torch.kernels.delay_kernels import hear_tokens, say_tokens
from antiphon.backends.torch.kernels.pasts import PIECE as PASTS_PIECE
from antiphon.backends.torch.kernels.pasts import join_past
from antiphon.backends.torch.kernels.row_kernels import embed_rows, embed_streams, prepare_rows
from antiphon.backends.torch.kernels.rows import MANY_ELEMENTS
from antiphon.backends.torch.kernels.rows import PIECE as ROW_PIECE
from antiphon.backends.torch.kernels.step_kernels import attend_steps, turn_and_write, write_window
from antiphon.backends.torch.kernels.token_kernels import (
    choose_tokens,
    draw_noise,
    remember_words,
    weigh_words,
)
from antiphon.backends.torch.kernels.tokens import MOST_TOKENS, PIECE, WEIGHED, WORDS_PIECE, warps_of
from antiphon.backends.torch.modules.kv import PAGE_SLOTS
from antiphon.models.row_parameters import RECENT_WORDS
from tests.backends.torch.compiled import assert_released_and_acquired, compiled

CHECKS = Path(__file__).parent / "interpreted" / "check_steps.py"
ROOT = Path(__file__).parents[3]
WHOLE = ("token", "at", "rows", "offset", "code", "said", "delay", "initial", "recent", "out")
"""Pointers to integers of the kernels that keep tokens."""


@pytest.mark.parametrize(("chosen", "least"), [("language_model", 5), ("not language_model", 40)])
def test_the_kernels_pass_their_checks_interpreted(chosen: str, least: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"(\d+) passed", run.stdout)
    assert found, run.stdout
    assert int(found[1]) >= least


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # unset, it is warned about


@pytest.mark.parametrize(("is_normed", "is_gated", "width"), [(True, False, 4096), (False, True, 11264)])
def test_what_makes_rows_compiles(is_normed: bool, is_gated: bool, width: int) -> None:
    kernel = compiled(
        prepare_rows,
        {"x_ptr": "*bf16", "alpha_ptr": "*bf16", "out_ptr": "*i8", "eps": "fp32"},
        {"num_warps": 16 if width > MANY_ELEMENTS else 8, "enable_fp_fusion": False},
        WIDTH=width,
        BLOCK=1 << (width - 1).bit_length(),
        IS_NORMED=is_normed,
        IS_GATED=is_gated,
        IS_ROUNDED=True,
    )
    assert kernel.asm["cubin"]
    assert "fma.rn" not in kernel.asm["ptx"]


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_what_turns_and_writes_compiles(is_int8: bool, is_interleaved: bool) -> None:
    ring = "*i8" if is_int8 else "*bf16"
    types = {"projected_ptr": "*bf16", "slot_ptr": "*i64", "rows_ptr": "*i64", "q_ptr": "*bf16"}
    kernel = compiled(
        turn_and_write,
        types | {"k_ptr": ring, "v_ptr": ring, "bound": "fp32"},
        {"num_warps": 1, "enable_fp_fusion": False},
        HEADS=32,
        KV_HEADS=32,
        COUNT=1,
        CAPACITY=3000,
        WIDTH=128,
        IS_TURNED=True,
        IS_INTERLEAVED=is_interleaved,
        PAGE=PAGE_SLOTS if is_int8 else 0,
    )
    assert kernel.asm["cubin"]


def test_what_opens_a_frame_compiles_with_exact_turns() -> None:
    """A card's own approximations of exp, sin and cos are off by too much at the positions of long calls."""
    whole = dict.fromkeys(("position_ptr", "at_ptr", "first_ptr", "slot_ptr"), "*i64")
    kernel = compiled(
        write_window,
        whole | {"ticket_ptr": "*i32", "exponent": "fp32"},
        {"num_warps": 1, "enable_fp_fusion": False},
        COUNT=2,
        CAPACITY=3000,
        HALF=64,
        IS_TURNED=True,
        TICKETS=65,
        TICKETS_BLOCK=128,
    )
    assert kernel.asm["cubin"]
    assert ".approx" not in kernel.asm["ptx"]


@pytest.mark.parametrize(("past", "length"), [(6, 1920), (5, 480), (8, 16)])
def test_what_joins_pasts_compiles(past: int, length: int) -> None:
    """Nothing is spilled; every thread has read the past before one writes it."""
    block = 1 << (past + length - 1).bit_length()
    kernel = compiled(
        join_past, {"at_ptr": "*i64"}, {"enable_fp_fusion": False},
        PAST=past, LENGTH=length, CHANNELS=PASTS_PIECE // block, BLOCK=block,
    )  # fmt: skip
    assert kernel.asm["cubin"]
    ptx = kernel.asm["ptx"]
    assert ptx.rindex("ld.global") < ptx.rindex("bar.sync") < ptx.rindex("st.global")


@pytest.mark.parametrize("steps", [8, 32])
def test_the_depformers_attention_compiles(steps: int) -> None:
    kernel = compiled(
        attend_steps,
        {
            "projected_ptr": "*bf16",
            "past_ptr": "*bf16",
            "out_ptr": "*bf16",
            "rounded_ptr": "*i8",
            "ticket_ptr": "*i32",
            "scale": "fp32",
        },
        {"num_warps": 1, "enable_fp_fusion": False},
        HEADS=16,
        GROUP=1,
        STEPS=steps,
        BLOCK=steps,
        WIDTH=64,
        IS_ROUNDED=True,
        ROUNDED_BLOCK=1024,
    )
    assert kernel.asm["cubin"]
    assert_released_and_acquired(kernel.asm["ptx"])


def test_the_kernels_of_tokens_compile_without_fused_multiply_adds() -> None:
    """The norm rounds each operation on its own; the logarithm's own are in float64."""
    exact = {"enable_fp_fusion": False}
    draw = compiled(
        draw_noise, {"seed_ptr": "*i64", "frame_ptr": "*i64", "stream_ptr": "*i64"}, exact, BLOCK=128
    )
    integers = {"topk_ptr": "*i64", "token_ptr": "*i64"}
    text = {"logits_ptr": "*bf16", "recent_ptr": "*i64", "at_ptr": "*i64", "context_ptr": "*i64"}
    weigh = compiled(weigh_words, text, exact, WORDS=RECENT_WORDS, PIECE=WORDS_PIECE, BLOCK=WEIGHED)
    choose = [
        compiled(
            choose_tokens, integers, exact | {"num_warps": warps_of(block)},
            BLOCK=block, PIECE=PIECE, IS_SCALED=block == MOST_TOKENS,
        )
        for block in (PIECE, MOST_TOKENS)
    ]  # fmt: skip
    for kernel in (draw, weigh, *choose):
        assert kernel.asm["cubin"]
        assert "fma.rn.f32" not in kernel.asm["ptx"]
        assert "fma.rn.ftz.f32" not in kernel.asm["ptx"]


def test_the_kernels_of_delays_and_words_compile() -> None:
    whole = dict.fromkeys((f"{name}_ptr" for name in WHOLE), "*i64")
    streams = {"GENERATED": 9, "STREAMS": 17, "CAPACITY": 3, "BLOCK": 32}
    for kernel in (hear_tokens, say_tokens):
        assert compiled(kernel, whole, {"num_warps": 1}, **streams).asm["cubin"]
    assert compiled(remember_words, whole, {"num_warps": 1}, WORDS=RECENT_WORDS).asm["cubin"]


def test_the_simplest_kernels_compile() -> None:
    types = {"token_ptr": "*i64", "table_ptr": "*bf16", "added_ptr": "*bf16", "out_ptr": "*bf16"}
    for is_added in (False, True):
        assert compiled(embed_rows, types, BLOCK=ROW_PIECE, IS_ADDED=is_added).asm["cubin"]
    types = {"token_ptr": "*i64", "audio_ptr": "*bf16", "text_ptr": "*bf16", "out_ptr": "*bf16"}
    assert compiled(embed_streams, types, STREAMS=16, BLOCK=ROW_PIECE).asm["cubin"]
