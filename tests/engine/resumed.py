"""Resumable calls: keys of their claims, and steps of tests."""

from __future__ import annotations

from antiphon.ipc.session import Session
from antiphon.ipc.values import ResumeClaim
from tests.engine.bench import Bench

KEY, NEXT, THIRD = b"1" * 32, b"2" * 32, b"3" * 32


def claim(
    key: bytes = KEY, new_key: bytes = NEXT, *, owner: str = "", seq: int = -1, frame: int = -1
) -> ResumeClaim:
    return ResumeClaim(key, new_key, owner, seq, frame, replay_frames=5)


def resets(bench: Bench) -> int:
    """How often a row began anew."""
    return sum(int(step.reset.sum()) for step in bench.backend.steps)


def armed(bench: Bench) -> Session:
    """A call that can be resumed and has heard two frames."""
    session = bench.submit(seed=3)
    session.arm(KEY, "")
    bench.push(session, 1, 2)
    bench.ticks()
    return session


def resume(bench: Bench, asked: ResumeClaim) -> Session:
    session = bench.calls.resume(asked)
    bench.tick()
    return session


def lose_front_end(bench: Bench, session: Session) -> None:
    """The front end of a call is gone: nothing comes from it any more."""
    guest = bench.calls.engine_session(session)
    guest.orphan()
    bench.engine.sessions.detach(guest)
