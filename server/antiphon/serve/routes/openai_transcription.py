"""``POST /v1/audio/transcriptions``: transcribes the recording in a form, and answers with a file or
events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from aiohttp import hdrs, web

from antiphon.audio.word_ends import WordEnds
from antiphon.errors import (
    AntiphonError,
    AudioError,
    FieldError,
    ProtocolError,
    RecordingTooLongError,
    SessionError,
)
from antiphon.models.spec import PipelineKind
from antiphon.protocol import kyutai, transcript_file, transcription_request
from antiphon.protocol.captions import WORD_S, TimedWord
from antiphon.protocol.fields import INVALID_VALUE, MISSING
from antiphon.protocol.multipart import FormReader, Piece, boundary_of
from antiphon.protocol.speech_request import EVENTS
from antiphon.protocol.transcript_file import Written
from antiphon.protocol.transcription_request import MAX_FIELD_BYTES, TranscriptionRequest
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.hosting.uploads import Spool
from antiphon.serve.routes.asr_file import check_length, transcribe
from antiphon.serve.routes.openai_errors import api_error
from antiphon.serve.routes.openai_models import named_in_body
from antiphon.serve.routes.openai_speech import ignored_header
from antiphon.serve.routes.routing import Route, plain_refusal
from antiphon.serve.routes.upload import receive, too_large

FORM_BYTES: Final = 1_048_576
"""Bytes of a form in addition to its recording: fields, headers and boundaries."""


async def handle_form(
    request: web.Request, services: Services, _model: ServedModel, caller: Caller
) -> web.StreamResponse:
    """Transcribe one recording from a form.

    Raises:
        web.HTTPException, SessionError: the request is refused with OpenAI's error body.
    """
    try:
        async with services.access.ledger.hold_upload(caller):
            with services.uploads.one(request.content_length) as spool:
                return await _transcribe(request, services, caller, spool)
    except RecordingTooLongError as error:
        raise plain_refusal(error) from error
    except SessionError:
        raise
    except AntiphonError as error:
        raise api_error(error, param="file").exception() from error


async def _transcribe(
    request: web.Request, services: Services, caller: Caller, spool: Spool
) -> web.StreamResponse:
    """Receive a form, its recording in ``spool``, and answer it."""
    form = _Form(spool, boundary_of(request.headers.get(hdrs.CONTENT_TYPE, "")), services)
    await receive(request, services, form.take, spare_bytes=FORM_BYTES)
    spool.flush()
    order = form.order()
    model = named_in_body(request, services, caller, order.model, (PipelineKind.STT,))
    await form.check_recording(services)
    ends = WordEnds(model.checkpoint.spec.sample_rate)
    content_type = f"{transcript_file.CONTENT_TYPES[order.format]}; charset=utf-8"
    return await transcribe(
        request,
        services,
        model,
        caller,
        spool.file,
        TranscriptFile(order, ends),
        {hdrs.CONTENT_TYPE: EVENTS if order.is_stream else content_type, **ignored_header(order.ignored)},
        route="audio transcriptions",
        event_of=(lambda error: api_error(error, param="file").event) if order.is_stream else None,
        ends=ends,
    )


def _file_error(words: str, code: str) -> FieldError:
    return FieldError(f"file {words}", param="file", code=code)


class _Form:
    """The form of one request, parsed as it arrives: its recording goes into a file, its fields are kept."""

    def __init__(self, spool: Spool, boundary: bytes, services: Services) -> None:
        self._spool, self._reader = spool, FormReader(boundary)
        self._max_file_bytes = services.config.limits.max_upload_bytes
        self._file_bytes = self._field_bytes = 0
        self._has_file = self._is_text = False
        self._misnamed = ""  # a file in another field
        self._values: defaultdict[str, list[bytearray]] = defaultdict(list)

    def take(self, data: bytes) -> None:
        """Parse more of the body.

        Raises:
            ProtocolError: it is no form, or has two files or too long fields.
            web.HTTPException: its file is too large.
        """
        for piece in self._reader.feed(data):
            if piece.name == "file":
                self._take_file(piece)
            elif piece.is_file:
                self._misnamed = piece.name[:40]
            else:
                self._take_field(piece)

    def order(self) -> TranscriptionRequest:
        """The parameters of the complete form.

        Raises:
            ProtocolError: it is incomplete, or has a field that cannot be used.
        """
        self._reader.check_complete()
        if not self._has_file and self._misnamed:
            raise _file_error(
                f"is missing; this form has a file as {self._misnamed!r}, send it as 'file'", MISSING
            )
        if self._has_file and not self._file_bytes:
            raise _file_error("is empty, 0 bytes came", INVALID_VALUE)
        values: Mapping[str, Sequence[str]] = {
            name: [value.decode("utf-8", "replace") for value in entries]
            for name, entries in self._values.items()
        }
        return transcription_request.parse_form(values, has_file=self._has_file)

    async def check_recording(self, services: Services) -> None:
        """Check the header of the recording; raises as :func:`check_length`, and rejects text files."""
        try:
            await check_length(self._spool.file, services)
        except AudioError as error:
            if self._is_text and not isinstance(error, RecordingTooLongError):
                words = "is a field of text, a file is needed, such as curl -F file=@clip.wav sends"
                raise _file_error(words, INVALID_VALUE) from error
            raise

    def _take_file(self, piece: Piece) -> None:
        if piece.is_first and self._has_file:
            raise ProtocolError("this form has two files; one is transcribed at a time")
        self._has_file, self._is_text = True, not piece.is_file
        self._file_bytes += len(piece.data)
        if self._file_bytes > self._max_file_bytes:
            raise too_large(self._max_file_bytes)
        self._spool.write(piece.data)

    def _take_field(self, piece: Piece) -> None:
        self._field_bytes += len(piece.data)
        if self._field_bytes > MAX_FIELD_BYTES:
            raise ProtocolError(f"fields of over {MAX_FIELD_BYTES} bytes together, which is the limit")
        if piece.is_first:
            self._values[piece.name].append(bytearray())
        self._values[piece.name][-1] += piece.data


class TranscriptFile:
    """A transcript as a file, or as events as its words are recognised."""

    def __init__(self, order: TranscriptionRequest, ends: WordEnds) -> None:
        """Start without words; ``ends`` are the times at which pieces of audio end."""
        self._order, self._ends = order, ends
        self._words: list[TimedWord] = []

    def take(self, message: kyutai.Word | kyutai.EndWord) -> bytes:
        """Add a word, or the end of the last one; returns the event of a word."""
        if isinstance(message, kyutai.Word):
            start_s = round(message.start_time, 3)
            self._words.append(TimedWord(message.text, start_s, round(start_s + WORD_S, 3)))
            if self._order.is_stream:
                return transcript_file.text_delta(message.text.strip(), is_first=len(self._words) == 1)
        elif self._words:
            last = self._words[-1]
            self._words[-1] = replace(last, stop_s=self._ends.end_of(last.start_s, message.stop_time))
        return b""

    def finish(self, seconds: float) -> bytes:
        """The file, or the last event."""
        written = Written(self._words, seconds)
        if self._order.is_stream:
            return transcript_file.text_done(self._order, written)
        return transcript_file.encode_transcript(self._order, written)


ROUTES = (Route("POST", transcription_request.PATH, handle_form),)
