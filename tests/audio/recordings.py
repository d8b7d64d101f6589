"""Recordings in FFmpeg's containers, created in memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import av

from antiphon.audio.pcm import FloatArray


def encoded(
    pcm: FloatArray,
    pcm_rate: int,
    container: str,
    codec: str,
    rate: int | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Float32 ``[channels, N]`` at ``pcm_rate`` in a container with ``options``, there at ``rate``."""
    layout = "mono" if pcm.shape[0] == 1 else "stereo"
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=dict(options)) as out:
        stream: Any = out.add_stream(codec, rate=rate or pcm_rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(pcm, format="fltp", layout=layout)
        frame.sample_rate = pcm_rate
        context = stream.codec_context
        fit = av.AudioResampler(
            format=context.format, layout=layout, rate=rate or pcm_rate, frame_size=context.frame_size or 0
        )
        for piece in (*fit.resample(frame), *fit.resample(None)):
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return file.getvalue()
