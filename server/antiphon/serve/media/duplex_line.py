"""Decodes the input audio of a live call, and gates and encodes its output."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.audio.codecs import WireFormat, make_decoder, make_encoder
from antiphon.audio.gate import OutputGate
from antiphon.audio.pcm import FloatArray
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """One frame of the model's output: encoded, and as float32 ``[frame_samples]``."""

    data: bytes
    pcm: FloatArray


class DuplexLine:
    """The codecs and the output gate of one call with a model of this ``spec``. ``decoder`` decodes the
    input."""

    def __init__(self, line: WireFormat, spec: ModelSpec, said: WireFormat | None = None) -> None:
        """Prepare; the output may have another format than the input."""
        self._spec = spec
        self.set_formats(line, said or line)
        self._gate = OutputGate(spec.sample_rate)
        self._padding_id = None if spec.lm is None else spec.lm.text_padding_id

    def set_formats(self, heard: WireFormat, said: WireFormat) -> None:
        """Change the formats from now on; samples in a resampler, 6.4 ms at most, are lost."""
        self.decoder = make_decoder(heard, self._spec.sample_rate)
        self._encoder = make_encoder(said, self._spec.sample_rate)

    @property
    def is_speaking(self) -> bool:
        """Whether the model's output is speech, or was speech a moment ago."""
        return self._gate.is_open

    def say(self, reply: FrameReply) -> OutputFrame | None:
        """Encode a frame of the model; None while it is silent.

        Raises:
            AudioError: the model's samples are NaN or infinite.
        """
        if reply.pcm is None:
            return None
        has_text = reply.text_token is not None and reply.text_token != self._padding_id
        pcm = self._gate.pass_frame(reply.pcm, has_text=has_text)
        return OutputFrame(b"".join(self._encoder.encode(pcm)), pcm)

    def span_ms(self, reply: FrameReply) -> tuple[int, int]:
        """The start and the end of a frame, in milliseconds of audio since the session's start."""
        start_ms = max(0, reply.frame - self._spec.delay_frames) * self._spec.frame_ms
        return round(start_ms), round(start_ms + self._spec.frame_ms)
