"""The command line of ``antiphon probe``, read into one frozen value."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

from antiphon.protocol.chat import AudioFormat
from antiphon_client.address import DEFAULT_PORT, ServerAddress
from antiphon_client.api_key import NO_KEY, ApiKey, add_key_arguments, pop_key
from antiphon_client.limits import ProbeLimits

EXAMPLES = """\
examples:
  antiphon probe                                        built-in clip, one session, the server on this machine
  antiphon probe host:8998 --audio clip.mp3 --out reply.wav --plot latency.png
  antiphon probe --sessions 32 --seconds 30 --max-p99-ms 80 --max-lost 0
  antiphon probe http://moshi:8998 --stock              any Moshi server, by the client's clock only
  antiphon probe --protocol stt --audio clip.wav        words of a recording, in real time
  antiphon probe --protocol tts --sessions 4            four texts at once: latency and speed
  antiphon probe --cut 2 --format pcm_f32le --seconds 60   a call whose connection is lost every other second
  antiphon probe --sessions 200 --processes 2 --json -  a heavy load, as JSON on standard output
"""


class Protocol(StrEnum):
    """The protocol that the probe's sessions use."""

    CHAT = "chat"  # /api/chat: a conversation
    STT = "stt"  # /api/asr-streaming: speech to text
    TTS = "tts"  # /api/tts_streaming: text to speech


_OF_NO_USE = (
    ("is_stock", "--stock", (Protocol.STT, Protocol.TTS)),
    ("format", "--format", (Protocol.STT, Protocol.TTS)),
    ("out", "--out", (Protocol.STT,)),
    ("audio", "--audio", (Protocol.TTS,)),
    ("seconds", "--seconds", (Protocol.TTS,)),
    ("message_ms", "--message-ms", (Protocol.TTS,)),
    ("plot", "--plot", (Protocol.TTS,)),
    ("text", "--text", (Protocol.CHAT, Protocol.STT)),
    ("cut_every_s", "--cut", (Protocol.STT, Protocol.TTS)),
)


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """All options of ``antiphon probe``; its ``--help`` describes each."""

    address: ServerAddress
    api_key: ApiKey = NO_KEY
    model: str | None = None
    audio: Path | None = None
    sessions: int = 1
    seconds: float | None = None
    format: AudioFormat = AudioFormat.OPUS
    protocol: Protocol = Protocol.CHAT
    text: str | None = None
    is_stock: bool = False
    is_unpaced: bool = False
    cut_every_s: float = 0.0
    message_ms: int | None = None
    wait_s: float = 0.0
    ready_timeout_s: float = 10.0
    delay_frames: int | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    processes: int = 1
    seed: int = 0
    verifies_tls: bool = True
    json: str | None = None
    plot: Path | None = None
    out: Path | None = None
    is_quiet: bool = False
    limits: ProbeLimits = field(default_factory=ProbeLimits)


def parse_arguments(argv: Sequence[str]) -> ProbeOptions:
    """Read a command line; argparse ends the process with code 2 when the command line is invalid.

    Raises:
        ConfigError: the address is invalid, or no key can be read from its file.
    """
    parser = _build_parser()
    values = vars(parser.parse_args(argv))
    if values["is_stock"] and values["format"] not in (None, AudioFormat.OGG):
        parser.error(f"--stock servers accept ogg only, not {values['format']}")
    _check_protocol(parser, values)
    default = AudioFormat.OGG if values["is_stock"] else AudioFormat.OPUS
    limits = ProbeLimits(**{item.name: values.pop(f"limit_{item.name}") for item in fields(ProbeLimits)})
    return ProbeOptions(
        address=ServerAddress.parse(values.pop("url")),
        api_key=pop_key(values),
        format=values.pop("format") or default,
        query=dict(values.pop("query")),
        limits=limits,
        **values,
    )


