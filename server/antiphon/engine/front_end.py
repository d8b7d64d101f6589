"""One front end in another process, as the engine's process sees it: its calls, and what it says of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from antiphon.engine.engine import Engine
from antiphon.engine.guests import Guest
from antiphon.engine.no_listener import NoListener
from antiphon.engine.pools import Pools
from antiphon.engine.requests import (
    MAX_COUNT,
    check_call,
    check_key,
    check_number,
    check_owner,
    check_words,
    read_claim,
    read_notes,
    read_open,
    read_parameters,
    read_sent,
    read_tail,
)
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc import messages
from antiphon.ipc.post import Post, close_all, duplicates, read_bytes, read_memory
from antiphon.ipc.resumption import Resumption
from antiphon.log import Log
from antiphon.models.sampling import SamplingParameters

MESSAGES_A_TURN: Final = 64
"""Taken from one front end before the others have their turn."""

LAST_TURNS: Final = 64
"""For what a front end said before it was dropped; its socket holds some hundreds of messages."""

MAX_CALLS: Final = 16_384
"""Of one front end, ended ones that it has not let go included: more than it can have connections."""


class FrontEndCall(NamedTuple):
    """One call of a front end."""

    pools: Pools
    guest: Guest


@dataclass(slots=True)
class MessageListener:
    """:class:`antiphon.ipc.link.Listener` by messages; the pool's bell announces replies."""

    post: Post
    guest: Guest
    first_lease: int
    is_notified: bool = field(default=False, init=False)

    def admitted(self, lease: int) -> None:
        """The call has a lease."""
        self.post.send(messages.Admitted(self.guest.id, lease - self.first_lease))

    def resumed(self, resumption: Resumption) -> None:
        """The call goes on with one of another connection."""
        facts = resumption
        said = (facts.notes, facts.next_seq, facts.told_frame, facts.replay_from, facts.replayed)
        used = (facts.unrecorded_in, facts.unrecorded_out)
        self.post.send(messages.Resumed(self.guest.id, facts.call, asdict(facts.parameters), *said, *used))

    def moving(self) -> None:
        """The call is to be let go."""
        self.post.send(messages.Moving(self.guest.id))

    def primed(self, number: int) -> None:
        """The call's row has read a prompt."""
        self.post.send(messages.Primed(self.guest.id, number))

    def ended(self, error: AntiphonError) -> None:
        """The call is over."""
        self.post.send(messages.Ended(self.guest.id, messages.pack_error(error)))

    def tell(self) -> None:
        """The call's place in the queue has changed, if it has one."""
        position = self.guest.position()
        if position is not None:
            self.post.send(messages.Queued(self.guest.id, position, self.guest.retry_after_s()))


