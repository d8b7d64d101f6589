"""Common parts of all trainers: the schedule, the log, saving, stopping, resuming."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from lab.train.loop import (
    Course,
    Schedule,
    WorkingClock,
    checkpoint_in,
    fast_arithmetic,
    is_fast_in_bfloat16,
    run,
    run_until_stopped,
)

SCHEDULE = Schedule(peak_learning_rate=0.1, warm_up_steps=4, total_steps=40)


class Walker:
    """Takes steps and runs given actions in some of them."""

    def __init__(self, out: Path, stops_at: int = -1) -> None:
        self.out, self.step, self.stops_at = out, 0, stops_at
        self.saves: list[int] = []

    def train_step(self) -> Mapping[str, float]:
        self.step += 1
        if self.step == self.stops_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"way": float(self.step)}

    def notes(self) -> Mapping[str, float]:
        return {"height": 7.0} if self.step == 6 else {}

    def save(self) -> None:
        self.saves.append(self.step)


def test_the_learning_rate_rises_and_falls() -> None:
    schedule = Schedule(4e-4, warm_up_steps=200, total_steps=14_000, final_share=0.02)
    rates = [schedule.learning_rate(step) for step in (0, 99, 199, 14_000, 20_000)]
    assert rates[0] == pytest.approx(4e-4 / 200)
    assert rates[1] == pytest.approx(2e-4, rel=0.01)
    assert rates[1] < rates[2] > rates[3] == rates[4] == pytest.approx(0.02 * 4e-4)


def test_a_run_logs_means_and_notes_and_saves_at_its_end(tmp_path: Path) -> None:
    walker = Walker(tmp_path)
    run(walker, 8, minutes=1, log_every=4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line.get("step"), line.get("way"), line.get("height")) for line in lines] == [
        (4, 2.5, None),
        (None, None, 7.0),
        (8, 6.5, None),
    ]
    assert walker.saves == [8]


def test_a_line_is_the_mean_of_the_steps_since_the_last_or_since_the_run_went_on(tmp_path: Path) -> None:
    walker = Walker(tmp_path)
    walker.step = 3
    run(walker, 8, minutes=1, log_every=4)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["way"] for line in lines if "way" in line] == [4.0, 6.5]


def test_a_part_of_some_steps_is_the_mean_of_these(tmp_path: Path) -> None:
    walker = Walker(tmp_path)

    def step() -> Mapping[str, float]:
        walker.step += 1
        return {"voice": float(walker.step)} if walker.step % 2 else {}

    walker.train_step = step  # type: ignore[method-assign]
    run(walker, 4, minutes=1, log_every=4)
    assert json.loads((tmp_path / "log.jsonl").read_text())["voice"] == 2.0


def test_a_run_ends_with_its_time_and_saves_on_the_way(tmp_path: Path) -> None:
    walker = Walker(tmp_path)
    run(walker, 10_000, minutes=20, clock=lambda: walker.step * 60.0)
    assert walker.step == 20
    assert walker.saves == [5, 10, 15, 20, 20]


def test_a_stopped_run_saves_and_says_so(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    walker = Walker(tmp_path, stops_at=3)
    try:
        assert run_until_stopped(walker, 10_000, minutes=1) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert walker.saves == [3]


def test_a_pause_takes_none_of_a_runs_minutes() -> None:
    before, now_s = signal.getsignal(signal.SIGCONT), [10.0]
    try:
        clock = WorkingClock(lambda: now_s[0])
        now_s[0] = 12.0
        assert clock() == 12.0
        now_s[0] = 500.0  # stopped for this time
        os.kill(os.getpid(), signal.SIGCONT)
        assert clock() == 12.0
        now_s[0] = 503.0
        assert clock() == 15.0
    finally:
        signal.signal(signal.SIGCONT, before)


def test_a_course_judges_the_average_of_its_weights_and_keeps_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    first, start = Course(model, SCHEDULE, tmp_path, averaged_steps=4), model.weight.detach().clone()
    for _ in range(3):
        first.update(model(torch.ones(1, 3)).square().sum())
    average = first.judged.state_dict()["weight"]
    assert 0 < (average - start).abs().max() < (model.weight - start).abs().max()
    first.save()
    second = Course(nn.Linear(3, 1), SCHEDULE, tmp_path, averaged_steps=4)
    assert torch.equal(second.judged.state_dict()["weight"], average)
    assert torch.equal(second.model.state_dict()["weight"], model.weight)
    unaveraged = Course(nn.Linear(3, 1), SCHEDULE, tmp_path / "other")
    assert unaveraged.judged is unaveraged.model
    unaveraged.save()
    since = Course(nn.Linear(3, 1), SCHEDULE, tmp_path / "other", averaged_steps=4)
    assert torch.equal(since.judged.state_dict()["weight"], unaveraged.model.state_dict()["weight"])


def test_the_best_checkpoint_is_taken_else_the_last(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^no checkpoint in .*; a trainer of lab.train writes best/ and"):
        checkpoint_in(tmp_path)
    for name in ("last", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
        assert checkpoint_in(tmp_path) == tmp_path / name
        assert checkpoint_in(tmp_path / name) == tmp_path / name


def test_a_course_goes_on_where_it_was(tmp_path: Path) -> None:
    def made(out: Path) -> Course:
        torch.manual_seed(0)
        return Course(nn.Linear(3, 1), SCHEDULE, out)

    def train(course: Course, steps: int) -> None:
        for _ in range(steps):
            course.update(course.model(torch.ones(1, 3)).square().sum())

    whole, first = made(tmp_path / "whole"), made(tmp_path / "halves")
    train(whole, 6)
    train(first, 3)
    assert first.is_best(0.5)
    assert not first.is_best(0.4)
    assert first.is_best(0.5)
    first.save()
    second = made(tmp_path / "halves")
    assert (second.step, second.best) == (3, 0.5)
    train(second, 3)
    assert second.step == whole.step == 6
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert set(torch.load(tmp_path / "halves" / "trainer.pt", weights_only=True)) == {
        "model",
        "optimizer",
        "step",
        "best",
    }


def test_only_matrices_decay(tmp_path: Path) -> None:
    still = replace(SCHEDULE, weight_decay=0.5, warm_up_steps=1)
    course = Course(nn.Linear(3, 1), still, tmp_path)
    before = [parameter.detach().clone() for parameter in course.model.parameters()]
    course.update(sum((parameter * 0).sum() for parameter in course.model.parameters()) + torch.zeros(1))
    weight, bias = course.model.parameters()
    torch.testing.assert_close(weight, before[0] * (1 - 0.1 * 0.5))
    torch.testing.assert_close(bias, before[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("capabilities", "seconds", "expected"),
    [
        ({"avx512_bf16": True}, {torch.float32: 2.0, torch.bfloat16: 3.0}, False),
        ({"amx_bf16": True}, {torch.float32: 2.0, torch.bfloat16: 0.5}, True),
        ({"avx512_f": True}, {torch.float32: 2.0, torch.bfloat16: 0.5}, False),
    ],
)
def test_products_are_in_bfloat16_where_a_cpu_has_it_and_is_faster_in_it(
    capabilities: dict[str, bool],
    seconds: dict[torch.dtype, float],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    kinds = [kind for kind in (torch.float32, torch.bfloat16) for _ in range(5)]
    readings = iter([reading for kind in kinds for reading in (0.0, seconds[kind])])
    assert is_fast_in_bfloat16(lambda: next(readings)) is expected


def test_a_step_is_in_the_faster_arithmetic() -> None:
    assert torch.is_autocast_enabled("cpu") is False
    with fast_arithmetic():
        assert torch.is_autocast_enabled("cpu") is is_fast_in_bfloat16()
