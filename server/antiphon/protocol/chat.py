"""The query of ``/api/chat``, and the parameters that a client may change later."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from antiphon.errors import ProtocolError
from antiphon.models.sampling import SamplingParameters

MAX_NAME_CHARS = 200
"""A voice's name; a prompt may be as long as the request line lets it."""


class AudioFormat(StrEnum):
    """How audio travels, both ways."""

    OGG = "ogg"  # pieces of one Ogg/Opus stream
    OPUS = "opus"  # one Opus packet of 20 ms a message
    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"


class ResumeMode(StrEnum):
    """What a client of the extension asks for with ``resume``."""

    NO = "0"
    ABLE = "1"  # a call that can be resumed
    AGAIN = "again"  # this connection resumes one


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The query of one client.

    ``wait_s`` is how long it would stay in the queue. ``may_record`` is the caller's consent to being
    recorded; silence is no consent. ``extended`` clients get events and stamped audio;
    without it ``format`` is Ogg and ``wait_s`` is 0.
    """

    parameters: SamplingParameters
    extended: bool = False
    format: AudioFormat = AudioFormat.OGG
    wait_s: float = 0.0
    may_record: bool = False
    resume: ResumeMode = ResumeMode.NO
    text_prompt: str | None = None
    voice_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class _Range:
    """Values a parameter may have; ``zero_means`` names what 0 stands for when it lies outside."""

    low: float
    high: float
    is_whole: bool = False
    zero_means: str = ""
    is_optional: bool = False

    def check(self, name: str, value: float) -> float:
        if not (self.low <= value <= self.high or (self.zero_means and value == 0)):
            zero = f", or 0 for {self.zero_means}" if self.zero_means else ""
            shown = str(value)[:40]
            raise ProtocolError(f"{name}={shown} is out of range: {self.low} to {self.high}{zero}")
        return value if self.is_whole else float(value)


_TEMPERATURE = _Range(0.2, 1.2, zero_means="greedy")
_TOPK = _Range(10, 500, is_whole=True, zero_means="all")
_SEED = _Range(0, 2**63 - 1, is_whole=True)
_RANGES: Mapping[str, _Range] = {
    "text_temperature": _TEMPERATURE,
    "text_topk": _TOPK,
    "audio_temperature": _TEMPERATURE,
    "audio_topk": _TOPK,
    "pad_mult": _Range(-4, 4),
    "repetition_penalty_context": _Range(0, 200, is_whole=True),
    "repetition_penalty": _Range(1, 2),
    "text_seed": _SEED,
    "audio_seed": _SEED,
    "max_steps": _Range(1, 2**31 - 1, is_whole=True, is_optional=True),
}
"""The ranges of the stock web client's controls; every field of SamplingParameters is here."""

