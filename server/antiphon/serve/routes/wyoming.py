"""Wyoming on a TCP port: speech to text, text to speech, and agents that answer in text.

A connection has one request after another. The list of services is made once. An error is sent as an
``error`` event and ends the connection, as Home Assistant expects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from antiphon.errors import DrainingError, ProtocolError, TextModelError, UnknownModelError
from antiphon.models.spec import PipelineKind
from antiphon.protocol import wyoming as wire
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.usage import UsageRecord
from antiphon.serve.calls.call import Call
from antiphon.serve.calls.connect import next_message, run_call
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.participant import Participant
from antiphon.serve.calls.synthesiser import Synthesiser
from antiphon.serve.calls.text_reply import TextConversation
from antiphon.serve.calls.transcriber import Transcriber
from antiphon.serve.dialects.wyoming import WyomingAsrDialect, WyomingTtsDialect, refusal
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import POST_WAIT_S
from antiphon.serve.routes.tcp import Serve, TcpRoute, held
from antiphon.serve.routes.tts import voice_of
from antiphon.serve.transport.socket import Socket
from antiphon.serve.transport.transport import Message
from antiphon.tcp_port import TcpPort


class WyomingPort:
    """The services of one port: all recognisers, the voices of all synthesisers, and the first agent."""

    def __init__(self, services: Services) -> None:
        """Prepare the list of services."""
        self._services = services
        self._voices = voices_of(services)
        agents = list(services.agents.values())[:1]
        self._agent = agents[0] if agents else None
        self._info = wire.encode_info(
            [_offer(it.name, it) for it in services.models if it.kind is PipelineKind.STT],
            [_offer(name, model) for name, (model, _) in self._voices.items()],
            [wire.Offer(it.name, "A voice agent", it.stt.config.languages) for it in agents],
        )
        self._wait_s = min(POST_WAIT_S, services.config.limits.max_wait_s)

    async def serve(self, socket: Socket, caller: Caller) -> None:
        """Serve one connection.

        Raises:
            AntiphonError: a request cannot be answered.
        """
        self._services.waiting.add(socket)
        try:
            await self._serve(socket, caller)
        finally:
            self._services.waiting.discard(socket)

    async def _serve(self, socket: Socket, caller: Caller) -> None:
        limits = self._services.config.limits
        socket.keeps_open = True
        limit_s, model = limits.handshake_timeout_s, None
        conversation = None if self._agent is None else TextConversation(self._agent, self._services.clock)
        while True:
            await socket.until_read()
            if (message := await next_message(socket, limit_s, "event")) is None:
                return
            limit_s = limits.quiet_timeout_s
            match socket.timed(wire.decode, message):
                case wire.Describe():
                    socket.send((self._info,))
                case wire.Ping(text):
                    socket.send((wire.encode("pong", {"text": text}),))
                case wire.NameModel(name):
                    model = name
                case wire.AudioStart(form):
                    await self._transcribe(socket, caller, form, model)
                case wire.Synthesize(_, voice):
                    await self._synthesize(socket, caller, message, voice, is_streamed=False)
                case wire.SynthesizeStart(voice):
                    await self._synthesize(socket, caller, message, voice, is_streamed=True)
                case wire.UserText(text):
                    if conversation is None:
                        raise UnknownModelError("no agent here that could answer", known=())
                    await self._answer(socket, caller, conversation, text)

    async def _transcribe(
        self, socket: Socket, caller: Caller, form: wire.AudioForm, name: str | None
    ) -> None:
        model = self._find(name, caller, PipelineKind.STT)
        participant = Transcriber(model, self._services.clock, self._wait_s)
        await self._call(socket, caller, model, WyomingAsrDialect(form, model), participant)

    async def _synthesize(
        self, socket: Socket, caller: Caller, message: Message, name: str | None, *, is_streamed: bool
    ) -> None:
        known = self._voices.get(name or "")
        model = self._find(None if known is None else known[0].name, caller, PipelineKind.TTS)
        chosen = await voice_of(model, name if known is None else known[1], self._services)
        participant = Synthesiser(model, self._services.clock, chosen.prompt, self._wait_s)
        if not is_streamed:
            socket.unread(message)
        await self._call(
            socket, caller, model, WyomingTtsDialect(model, is_streamed=is_streamed), participant
        )

    def _find(self, name: str | None, caller: Caller, kind: PipelineKind) -> ServedModel:
        """The model of this name, or the first for an unknown name, since clients keep names of other
        servers."""
        known = None if name is None else self._services.models.named(name, (kind,))
        is_known = known is not None and known.kind is kind
        return self._services.model_for(name if is_known else None, caller, (kind,))

    async def _call(
        self,
        socket: Socket,
        caller: Caller,
        model: ServedModel,
        dialect: Dialect[Any],
        participant: Participant[Any],
    ) -> None:
        async with held(self._services, socket, caller):
            call = Call(self._services, model, dialect, participant, caller=caller)
            await call.admit(route="wyoming")
            await run_call(call, socket)

    async def _answer(
        self, socket: Socket, caller: Caller, conversation: TextConversation, text: str
    ) -> None:
        """Answer a text with an agent, unless the client disconnects meanwhile."""
        if not text.strip():
            raise ProtocolError("the event transcript has no words")
        if conversation.agent.stt.engine.health().draining:
            raise DrainingError("the server is shutting down")
        with self._services.answering():
            async with held(self._services, socket, caller):
                await socket.while_connected(self._write(socket, caller, conversation, text))

    async def _write(self, socket: Socket, caller: Caller, conversation: TextConversation, text: str) -> None:
        """Send an answer word by word, and at the end in full."""
        said, before, agent = "", conversation.tokens, conversation.agent
        try:
            async with contextlib.aclosing(conversation.answer(text)) as answer:
                async for words in answer:
                    begin = () if said else (wire.encode("handled-start"),)
                    socket.send((*begin, wire.encode("handled-chunk", {"text": words})))
                    said += words
        except TextModelError:
            socket.send((wire.encode("not-handled", {"text": agent.sorry}),))
        else:
            socket.send((wire.encode("handled", {"text": said.strip()}), wire.encode("handled-stop")))
        finally:
            used, access = conversation.tokens, self._services.access
            tokens = (used.tokens_in - before.tokens_in, used.tokens_out - before.tokens_out)
            if said or any(tokens):
                count, stamp = len(said.split()), access.usage.stamp()
                access.ended(UsageRecord(stamp, "", caller.name, agent.name, 0.0, 0.0, count, *tokens))


def voices_of(services: Services) -> Mapping[str, tuple[ServedModel, str | None]]:
    """Each voice of the synthesisers, by name. If a name is repeated, its model's name is added to it."""
    found: dict[str, tuple[ServedModel, str | None]] = {}
    for model in services.models:
        if model.kind is PipelineKind.TTS:
            names = [] if model.speakers is None else model.speakers.names()
            for name in names or [model.name]:
                found[f"{model.name}/{name}" if name in found else name] = model, name if names else None
    return found


def _offer(name: str, model: ServedModel) -> wire.Offer:
    manifest = model.checkpoint.manifest
    about = "" if manifest is None else manifest.voices.get(name) or manifest.description
    return wire.Offer(name, about or name, model.config.languages)


def _make(services: Services, _port: TcpPort) -> Serve:
    return WyomingPort(services).serve


ROUTE = TcpRoute(wire.size_of, refusal, _make)
