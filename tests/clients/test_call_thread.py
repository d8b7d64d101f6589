"""A client's data of a call that moves to another worker."""

from __future__ import annotations

from antiphon.protocol import events, moshi
from antiphon_client.thread import CallThread

URL = "ws://server/api/chat?ext=1&resume=1&format=opus"
TOKEN = "AAECAwQFBgcICQoLDA0ODw"


def begun(worker: str) -> CallThread:
    thread = CallThread()
    offer = {"token": TOKEN, "window_s": 30.0, "replay_ms": 400, **({"worker": worker} if worker else {})}
    thread.unwrap(moshi.encode(moshi.Event("ready", {"resume": offer})))
    return thread


def test_a_call_is_asked_for_at_the_worker_that_has_it() -> None:
    again = "ws://server/api/chat?ext=1&resume=again&format=opus"
    assert begun("").resuming_url(URL) == again
    thread = begun("a")
    assert thread.resuming_url(URL) == f"{again}&worker=a"
    thread.unwrap(moshi.encode(events.moved("b 2")))
    assert (thread.resuming_url(URL), thread.is_moved, thread.moves) == (f"{again}&worker=b%202", True, 1)
    assert thread.is_resumable
    thread.claim(0)
    assert not thread.is_moved  # of the connection that claims it
    thread.unwrap(
        moshi.encode(
            events.resumed(
                session="s", token=TOKEN, input_frame=1, missed_frames=0, replay_from=0, worker="c"
            )
        )
    )
    assert thread.resuming_url(URL) == f"{again}&worker=c"
