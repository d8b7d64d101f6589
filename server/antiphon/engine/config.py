"""Every bound of the engine, with its unit and its reason: three options, and constants."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import ConfigError
from antiphon.option import Group, constant, option


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Bounds on callers, on what each may accumulate, and on when the engine refuses.

    Raises ConfigError for values that contradict one another.
    """

    slots: int | None = option(
        None,
        "sessions at once; auto: as many as memory and the measured time of a step allow",
        minimum=1,
        group=Group.MODELS,
        is_basic=True,
    )
    # Every waiting caller gets one message per move, and a front end has room for 4,096 messages.
    max_queue: int = option(
        64, "callers that may wait for a row; 0: none", minimum=0, maximum=1024, group=Group.LIFE
    )
    fixed_batch: bool = option(
        False, "run every step over all rows: results do not depend on the other sessions", group=Group.MODELS
    )
    max_slots: int = constant(
        256, "most rows of slots = auto; beyond, the process that feeds the GPU is the limit", minimum=1
    )
    input_frames: int = constant(
        16,
        "whole frames that wait for the model: the largest chunk of stock clients, the longest stall that a "
        "conversation forgives",
        minimum=2,
    )
    output_frames: int = constant(
        25,
        "replies that wait for the socket; a listener two seconds behind has lost the conversation",
        minimum=1,
    )
    padding_rows: int = constant(
        8, "stt sessions whose state is kept during flush padding; each takes the memory of a row", minimum=0
    )
    text_entries: int = constant(
        256, "words of a tts session that wait: a page; the rest stays in the caller's socket", minimum=1
    )
    resume_window_s: float = constant(
        30.0, "a call without a connection can be resumed; a phone changes networks in less", minimum=0
    )
    resume_yield_s: float = constant(
        5.0, "after which its row goes to a caller that waits for one", minimum=0
    )
    least_tick_ms: float = constant(
        5.0,
        "minimum interval between live ticks, up to 4x from 512 sessions on, 0 for none: without it every "
        "frame is a tick of its own, and the host pays for each",
        minimum=0,
    )
    stuck_s: float = constant(
        10.0,
        "a step longer than this fails /healthz: far beyond any tick, far below a supervisor's wait",
        minimum=0.1,
    )
    late_window_s: float = constant(
        4.5, "window of recent frames for late pressure; refusals stop within 5 s after the load", minimum=0.1
    )
    late_min_frames: int = constant(
        5, "late frames that count; a server that hardly answers must not need many to notice", minimum=1
    )
    late_refuse_fraction: float = constant(
        0.05, "share of late frames in the window above which admission stops", minimum=0
    )
    late_admit_fraction: float = constant(
        0.01, "share of late frames in the window below which admission resumes", minimum=0
    )
    host_lag_ms: float = constant(
        40.0,
        "lag of the event loop above which admission stops: half a frame, as a median of 0.5 s",
        minimum=1,
    )
    session_guess_s: float = constant(
        120.0, "expected length of a session before any was measured", minimum=1
    )
    retry_after_max_s: int = constant(300, "largest Retry-After sent to a client", minimum=1)
    memory_reserve_fraction: float = constant(
        0.1, "memory that slots = auto leaves to other programs", minimum=0
    )
    tick_reserve_fraction: float = constant(
        0.15, "time in a frame that slots = auto leaves to the host", minimum=0
    )

    def __post_init__(self) -> None:
        """Check combinations of fields."""
        if not 0 <= self.late_admit_fraction <= self.late_refuse_fraction <= 1:
            raise ConfigError(
                f"late_admit_fraction {self.late_admit_fraction} and late_refuse_fraction "
                f"{self.late_refuse_fraction} must rise from 0 to 1"
            )
        for name in ("memory_reserve_fraction", "tick_reserve_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