class FrontEndRequests:
    """What one front end asks for, carried out on its engines; used by the fleet's thread."""

    def __init__(self, pool: int, post: Post, engines: Sequence[Pools]) -> None:
        """Begin without calls."""
        self.pool, self.post = pool, post
        self._engines = engines
        self._calls: dict[str, FrontEndCall] = {}

    @property
    def calls(self) -> int:
        """Calls it has, ended ones that it has not let go included."""
        return len(self._calls)

    def read(self) -> None:
        """Take some messages.

        Raises:
            EOFError: it is gone.
            ProtocolError: it has an unknown kind or field.
        """
        for _ in range(MESSAGES_A_TURN):
            received = self.post.receive()
            if received is None:
                return
            message, descriptors = received
            try:
                self._do(message, descriptors)
            except Exception as error:  # a boundary: what it provokes ends it, and not the thread of all
                kind = type(message).__name__
                raise ProtocolError(f"{kind} that cannot be understood: {error!r}") from error
            finally:
                close_all(descriptors)

    def give_up(self, reason: str) -> dict[Pools, list[int]]:
        """End all its calls, since it is gone; their leases, which its process may still write to."""
        held: dict[Pools, list[int]] = {pools: [] for pools in self._engines}
        self._read_rest()
        self.post.close()
        for name, call in self._calls.items():
            try:
                self._part(name, call, reason)
            except Exception as error:  # a boundary: the other calls end all the same
                Log(__name__).error("a call could not be closed", session=name, exc_info=error)
            if call.guest.leased is not None:
                held[call.pools].append(call.guest.leased)
        self._calls.clear()
        return held

    def _read_rest(self) -> None:
        """Take what it said last: clients may have messages whose notes still lie in the socket."""
        with suppress(EOFError, ProtocolError):
            for _ in range(LAST_TURNS):
                self.read()

    def _part(self, name: str, call: FrontEndCall, reason: str) -> None:
        """End a call whose front end is gone, or let it wait for a connection through another."""
        call.guest.listener = NoListener()
        words = f"its front end was dropped: {reason}"
        if call.guest.resumable is not None and call.guest.lease is not None:
            Log(__name__).warning("session detached", session=name, reason=words)
            call.guest.detach()
            return
        Log(__name__).warning("session ends", session=name, reason=words)
        call.pools.engine.metrics.abandoned.inc()
        call.guest.close()

    def _do(self, message: messages.Message, descriptors: Sequence[int]) -> None:
        match message:
            case messages.Open():
                self._open(message, descriptors)
            case messages.Resume():
                self._resume(message)
            case messages.Check(model, number, wait_s):
                self._check(self._of_model(model).engine, number, wait_s)
            case messages.Adopt(model, number):
                self._adopt(self._of_model(model).engine, number, descriptors)
            case messages.Close(call):
                self._close(call)
            case messages.Sent():
                self._sent(message)
            case messages.Hello() | messages.HealthNow() | messages.Checked() | messages.Refused():
                raise ProtocolError(f"a front end sent {type(message).__name__}")
            case _:
                found = self._calls.get(message.call)
                if found is None:  # it ended meanwhile
                    return
                try:
                    self._tell(found, message, descriptors)
                except AntiphonError as error:  # what one call is given harms no other
                    found.guest.end(error)

    def _of_model(self, number: int) -> Pools:
        if not 0 <= number < len(self._engines):
            raise ProtocolError(f"model {number} of {len(self._engines)}")
        return self._engines[number]

    def _tell(self, call: FrontEndCall, message: messages.Message, descriptors: Sequence[int]) -> None:
        guest, engine = call.guest, call.pools.engine
        match message:
            case messages.SetParameters(_, parameters):
                guest.set_parameters(read_parameters(parameters))
            case messages.Prime(_, number, parts):
                guest.prime(number, messages.unpack_prompt(parts, read_bytes(descriptors)))
            case messages.Words(_, entries, received_s):
                check_number("received_s", received_s, MAX_COUNT)
                words = messages.unpack_words(entries)
                check_words(words, engine.info, room=engine.config.text_entries - guest.text.waiting)
                guest.push_text(words, received_s)
            case messages.EndText():
                guest.end_text()
            case messages.ClearText():
                guest.clear_text()
            case messages.Arm(_, key, owner):
                check_key(key)
                check_owner(owner)
                guest.arm(key, owner)
            case messages.Noted(_, notes, told_frame):
                check_number("told_frame", told_frame, MAX_COUNT, is_whole=True)
                guest.note(read_notes(notes), told_frame)
            case messages.Acknowledge(_, seq):
                check_number("seq", seq + 1, MAX_COUNT, is_whole=True)
                guest.acknowledge(seq)
            case messages.Detach():
                guest.detach()
            case messages.HearPadding(_, run, upto, frames, _, now_s):
                tail = read_tail(message, engine.info.spec.frame_samples)
                guest.hear_padding(run, upto, frames, tail, now_s)
            case _:
                raise ProtocolError(f"a front end sent {type(message).__name__}")

    def _new(self, model: int, call: str) -> tuple[Pools, str]:
        """The model of a call that begins, and its id."""
        pools = self._of_model(model)
        if call in self._calls or len(self._calls) >= MAX_CALLS:
            raise ProtocolError(f"a front end opened call {call} twice, or more than {MAX_CALLS}")
        check_call(call)
        return pools, call

    def _open(self, message: messages.Open, descriptors: Sequence[int]) -> None:
        pools, call = self._new(message.model, message.call)
        try:
            parameters = read_open(message)
            prompt = None
            if message.prompt is not None:
                prompt = messages.unpack_prompt(message.prompt, read_bytes(descriptors))
            guest = pools.engine.guest(call, parameters, pool=self.pool, prompt=prompt)
            guest.listener = MessageListener(self.post, guest, pools.first_lease(self.pool))
            self._calls[call] = FrontEndCall(pools, guest)
            pools.engine.reception.admit(guest, message.wait_s)
            guest.tell()
        except AntiphonError as error:
            self._calls.pop(call, None)
            self.post.send(messages.Refused(call, messages.pack_error(error)))

    def _resume(self, message: messages.Resume) -> None:
        pools, call = self._new(message.model, message.call)
        try:
            claim = read_claim(message.claim)
            guest = pools.engine.guest(call, SamplingParameters(), pool=self.pool)
            guest.listener = MessageListener(self.post, guest, pools.first_lease(self.pool))
            self._calls[call] = FrontEndCall(pools, guest)
            pools.engine.reception.claim(guest, claim)
        except AntiphonError as error:
            self._calls.pop(call, None)
            self.post.send(messages.Refused(call, messages.pack_error(error)))

    def _check(self, engine: Engine, number: int, wait_s: float) -> None:
        try:
            engine.check_room(wait_s)
        except AntiphonError as error:
            self.post.send(messages.Checked(number, messages.pack_error(error)))
        else:
            self.post.send(messages.Checked(number, None))

    def _adopt(self, engine: Engine, number: int, descriptors: Sequence[int]) -> None:
        """Take a call of another worker; its bytes are read beside this thread."""
        (memory,) = duplicates(descriptors)

        def answer(taken: Future[None]) -> None:
            os.close(memory)
            error = taken.exception()
            packed = messages.pack_error(error) if isinstance(error, AntiphonError) else None
            self.post.send(messages.Checked(number, packed))

        engine.take_call(lambda: read_memory(memory, engine.call_bytes)).add_done_callback(answer)

    def _close(self, name: str) -> None:
        call = self._calls.pop(name, None)
        if call is None:
            return
        call.guest.close()
        if call.guest.leased is not None:
            call.pools.let_go([call.guest.leased])

    def _sent(self, message: messages.Sent) -> None:
        engine = self._of_model(message.model).engine
        latency_s, first_s = read_sent(message)
        deliveries, sent_s = engine.deliveries, min(message.sent_s, engine.clock())
        if latency_s.size:
            deliveries.sent_many(sent_s, latency_s, late=message.late, pressing=message.pressing)
        for seconds in first_s.tolist():
            deliveries.first_audio(seconds)
        if message.refused:
            deliveries.refused(message.refused)
