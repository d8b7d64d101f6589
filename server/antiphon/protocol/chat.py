"""The query of ``/api/chat``, and the parameters that a client may change later."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from antiphon.errors import ProtocolError
from antiphon.models.sampling import SamplingParameters
from antiphon.values import ValueRule, read_number

E = TypeVar("E", bound=StrEnum)

MAX_NAME_CHARS = 200
"""Maximum length of a voice's name. The request line limits the length of a prompt."""


class AudioFormat(StrEnum):
    """The encoding of audio in both directions."""

    OGG = "ogg"  # pieces of one Ogg/Opus stream
    OPUS = "opus"  # one Opus packet of 20 ms a message
    PCM_S16LE = "pcm_s16le"
    PCM_F32LE = "pcm_f32le"


class ResumeMode(StrEnum):
    """The values of the query's ``resume`` in the extension."""

    NO = "0"
    ABLE = "1"  # a call that can be resumed
    AGAIN = "again"  # this connection resumes a call


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The parsed query of one client.

    ``wait_s`` is the longest time that the client waits in the queue. ``may_record`` is the caller's consent
    to a recording; by default there is none. ``extended`` clients get events and stamped audio; for other
    clients ``format`` is Ogg and ``wait_s`` is 0.
    """

    parameters: SamplingParameters
    extended: bool = False
    format: AudioFormat = AudioFormat.OGG
    wait_s: float = 0.0
    may_record: bool = False
    resume: ResumeMode = ResumeMode.NO
    text_prompt: str | None = None
    voice_prompt: str | None = None


_TEMPERATURE = ValueRule(float, 0.2, 1.2, also={0: "greedy"})
_TOPK = ValueRule(int, 10, 500, also={0: "all"})
_SEED = ValueRule(int, 0, 2**63 - 1)
_RULES: Mapping[str, ValueRule] = {
    "text_temperature": _TEMPERATURE,
    "text_topk": _TOPK,
    "audio_temperature": _TEMPERATURE,
    "audio_topk": _TOPK,
    "pad_mult": ValueRule(float, -4, 4),
    "repetition_penalty_context": ValueRule(int, 0, 200),
    "repetition_penalty": ValueRule(float, 1, 2),
    "text_seed": _SEED,
    "audio_seed": _SEED,
    "max_steps": ValueRule((int, type(None)), 1, 2**31 - 1),
}
"""The ranges of the stock web client's controls; every field of SamplingParameters is here."""


def parse_chat_query(
    query: Mapping[str, str], *, defaults: SamplingParameters, max_wait_s: float
) -> ChatRequest:
    """Read the query of an ``/api/chat`` request; unknown keys are ignored.

    The keys of the extension (format, wait, consent) have an effect only with ``ext=1``. ``max_wait_s`` is
    the longest wait that the server offers.

    Raises:
        ProtocolError: a value is not a number, out of range, or not one of the choices.
    """
    given = {name: _number(name, query[name], rule) for name, rule in _RULES.items() if name in query}
    voice = query.get("voice_prompt") or None  # stock clients may send none
    if voice is not None and len(voice) > MAX_NAME_CHARS:
        raise ProtocolError(f"voice_prompt has {len(voice)} characters, 1 to {MAX_NAME_CHARS} are needed")
    text = query.get("text_prompt")
    request = ChatRequest(replace(defaults, **given), text_prompt=text, voice_prompt=voice)
    extended = query.get("ext", "0")
    if extended not in ("0", "1"):
        raise ProtocolError(f"ext={extended[:20]!r} is not known: 1 requests the extension, 0 does not")
    if extended == "0":
        return request
    format_ = _choice(AudioFormat, "format", query.get("format", AudioFormat.OGG), ", ".join(AudioFormat))
    words = "1 requests a resumable call, again resumes one"
    resume = _choice(ResumeMode, "resume", query.get("resume", ResumeMode.NO), words)
    if resume is not ResumeMode.NO and format_ is AudioFormat.OGG:
        raise ProtocolError(
            f"resume={resume} with format=ogg: a stream of pages cannot be joined; "
            "request opus, pcm_s16le or pcm_f32le"
        )
    consent = query.get("consent", "")
    if consent not in ("", "record"):
        raise ProtocolError(f"consent={consent[:20]!r} is not known: record is consent to a recording")
    return replace(
        request,
        extended=True,
        format=format_,
        resume=resume,
        wait_s=parse_wait(query, max_wait_s),
        may_record=consent == "record",
    )


def parse_wait(query: Mapping[str, str], max_wait_s: float) -> float:
    """The seconds that a client waits in the queue, at most ``max_wait_s``; 0 by default.

    Raises:
        ProtocolError: the value is not a number, or is out of range.
    """
    return float(_number("wait", query.get("wait", "0"), ValueRule(float, 0, max_wait_s)))


def parse_set(fields: Mapping[str, Any], current: SamplingParameters) -> SamplingParameters:
    """The parameters after a ``set`` event; parameters that the event does not name keep their values.

    Raises:
        ProtocolError: ``parameters`` is not an object, or has an unknown name or an invalid value.
    """
    values = fields.get("parameters")
    if not isinstance(values, Mapping):
        raise ProtocolError(f"set needs an object 'parameters', got {type(values).__name__}")
    for name, value in values.items():
        if name not in _RULES:
            nearest = difflib.get_close_matches(name, _RULES, n=1, cutoff=0.0)[0]
            raise ProtocolError(f"set: there is no parameter {name[:40]!r}; the nearest is {nearest!r}")
        if fault := _RULES[name].fault(value):
            raise ProtocolError(f"set: {name} {fault.words}")
    return replace(current, **{name: _RULES[name].converted(value) for name, value in values.items()})


def parameter_ranges() -> dict[str, dict[str, Any]]:
    """The range of each parameter, for clients that draw controls: as JSON, by name.

    Each has ``low`` and ``high``; ``is_whole``; ``zero_means``, the meaning of a 0 that is outside of the
    range, or ""; and ``is_optional``: whether it may be null.
    """
    return {
        name: {
            "low": rule.low,
            "high": rule.high,
            "is_whole": rule.is_whole,
            "zero_means": rule.also.get(0, ""),
            "is_optional": rule.is_optional,
        }
        for name, rule in _RULES.items()
    }


def parameters_to_json(parameters: SamplingParameters) -> dict[str, Any]:
    """The parameters in the form of the ``ready`` and ``set`` events."""
    return asdict(parameters)


def _number(name: str, text: str, rule: ValueRule) -> Any:
    value = read_number(text, is_whole=rule.is_whole)
    if fault := rule.fault(text if value is None else value):
        raise ProtocolError(f"{name} {fault.words}")
    return rule.converted(value)


def _choice(kind: type[E], name: str, text: str, words: str) -> E:
    if text not in list(kind):
        raise ProtocolError(f"{name}={text[:40]!r} is not known: {words}")
    return kind(text)
