"""Kyutai's protocols over a WebSocket, recognition and synthesis: nothing is dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, ProtocolError, UnsupportedError
from antiphon.ipc.values import SessionStats
from antiphon.models.conditioning import SpeakerShape
from antiphon.models.prompt import Prompt
from antiphon.models.spelling import Unspoken
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import SpeechFormat, Spoken
from antiphon.protocol.wire_errors import close_only, wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.synthesiser import Piece
from antiphon.serve.calls.transcriber import AsrNews
from antiphon.serve.calls.values import Action, EndInput, HelloFacts, Policy, PushAudio, PushWords, ReadPrompt
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message


def refusal(error: AntiphonError) -> tuple[Sequence[Message], int]:
    """The message for an error, in Kyutai's own text if the server is full, and the close code."""
    form = wire_form(error)
    return (kyutai.encode(kyutai.Error(form.kyutai or str(error))),), form.close


class AsrDialect(Dialect[AsrNews]):
    """The dialect of one transcription in Kyutai's protocol: it takes audio and markers, and sends a
    transcript.
    """

    policy = Policy(is_live=False)

    def __init__(self, model: ServedModel) -> None:
        """Prepare for a recogniser."""
        super().__init__()
        self._spec = model.engine.info.spec
        self._decoder: Decoder | None = None
        self._has_audio = False

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        return (kyutai.encode(kyutai.Ready()),)

    def feed(self, message: Message) -> Sequence[Action]:
        if isinstance(message, str):
            return self._decode()
        asked = kyutai.decode_client(message)
        match asked:
            case kyutai.Marker(marker):
                self.marks.append(marker)
            case kyutai.Audio(pcm):
                self._has_audio = True
                return self._push(pcm)
            case kyutai.OggOpus(data):
                self._has_audio = True
                if self._decoder is None:
                    self._decoder = make_decoder("ogg")
                self._decoder.put(data)
                return self._decode()
            case _ if self._has_audio:
                raise ProtocolError("Init came after audio; a session begins once")
        return ()  # Every client gets Ready, without a request

    def _decode(self) -> Sequence[Action]:
        """Decode one step of a piece of Ogg."""
        pcm = None if self._decoder is None else self._decoder.step()
        self.has_more = pcm is not None
        return () if pcm is None else self._push(pcm)

    def _push(self, pcm: FloatArray) -> Sequence[Action]:
        return (PushAudio(np.clip(pcm, -1.0, 1.0), pcm.size / self._spec.sample_rate),)

    def messages(self, reply: AsrNews) -> Sequence[Message]:
        return [kyutai.encode(message) for message in reply.messages]

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return refusal(error)

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        if self._decoder is not None:
            self._decoder.close()


class TtsDialect(Dialect[Piece]):
    """The dialect of one synthesis in Kyutai's protocol: it takes text, and sends speech in the client's
    ``format``.
    """

    policy = Policy(is_live=False, awaits="text")

    def __init__(self, audio_format: SpeechFormat, model: ServedModel) -> None:
        """Prepare for a synthesiser."""
        super().__init__()
        self._format, self._model = audio_format, model
        self._encoder = make_encoder("ogg" if audio_format.is_ogg else "pcm_f32le")
        self._unspoken, self._has_sound = Unspoken(), False

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        return (kyutai.encode(kyutai.Ready()),) if self._format.is_packed else ()

    def feed(self, message: Message) -> Sequence[Action]:
        asked = kyutai_tts.decode_client(message)
        match asked:
            case kyutai_tts.Text(text):
                return (PushWords(text),)
            case kyutai_tts.Eos():
                return (EndInput(),)
            case kyutai_tts.Voice():
                return (ReadPrompt(lambda: self._prompt(asked)),)

    async def _prompt(self, voice: kyutai_tts.Voice) -> Prompt | None:
        shape = SpeakerShape.of(self._model.checkpoint.spec)
        if shape is None:
            raise ProtocolError(f"{self._model.name} has one built-in voice and accepts no other")
        try:
            return shape.prompt(voice.array())
        except UnsupportedError as error:
            raise ProtocolError(str(error)) from error

    def messages(self, reply: Piece) -> Sequence[Message]:
        """The message for a piece in the client's format."""
        is_packed = self._format.is_packed
        if isinstance(reply, Spoken):
            if not reply.is_heard:
                self._unspoken.add((reply.text,))
            return (kyutai_tts.encode_server(reply),) if is_packed else ()
        self._has_sound = True
        clipped = reply.clip(-1.0, 1.0)
        if is_packed and not self._format.is_ogg:
            return (kyutai.encode(kyutai.Audio(clipped)),)
        return self._packed(self._encoder.encode(clipped))

    def _packed(self, payloads: list[bytes]) -> list[bytes]:
        """Encoded audio, in messages if the format has them."""
        if self._format.is_packed:
            return [kyutai.encode(kyutai.OggOpus(page)) for page in payloads]
        return payloads

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        is_void = self._unspoken.count > 0 and not self._has_sound
        return self._packed(self._encoder.finish()), self._unspoken.error() if is_void else None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return refusal(error) if self._format.is_packed else close_only(error)

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        self._encoder.close()