def _check_protocol(parser: argparse.ArgumentParser, values: Mapping[str, object]) -> None:
    """Exit with code 2 if an option does not apply to the protocol."""
    protocol = values["protocol"]
    for name, flag, protocols in _OF_NO_USE:
        if protocol in protocols and values[name]:
            parser.error(f"{flag} has no effect with --protocol {protocol}")
    if values["cut_every_s"] and (values["is_stock"] or values["format"] is AudioFormat.OGG):
        parser.error("--cut needs calls that can be resumed: no --stock, and opus or pcm")
    if values["is_unpaced"] and protocol is not Protocol.STT:
        parser.error("--as-fast-as-possible needs --protocol stt: conversations run in real time")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="antiphon probe",
        description="Run paced real-time conversations with a server and report the latency of each frame.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "url",
        nargs="?",
        default=f"http://127.0.0.1:{DEFAULT_PORT}",
        metavar="URL",
        help="http(s)://host:port, ws(s)://host:port or host:port [%(default)s]",
    )
    _add_load(parser.add_argument_group("load"))
    _add_connection(parser.add_argument_group("connection"))
    _add_output(parser.add_argument_group("output"))
    _add_limits(parser.add_argument_group("limits; exceeding one gives exit code 1"))
    return parser


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--audio", type=Path, metavar="FILE", help="speech to send: WAV, MP3, FLAC, Ogg [built-in]"
    )
    group.add_argument("--text", metavar="TEXT", help="the text to speak (--protocol tts) [built-in]")
    group.add_argument("--sessions", type=_at_least_one, default=1, metavar="N", help="sessions at once [1]")
    group.add_argument(
        "--seconds",
        type=_positive,
        metavar="SECONDS",
        help="call length in s, repeating the clip [the clip once]",
    )
    group.add_argument(
        "--message-ms",
        type=int,
        metavar="MS",
        help="audio in one message: 20, 40 or 80; stt: 1 to 1000 [by format]",
    )
    group.add_argument(
        "--as-fast-as-possible",
        action="store_true",
        dest="is_unpaced",
        help="send faster than real time (--protocol stt)",
    )
    group.add_argument(
        "--cut",
        type=_positive,
        default=0.0,
        dest="cut_every_s",
        metavar="SECONDS",
        help="mean time between cuts of each connection, in s; calls then resume [never]",
    )
    group.add_argument(
        "--processes", type=_at_least_one, default=1, metavar="N", help="generator processes [1]"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the random phases [0]")


def _add_connection(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--protocol",
        type=Protocol,
        choices=list(Protocol),
        default=Protocol.CHAT,
        help="chat: a conversation; stt, tts: speech to text, text to speech (Kyutai's protocols) [chat]",
    )
    group.add_argument("--model", metavar="NAME", help="model of the server [its default]")
    add_key_arguments(group.add_argument)
    group.add_argument(
        "--format",
        type=AudioFormat,
        choices=list(AudioFormat),
        help="audio format both ways [opus; ogg with --stock]",
    )
    group.add_argument(
        "--stock",
        action="store_true",
        dest="is_stock",
        help="use plain /api/chat, for any Moshi server",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=0.0,
        dest="wait_s",
        metavar="SECONDS",
        help="longest wait in the queue in s [0]",
    )
    group.add_argument(
        "--ready-timeout",
        type=_positive,
        default=10.0,
        dest="ready_timeout_s",
        metavar="SECONDS",
        help="longest wait for admission in s, in addition to --wait [10]",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        type=name_and_value,
        dest="query",
        metavar="NAME=VALUE",
        help="a query parameter such as text_temperature=0; may be repeated",
    )
    group.add_argument(
        "--delay-frames",
        type=int,
        metavar="N",
        help="frames without a reply at the start [requested from the server, else 0]",
    )
    group.add_argument(
        "--insecure", action="store_false", dest="verifies_tls", help="accept any TLS certificate"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", metavar="FILE", help="report as JSON; - for standard output")
    group.add_argument("--plot", type=Path, metavar="FILE.png", help="latency over time and its distribution")
    group.add_argument("--out", type=Path, metavar="REPLY.wav", help="audio that session 0 received")
    group.add_argument("--quiet", action="store_true", dest="is_quiet", help="no progress bar")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    for flag, name, what in (
        ("--max-p50-ms", "p50_ms", "p50 frame latency"),
        ("--max-p99-ms", "p99_ms", "p99 frame latency"),
        ("--max-ms", "max_ms", "longest frame latency"),
        ("--max-first-audio-ms", "first_audio_ms", "longest time to first audio"),
    ):
        group.add_argument(flag, type=float, dest=f"limit_{name}", metavar="MS", help=what)
    for flag, name, what in (
        ("--max-lost", "lost", "frames without a reply"),
        ("--max-late", "late", "frames answered after 80 ms"),
        ("--max-gaps", "gaps", "playback underruns"),
        ("--max-misplaced", "misplaced", "replies out of order, duplicate or unexpected"),
    ):
        group.add_argument(flag, type=int, dest=f"limit_{name}", metavar="N", help=what)
    for flag, name, what in (
        ("--max-rejected", "rejected", "sessions not admitted"),
        ("--max-failed", "failed", "sessions ended early"),
    ):
        group.add_argument(flag, type=int, default=0, dest=f"limit_{name}", metavar="N", help=f"{what} [0]")


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {value:g}")
    return value


def name_and_value(text: str) -> tuple[str, str]:
    """Split ``NAME=VALUE``, for argparse."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value
