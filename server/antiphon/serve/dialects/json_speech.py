"""The JSON speech dialect: audio to words, and words to audio; nothing is dropped."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.audio.wav_input import WavDecoder
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.values import SessionStats
from antiphon.models.spelling import Unspoken
from antiphon.models.transcript import FrameHeard, Marked, SpeechTiming, Word, WordEnd
from antiphon.protocol import json_speech as wire
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.synthesiser import Piece
from antiphon.serve.calls.transcriber import AsrNews
from antiphon.serve.calls.values import Action, Close, EndInput, HelloFacts, Policy, PushAudio, PushWords
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message
from antiphon.values import shown

_PCM_RATES: Final = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
_SHARED: Final[Mapping[str, WireFormat]] = MappingProxyType(
    {
        **{f"pcm_{rate}": WireFormat("pcm_s16le", rate) for rate in _PCM_RATES},
        "opus": WireFormat("ogg"),
        "ulaw_8000": WireFormat("pcmu", 8_000),
        "mulaw_8000": WireFormat("pcmu", 8_000),
        "alaw_8000": WireFormat("pcma", 8_000),
        wire.WAV: WireFormat(wire.WAV),
    }
)
INPUTS: Final[Mapping[str, WireFormat]] = MappingProxyType({**_SHARED, "pcm": WireFormat("pcm_s16le")})
OUTPUTS: Final[Mapping[str, WireFormat]] = MappingProxyType(
    {**_SHARED, "pcm": WireFormat("pcm_s16le", 48_000)}
)
"""The formats of the client's audio and of the server's audio, by name; ``pcm`` means 24 kHz and 48 kHz."""


def format_of(name: str, known: Mapping[str, WireFormat]) -> WireFormat:
    """The format of this name.

    Raises:
        ProtocolError: the format is unknown.
    """
    if name not in known:
        raise ProtocolError(f"the format is {shown(name)}, not one of {', '.join(known)}")
    return known[name]


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """The message for an error, and its close code."""
    code = wire_form(error).close
    return (wire.encode("error", message=str(error), code=int(code)),), code


class JsonAsrDialect(Dialect[AsrNews]):
    """The dialect of one transcription in the JSON protocol: it takes audio and flushes, and sends a
    transcript.
    """

    policy = Policy(is_live=False)

    def __init__(self, setup: wire.SpeechSetup, model: ServedModel) -> None:
        """Prepare for a recogniser.

        Raises:
            ProtocolError: the format of the audio is not supported.
        """
        super().__init__()
        self._model, self._spec = model, model.engine.info.spec
        form = format_of(setup.form, INPUTS)
        rate = self._spec.sample_rate
        self._decoder: Decoder = WavDecoder(rate) if form.codec == wire.WAV else make_decoder(form, rate)
        self._flushes: dict[int, int | str] = {}
        self._flushed = 0

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        spec, timing = self._spec, SpeechTiming.of(self._spec)
        delay = round(timing.delay_s / timing.frame_s)
        ready = wire.encode(
            "ready",
            request_id=facts.session,
            model_name=self._model.name,
            sample_rate=spec.sample_rate,
            frame_size=spec.frame_samples,
            delay_in_frames=delay,
            delay_in_tokens=delay,
            text_stream_names=[],
        )
        return (ready,)

    def feed(self, message: Message) -> Sequence[Action]:
        if not message:
            return self._decode()
        match wire.decode(message):
            case wire.SpeechAudio(data):
                if len(data) > wire.MAX_AUDIO_BYTES:
                    raise ProtocolError(f"audio of {len(data)} bytes, the limit is {wire.MAX_AUDIO_BYTES}")
                self._decoder.put(data)
                return self._decode()
            case wire.SpeechFlush(flush_id):
                self._flushed += 1
                self._flushes[self._flushed] = flush_id
                self.marks.append(self._flushed)
            case wire.SpeechEnd():
                return (EndInput(),)
            case wire.SpeechSetup():
                raise ProtocolError("a second setup, a connection has one")
        return ()

    def _decode(self) -> Sequence[Action]:
        """Decode one step of a message."""
        pcm = self._decoder.step()
        self.has_more = pcm is not None
        if pcm is None or not pcm.size:
            return ()
        return (PushAudio(np.clip(pcm, -1.0, 1.0), pcm.size / self._spec.sample_rate),)

    def messages(self, reply: AsrNews) -> Sequence[Message]:
        told: list[Message] = []
        for event in reply.events:
            match event:
                case FrameHeard(index, pauses) if pauses:
                    told.append(wire.encode_step(index, pauses, self._spec.frame_ms / 1000))
                case Word(text, start_s):
                    told.append(wire.encode("text", text=text, start_s=start_s, stream_id=0))
                case WordEnd(stop_s):
                    told.append(wire.encode("end_text", stop_s=stop_s, stream_id=0))
                case Marked(number) if number in self._flushes:
                    told.append(wire.encode("flushed", flush_id=self._flushes.pop(number)))
        return told

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        return (wire.encode("end_of_stream"),), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return refusal(error)

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        self._decoder.close()


class JsonTtsDialect(Dialect[Piece]):
    """The dialect of one synthesis in the JSON protocol: it takes text and sends speech; another ``setup``
    ends it, and remains in ``unread``.
    """

    policy = Policy(is_live=False, awaits="text", reads_on=False)

    def __init__(
        self, setup: wire.SpeechSetup, model: ServedModel, unread: Callable[[Message], None]
    ) -> None:
        """Prepare for a synthesiser.

        Raises:
            ProtocolError: the format of the audio is not supported.
        """
        super().__init__()
        self._setup, self._model, self._unread = setup, model, unread
        form, spec = format_of(setup.form, OUTPUTS), model.engine.info.spec
        self._rate = form.rate if form.codec not in (wire.WAV, "ogg") else spec.sample_rate
        self._encoder = make_encoder(WireFormat(form.codec, self._rate), spec.sample_rate)
        self._unspoken, self._has_sound = Unspoken(), False

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        spec = self._model.engine.info.spec
        ready = wire.encode(
            "ready",
            self._setup.request,
            request_id=facts.session or secrets.token_hex(8),
            model_name=self._model.name,
            sample_rate=self._rate,
            frame_size=spec.frame_samples * self._rate // spec.sample_rate,
            text_stream_names=[],
        )
        return (ready,)

    def feed(self, message: Message) -> Sequence[Action]:
        match wire.decode(message):
            case wire.SpeechText(text, request) if self._is_mine(request):
                return (PushWords(f"{text} "),)
            case wire.SpeechEnd(request) if self._is_mine(request):
                return (EndInput(),)
            case wire.SpeechSetup():
                if not self._setup.keeps_open:
                    raise ProtocolError("a second setup; a connection with close_ws_on_eos false has several")
                self._unread(message)
                return (Close(),)
        return ()  # of a request that has ended

    def _is_mine(self, request: str | None) -> bool:
        return request is None or request == self._setup.request

    def messages(self, reply: Piece) -> Sequence[Message]:
        if isinstance(reply, Spoken):
            if not reply.is_heard:
                self._unspoken.add((reply.text,))
            return (wire.encode_spoken(reply, self._setup.request),)
        self._has_sound = True
        return self._packed(self._encoder.encode(reply.clip(-1.0, 1.0)))

    def _packed(self, payloads: list[bytes]) -> list[Message]:
        return [wire.encode_audio(it, self._setup.request) for it in payloads if it]

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        if self._unspoken.count and not self._has_sound:
            return (), self._unspoken.error()
        last = self._packed(self._encoder.finish())
        return (*last, wire.encode("end_of_stream", self._setup.request)), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        code = wire_form(error).close
        return (wire.encode("error", self._setup.request, message=str(error), code=int(code)),), code

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        self._encoder.close()
