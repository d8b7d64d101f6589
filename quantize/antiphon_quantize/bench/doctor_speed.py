"""The speed test of ``antiphon doctor``: the model as it would be served, for some seconds."""

from __future__ import annotations

from antiphon.backends.registry import resolve_auto
from antiphon.config import ModelConfig, ServerConfig
from antiphon.engine.config import EngineConfig
from antiphon.errors import AntiphonError, MissingExtraError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.serve.hosting.engines import backend_factory
from antiphon_quantize.bench.doctor_checks import DoctorLine, DoctorState
from antiphon_quantize.bench.slots import Found, find_slots

SECONDS = 3.0


def check_default(model: str, *, is_timed: bool) -> DoctorLine:
    """What runs ``model`` here, and how fast: the slots a server would take, and the ticks of all of them."""
    try:
        checkpoint = load_checkpoint(model)
        backend = resolve_auto(checkpoint)
        if not is_timed:
            return DoctorLine("model", DoctorState.OK, f"{describe(checkpoint)} runs on {backend}; not timed")
        config = ModelConfig(model=model)
        found = find_slots(backend_factory(ServerConfig(), config, checkpoint), EngineConfig(), SECONDS)
    except MissingExtraError as error:
        words, _, remedy = str(error).rpartition("; install it with: ")
        return DoctorLine("model", DoctorState.MISSING, words, remedy)
    except AntiphonError as error:
        return DoctorLine("model", DoctorState.MISSING, str(error), "antiphon models lists others")
    return judge(f"{describe(checkpoint)} on {backend}", found)


def describe(checkpoint: Checkpoint) -> str:
    """The model in a few words."""
    spec = checkpoint.spec
    return f"{spec.name} ({spec.kind}, {spec.parameters / 1e6:.1f} M parameters)"


def judge(what: str, found: Found) -> DoctorLine:
    """The finding of a measurement."""
    words = (
        f"{what}: {found.slots} calls at once; a tick of their ready rows takes {found.p99_ms:.1f} ms "
        f"(p99 of {len(found.turn.tick_s)}), the most is {found.limit_ms:.0f}"
    )
    if found.is_in_time:
        return DoctorLine("model", DoctorState.OK, words)
    remedy = f"--slots {max(1, found.slots // 2)}, or a quieter machine: antiphon bench slots measures longer"
    return DoctorLine("model", DoctorState.NOTE, f"{words}: answers would be late", remedy)
