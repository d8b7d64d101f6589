"""``antiphon bench`` and ``antiphon verify``: the measurements of a model, and the gate's verdict on it.

The commands stand here because measurement knows nothing of the gate and the gate nothing of measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon.errors import MissingExtraError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.bench import main as card
from antiphon_quantize.bench import verify as verification
from antiphon_quantize.bench.card import Quality, quality_from_json
from antiphon_quantize.bench.subject import Subject
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import to_json
from antiphon_quantize.gate_run import Material, Side


def bench(argv: Sequence[str]) -> int:
    """Run ``antiphon bench``; see :func:`antiphon_quantize.bench.main.main`."""
    return card.main(argv, run_gate)


def verify(argv: Sequence[str]) -> int:
    """Run ``antiphon verify``; see :func:`antiphon_quantize.bench.verify.main`."""
    return verification.main(argv, run_gate)


def run_gate(
    candidate: Subject, baseline: Subject, *, questions: Path | None, tell: Callable[[str], None]
) -> Quality:
    """Let the gate compare two models; see :class:`antiphon_quantize.bench.options.Gate`."""
    try:
        one, other = (
            Side(load_checkpoint(side.model), side.backend, dict(side.options))
            for side in (baseline, candidate)
        )
        material = Material(questions=questions, device=candidate.device)
        limits = limits_of(other.checkpoint, other.backend)
        verdict = to_json(judge(one, other, limits, material, tell))
    except ImportError as error:
        module = error.name or str(error)
        raise MissingExtraError("the quality gate", extra="quantize", module=module) from error
    return quality_from_json(verdict, baseline.label, "the gate's verdict")
