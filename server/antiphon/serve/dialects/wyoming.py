"""Wyoming's requests: a recording to words, and a text to speech; nothing is dropped.

A connection has one request after another. After the event that ends a request, reading continues only when
the request is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from antiphon.agent.speakable import SpeakableText
from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc.values import SessionStats
from antiphon.models.spelling import Unspoken
from antiphon.models.transcript import Word
from antiphon.protocol import wyoming as wire
from antiphon.protocol.kyutai_tts import Spoken
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.synthesiser import Piece
from antiphon.serve.calls.transcriber import AsrNews
from antiphon.serve.calls.values import Action, EndInput, HelloFacts, Policy, PushAudio, PushWords, Send
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message

CODEC: Final = "pcm_s16le"

STEP_CHARS: Final = 1024
"""Characters of a text that are read in one step, a third of a millisecond."""


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """The event of an error; the connection ends after it."""
    form = wire_form(error)
    return (wire.encode("error", {"text": str(error), "code": form.code}),), form.close


class WyomingRequest:
    """The common part of the dialects of Wyoming's two requests."""

    def encode(self, event: wire.Ping) -> Sequence[Message]:
        return (wire.encode("pong", {"text": event.text}),)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return refusal(error)


class WyomingAsrDialect(WyomingRequest, Dialect[AsrNews]):
    """The dialect of one transcription over Wyoming: it takes audio, and sends each word, and at the end all
    of them.
    """

    policy = Policy(is_live=False, has_answers=True, reads_on=False)

    def __init__(self, form: wire.AudioForm, model: ServedModel) -> None:
        """Prepare for audio of this form."""
        super().__init__()
        self._form = form
        self._decoder = make_decoder(WireFormat(CODEC, form.rate), model.engine.info.spec.sample_rate)
        self._rate = model.engine.info.spec.sample_rate
        self._text: list[str] = []

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        return (wire.encode("transcript-start", {}),)

    def feed(self, message: Message) -> Sequence[Action]:
        if isinstance(message, str):
            return self._decode()
        match wire.decode(message):
            case wire.AudioChunk(form, pcm):
                if form != self._form:
                    raise ProtocolError(f"audio-chunk is {form}, and audio-start said {self._form}")
                self._decoder.put(_mono(pcm, form.channels))
                return self._decode()
            case wire.AudioStop():
                return (EndInput(),)
            case wire.Ping() as ping:
                return (Send(ping),)
        return ()

    def _decode(self) -> Sequence[Action]:
        """Decode one step of a chunk."""
        pcm = self._decoder.step()
        self.has_more = self._decoder.has_more
        return () if pcm is None else (PushAudio(pcm, pcm.size / self._rate),)

    def messages(self, reply: AsrNews) -> Sequence[Message]:
        told = []
        for word in (event.text for event in reply.events if isinstance(event, Word)):
            told.append(wire.encode("transcript-chunk", {"text": f" {word}" if self._text else word}))
            self._text.append(word)
        return told

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        text = " ".join(self._text)
        return (wire.encode("transcript", {"text": text}), wire.encode("transcript-stop")), None


class WyomingTtsDialect(WyomingRequest, Dialect[Piece]):
    """The dialect of one synthesis over Wyoming: it takes a text, whole or in pieces, and sends its
    speech.
    """

    policy = Policy(is_live=False, awaits="text", has_answers=True, reads_on=False)

    def __init__(self, model: ServedModel, *, is_streamed: bool) -> None:
        """Prepare for a text; if ``is_streamed``, it arrives in pieces."""
        super().__init__()
        self._rate = model.checkpoint.spec.sample_rate
        self._encoder = make_encoder(WireFormat(CODEC, self._rate), self._rate)
        self._words, self._is_streamed, self._rest = SpeakableText(), is_streamed, ""
        self._unspoken, self._has_sound = Unspoken(), False

    def feed(self, message: Message) -> Sequence[Action]:
        if isinstance(message, str):
            return self._read()
        match wire.decode(message):
            case wire.Synthesize(text) if not self._is_streamed:
                return (PushWords(text), EndInput())
            case wire.SynthesizeChunk(text) if self._is_streamed:
                self._rest = text
                return self._read()
            case wire.SynthesizeStop() if self._is_streamed:
                return (PushWords(self._words.finish()), EndInput())
            case wire.Ping() as ping:
                return (Send(ping),)
        return ()  # clients send the whole text after its pieces, for servers that do not read pieces

    def _read(self) -> Sequence[Action]:
        """Read one step of a piece."""
        part, self._rest = self._rest[:STEP_CHARS], self._rest[STEP_CHARS:]
        self.has_more = bool(self._rest)
        return (PushWords(self._words.feed(part)),)

    def messages(self, reply: Piece) -> Sequence[Message]:
        if isinstance(reply, Spoken):
            if not reply.is_heard:
                self._unspoken.add((reply.text,))
            return ()
        begin, self._has_sound = self._begin(), True
        return (*begin, *(wire.encode_audio(self._rate, it) for it in self._encoder.encode(reply)))

    def _begin(self) -> Sequence[Message]:
        form = {"rate": self._rate, "width": wire.SAMPLE_BYTES, "channels": 1}
        return () if self._has_sound else (wire.encode("audio-start", form),)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        if self._unspoken.count and not self._has_sound:
            return (), self._unspoken.error()
        last = (*self._begin(), wire.encode("audio-stop"))
        return (*last, wire.encode("synthesize-stopped")) if self._is_streamed else last, None


def _mono(pcm: bytes, channels: int) -> bytes:
    """The mean of all channels."""
    if channels == 1:
        return pcm
    if len(pcm) % (wire.SAMPLE_BYTES * channels):
        raise ProtocolError(f"audio-chunk has {len(pcm)} bytes, no whole number of {channels} samples of 2")
    samples = np.frombuffer(pcm, "<i2").reshape(-1, channels)
    mono: bytes = samples.mean(axis=1).astype("<i2").tobytes()
    return mono
