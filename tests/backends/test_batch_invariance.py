"""Stages whose results are bit-identical for any number of rows, without fixed ticks.

The table is that of docs/adr/0021-ready-rows.md. It holds on x86-64 with the pinned runtimes: what is listed
as identical is, and what is not listed may be so on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from antiphon.backends.base import HostArray
from antiphon.backends.registry import make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import Driver, voice

FRAMES, ROW = 8, 1
RECORD = Path(__file__).parents[2] / "docs/adr/0021-ready-rows.md"
STAGES = ("encode", "lm", "decode")
FORMS = (("onnx", None), ("torch", "float32"), ("torch", "bfloat16"), ("mlx", "float32"))
MOST_ROWS: Mapping[str, int] = {"onnx": 8, "torch": 8, "mlx": 3}
"""mlx takes half a second a tick on a CPU."""

CASES = [(model, *form) for model in ("tiny", "tiny-stt") for form in FORMS]

Key = tuple[str, str, str, str]


def table() -> Mapping[Key, bool]:
    """By model, backend, dtype and stage: whether the record promises identical bits."""
    row = re.compile(
        r"^\| `([\w-]+)` \| (\w+) \| (\w+) \| (yes|no) \| (yes|no) \| (yes|no|-) \|$", re.MULTILINE
    )
    found: dict[Key, bool] = {}
    for model, backend, dtype, *answers in row.findall(RECORD.read_text(encoding="utf-8")):
        for stage, answer in zip(STAGES, answers, strict=True):
            if answer != "-":
                found[model, backend, dtype, stage] = answer == "yes"
    return found


def stage_of(name: str) -> str | None:
    """The stage a tensor of a row's state belongs to; None for what the host counts."""
    kinds: tuple[tuple[str, Callable[[str], bool]], ...] = (
        ("encode", lambda it: it.startswith("encoder")),
        ("decode", lambda it: it.startswith("decoder")),
        ("lm", lambda it: not it.startswith("host.")),
    )
    return next((stage for stage, is_one in kinds if is_one(name)), None)


def life(driver: Driver, count: int) -> dict[str, list[HostArray]]:
    """A session on one row, beside ``count - 1`` others: all outputs and the state at the end, by stage."""
    frames = voice(1, FRAMES, driver.info)
    others = [row for row in range(driver.info.slots) if row != ROW][: count - 1]
    beside = {row: voice(2 + row, FRAMES, driver.info, level=5.0) for row in others}
    found: dict[str, list[HostArray]] = {stage: [] for stage in STAGES}
    for index, frame in enumerate(frames):
        named = {ROW: frame, **{row: speech[index] for row, speech in beside.items()}}
        reply = driver.tick(named, reset=named if index == 0 else ())[ROW]
        found["lm"].append(np.array(reply.text_token))
        found["lm"] += [] if reply.vad is None else [reply.vad]
        found["decode"] += [] if reply.pcm is None else [reply.pcm]
    state = driver.backend.to_host(driver.backend.snapshot(ROW))
    for name in sorted(state):
        if (stage := stage_of(name)) is not None:
            found[stage].append(state[name])
    return found


def is_same(one: list[HostArray], other: list[HostArray]) -> bool:
    return len(one) == len(other) and all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("model", "backend", "dtype"), CASES)
def test_listed_stages_are_bit_identical_at_every_number_of_rows(
    model: str, backend: str, dtype: str | None
) -> None:
    slots = MOST_ROWS[backend]
    options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
    if backend != "mlx":  # which has no say in its threads
        options["threads"] = 1
    made = make_backend(backend, load_checkpoint(model), slots=slots, device="cpu", options=options)
    driver = Driver(made)
    for row in range(slots):
        made.set_parameters(row, SamplingParameters(text_seed=row, audio_seed=row))
    alone = life(driver, 1)
    lives = [life(driver, count) for count in range(2, slots + 1)]
    made.close()
    same = {name: all(is_same(alone[name], other[name]) for other in lives) for name in STAGES if alone[name]}
    promised = {name: table()[model, backend, made.info.dtype, name] for name in same}
    broken = [stage for stage, is_promised in promised.items() if is_promised and not same[stage]]
    assert not broken, f"{broken} differ, the record says that they do not"
