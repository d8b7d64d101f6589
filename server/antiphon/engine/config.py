"""Every bound of the engine, with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import ConfigError
from antiphon.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How many callers there can be, what each may pile up, and when the engine says no.

    Raises ConfigError for values that contradict one another.
    """

    slots: int | None = option(
        None, "sessions at once; auto is what memory and the measured tick allow", minimum=1
    )
    # Beyond some hundreds the process that feeds the card is the limit, not the card.
    max_slots: int = option(256, "the largest number that slots = auto chooses", minimum=1)
    # A queue longer than callers are willing to wait only hides the refusal.
    # All who wait hear of every move, in one message each, and a front end has room for 4,096 messages.
    max_queue: int = option(64, "callers that may wait for a row", minimum=0, maximum=1024)
    # One second of audio is 12.5 frames: the largest chunk stock clients send, and the longest network
    # stall a conversation forgives. What is older than that is better lost than answered.
    input_frames: int = option(16, "whole frames a session may have waiting for the model", minimum=2)
    # A listener two seconds behind is no longer in the conversation.
    output_frames: int = option(25, "replies a session may have waiting for its socket", minimum=1)
    # Each is one row's state more; they are kept for half a second at most, unless the caller goes on.
    padding_rows: int = option(8, "stt sessions whose state is saved while flush padding is heard", minimum=0)
    # Long enough for a phone that changes networks; a row without a connection is a place that a queued
    # caller could have.
    resume_window_s: float = option(30.0, "a call without a connection can be resumed for so long", minimum=0)
    resume_yield_s: float = option(5.0, "after which its row goes to a caller that waits for one", minimum=0)
    # A page of text; the rest waits in the caller's socket.
    text_entries: int = option(256, "words a tts session may have waiting to be spoken", minimum=1)
    fixed_batch: bool = option(
        False, "run every tick over all rows: results do not depend on the other sessions"
    )
    # A sixteenth of a frame: without it a model that answers at once is asked for every frame by itself, and
    # what a tick costs the host is paid for each.
    least_tick_ms: float = option(
        5.0,
        "a live tick begins no sooner after the last, from 512 sessions on no sooner than four times that; "
        "0 for at once",
        minimum=0,
    )
    # Far beyond any tick, far below what a supervisor waits.
    stuck_s: float = option(10.0, "a step running longer makes /healthz fail", minimum=0.1)
    # Refusals stop within five seconds after the load has fallen.
    late_window_s: float = option(4.5, "the window of recent frames that late pressure looks at", minimum=0.1)
    # Late ones, not all: a server that hardly answers any more must not need many answers to notice it.
    late_min_frames: int = option(5, "late frames in the window before late pressure counts", minimum=1)
    late_refuse_fraction: float = option(
        0.05, "share of late frames in the window above which admission stops", minimum=0
    )
    late_admit_fraction: float = option(
        0.01, "late frames in the window below which callers are admitted again", minimum=0
    )
    # Half a frame, as the median of half a second: beyond it no call can be on time.
    host_lag_ms: float = option(40.0, "lag of a server's event loop above which admission stops", minimum=1)
    session_guess_s: float = option(120.0, "expected length of a session before any was measured", minimum=1)
    retry_after_max_s: int = option(300, "the largest Retry-After sent to a client", minimum=1)
    memory_reserve_fraction: float = option(0.1, "memory that slots = auto leaves unused", minimum=0)
    tick_reserve_fraction: float = option(0.15, "time in a frame that slots = auto leaves unused", minimum=0)

    def __post_init__(self) -> None:
        """Check what one field alone cannot say."""
        if not 0 <= self.late_admit_fraction <= self.late_refuse_fraction <= 1:
            raise ConfigError(
                f"late_admit_fraction {self.late_admit_fraction} and late_refuse_fraction "
                f"{self.late_refuse_fraction} must rise from 0 to 1"
            )
        for name in ("memory_reserve_fraction", "tick_reserve_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