_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d{1,19}(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


def parse_chat_query(
    query: Mapping[str, str], *, defaults: SamplingParameters, max_wait_s: float
) -> ChatRequest:
    """Read the query of an ``/api/chat`` request; keys that mean nothing here are ignored.

    The keys of the extension (format, wait, consent) mean something only beside ``ext=1``. ``max_wait_s`` is
    the longest wait that the server offers.

    Raises:
        ProtocolError: a value that is not a number, or out of range, or not one of the choices.
    """
    given = {
        name: _number(name, query[name], kind.is_whole) for name, kind in _RANGES.items() if name in query
    }
    request = ChatRequest(
        _with_values(defaults, given),
        text_prompt=query.get("text_prompt"),
        voice_prompt=_name("voice_prompt", query.get("voice_prompt") or None),  # stock clients may send none
    )
    extended = query.get("ext", "0")
    if extended not in ("0", "1"):
        raise ProtocolError(f"ext={extended[:20]!r} is not known: 1 asks for the extension, 0 does not")
    if extended == "0":
        return request
    format_, resume = (
        _format(query.get("format", AudioFormat.OGG)),
        _resume(query.get("resume", ResumeMode.NO)),
    )
    if resume is not ResumeMode.NO and format_ is AudioFormat.OGG:
        raise ProtocolError(
            f"resume={resume} with format=ogg: a stream of pages cannot be joined; "
            "ask for opus, pcm_s16le or pcm_f32le"
        )
    return replace(
        request,
        extended=True,
        format=format_,
        resume=resume,
        wait_s=parse_wait(query, max_wait_s),
        may_record=_consent(query.get("consent")),
    )


def _consent(text: str | None) -> bool:
    if text not in (None, "", "record"):
        raise ProtocolError(f"consent={text[:20]!r} is not known: record agrees to being recorded")
    return text == "record"


def parse_wait(query: Mapping[str, str], max_wait_s: float) -> float:
    """How many seconds a client would stay in the queue, at most ``max_wait_s``; 0 when it does not say.

    Raises:
        ProtocolError: no number, or out of range.
    """
    return _Range(0, max_wait_s).check("wait", _number("wait", query.get("wait", "0"), is_whole=False))


def parse_set(fields: Mapping[str, Any], current: SamplingParameters) -> SamplingParameters:
    """What a ``set`` event makes of the current parameters; those it does not name stay as they are.

    Raises:
        ProtocolError: no object ``parameters``, an unknown name in it, or a value that does not fit.
    """
    values = fields.get("parameters")
    if not isinstance(values, Mapping):
        raise ProtocolError(f"set needs an object 'parameters', got {type(values).__name__}")
    for name, value in values.items():
        if name not in _RANGES:
            nearest = difflib.get_close_matches(name, _RANGES, n=1, cutoff=0.0)[0]
            raise ProtocolError(f"set: there is no parameter {name[:40]!r}; the nearest is {nearest!r}")
        _check_type(name, value, _RANGES[name])
    return _with_values(current, values)


def parameter_ranges() -> dict[str, dict[str, Any]]:
    """What each parameter may be, for clients that draw controls: as JSON, by name.

    ``low`` and ``high``; ``is_whole``; ``zero_means``: what 0 stands for where it lies outside, else "";
    ``is_optional``: whether it may be null.
    """
    return {name: asdict(kind) for name, kind in _RANGES.items()}


def parameters_to_json(parameters: SamplingParameters) -> dict[str, Any]:
    """The parameters as the ``ready`` event carries them and ``set`` takes them."""
    return asdict(parameters)


def _with_values(current: SamplingParameters, values: Mapping[str, Any]) -> SamplingParameters:
    """``current`` with some fields replaced by numbers (or None) that lie in their ranges."""
    checked: dict[str, Any] = {
        name: None if value is None else _RANGES[name].check(name, value) for name, value in values.items()
    }
    return replace(current, **checked)


def _check_type(name: str, value: Any, kind: _Range) -> None:
    """JSON has no integers: only the spelling of a number shows that it is whole."""
    if value is None and kind.is_optional:
        return
    is_number = isinstance(value, int) if kind.is_whole else isinstance(value, int | float)
    if isinstance(value, bool) or not is_number:
        needed = "a whole number" if kind.is_whole else "a number"
        raise ProtocolError(f"set: {name} is {str(value)[:40]!r}, {needed} is needed")


def _number(name: str, text: str, is_whole: bool) -> float:
    """Digits as JavaScript prints them; Python's underscores, spaces, nan and inf are no numbers here."""
    if not (_WHOLE if is_whole else _DECIMAL).fullmatch(text):
        raise ProtocolError(f"{name}={text[:40]!r} is not {'a whole number' if is_whole else 'a number'}")
    value = int(text) if is_whole else float(text)
    if not math.isfinite(value):
        raise ProtocolError(f"{name}={text[:40]!r} is not finite")
    return value


def _format(text: str) -> AudioFormat:
    try:
        return AudioFormat(text)
    except ValueError:
        choices = ", ".join(AudioFormat)
        raise ProtocolError(f"format={text[:40]!r} is not known: {choices}") from None


def _resume(text: str) -> ResumeMode:
    try:
        return ResumeMode(text)
    except ValueError:
        raise ProtocolError(
            f"resume={text[:40]!r} is not known: 1 asks for a call that can be resumed, again resumes one"
        ) from None


def _name(key: str, text: str | None) -> str | None:
    if text is not None and not 0 < len(text) <= MAX_NAME_CHARS:
        raise ProtocolError(f"{key} has {len(text)} characters, 1 to {MAX_NAME_CHARS} are needed")
    return text
