"""Every limit of the engine, with its unit and its reason: three options, and constants."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import ConfigError
from antiphon.option import Group, constant, option


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Limits on callers, on their buffers, and for admission.

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
        256, "most rows of slots = auto; with more, the process that feeds the GPU is the limit", minimum=1
    )
    input_frames: int = constant(
        16,
        "whole frames that may wait for the model; this holds the largest chunk of stock clients",
        minimum=2,
    )
    output_frames: int = constant(
        25,
        "replies that may wait for the socket; with a longer delay no conversation is possible",
        minimum=1,
    )
    padding_rows: int = constant(
        8, "stt sessions whose state is kept during flush padding; each takes the memory of a row", minimum=0
    )
    text_entries: int = constant(
        256,
        "words of a tts session that may wait, about a page; others stay in the caller's socket",
        minimum=1,
    )
    resume_window_s: float = constant(
        30.0, "time to resume a call without a connection; a phone changes networks in less", minimum=0
    )
    resume_yield_s: float = constant(
        5.0, "time after which a waiting caller gets the row of a call without a connection", minimum=0
    )
    least_tick_ms: float = constant(
        5.0,
        "minimum interval between live ticks, up to 4x from 512 sessions on; 0: none. It lowers the fixed "
        "cost of ticks on the host",
        minimum=0,
    )
    stuck_s: float = constant(
        10.0,
        "a longer step fails /healthz; far above any tick, and far below a service manager's limit",
        minimum=0.1,
    )
    late_window_s: float = constant(
        4.5,
        "window of recent frames for late pressure; admission resumes within 5 s after the load",
        minimum=0.1,
    )
    late_min_frames: int = constant(
        5,
        "minimum number of late frames that stops admission; low, so that a stall stops admission early",
        minimum=1,
    )
    late_refuse_fraction: float = constant(
        0.05, "share of late frames in the window above which admission stops", minimum=0
    )
    late_admit_fraction: float = constant(
        0.01, "share of late frames in the window below which admission resumes", minimum=0
    )
    host_lag_ms: float = constant(
        40.0,
        "event loop lag, as a median of 0.5 s, above which admission stops; half a frame",
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
