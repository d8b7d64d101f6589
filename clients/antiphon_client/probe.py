"""``antiphon probe``: call a server with recorded speech and report the time of each frame."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from antiphon.audio.wav import write_wav
from antiphon.errors import ConfigError, SessionError
from antiphon_client.arguments import ProbeOptions, Protocol, parse_arguments
from antiphon_client.card import make_card, render_card
from antiphon_client.clip import EncodedClip, encode_clip, encode_speech, fit_clip, load_clip, load_question
from antiphon_client.encoding import SAMPLE_RATE
from antiphon_client.facts import ServerFacts, ask_facts, ask_models
from antiphon_client.generator import LoadResult, generate
from antiphon_client.load import GRACE_S, ProbeLoad, Progress, spread
from antiphon_client.plot import load_matplotlib, plot_records
from antiphon_client.progress import ProgressBar
from antiphon_client.replies import decode_replies
from antiphon_client.report import ProbeReport, report_probe
from antiphon_client.table import render_report, report_to_json
from antiphon_client.tts_probe import run_tts_probe

SCHEMA = "antiphon.probe/1"
EXIT_BROKEN = 1
PROTOCOLS = {
    "codec": Protocol.CHAT,
    "duplex": Protocol.CHAT,
    "stt": Protocol.STT,
    "tts": Protocol.TTS,
}
"""The protocol for each kind of model."""
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A finished probe: the facts, the report, the card, and one sentence for each exceeded limit."""

    started_at: str
    facts: ServerFacts
    result: LoadResult
    report: ProbeReport
    card: dict[str, Any]
    broken: tuple[str, ...]


def main(argv: list[str]) -> int:
    """Run the command line; return 0 if no limit was exceeded, 1 if a limit was exceeded, 130 after Ctrl-C.

    Raises:
        ConfigError, AudioError, MissingExtraError, SessionError: see their messages.
    """
    options = parse_arguments(argv)
    check_outputs(options)
    asyncio.run(check_protocol(options))
    if options.protocol is Protocol.TTS:
        return run_tts_probe(options)
    clip = make_clip(options)
    done = run_probe(options, clip, sys.stderr)
    write_files(options, done)
    text = sys.stderr if options.json == "-" else sys.stdout
    print(render_result(done), file=text)
    for sentence in done.broken:
        print(f"antiphon probe: limit exceeded: {sentence}", file=sys.stderr)  # noqa: T201
    if done.result.was_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_BROKEN if done.broken else 0


async def check_protocol(options: ProbeOptions) -> None:
    """Check before the run that the server has a model for the protocol; pass if the server lists no models.

    Raises:
        SessionError: the server's models are for other protocols; the message names the option to use.
    """
    if options.is_stock:
        return
    models = await ask_models(
        options.address, verifies_tls=options.verifies_tls, api_key=options.api_key, model=options.model
    )
    protocols = {PROTOCOLS[kind] for kind in models.values() if kind in PROTOCOLS}
    if not protocols or options.protocol in protocols:
        return
    listed = ", ".join(f"{name} ({kind})" for name, kind in models.items())
    remedy = " or ".join(f"--protocol {protocol}" for protocol in sorted(protocols))
    raise SessionError(f"{options.address.http} has no model for {options.protocol}: {listed}; give {remedy}")


def make_clip(options: ProbeOptions) -> EncodedClip:
    """The audio of every session, as messages of its protocol.

    Raises:
        AudioError: the recording cannot be read. ConfigError: the format does not support this message
        length.
    """
    speech = load_question() if options.audio is None else load_clip(options.audio)
    pcm = fit_clip(speech, options.seconds)
    if options.protocol is Protocol.STT:
        return encode_speech(pcm, message_ms=options.message_ms)
    return encode_clip(pcm, options.format, message_ms=options.message_ms)


def run_probe(options: ProbeOptions, clip: EncodedClip, progress: TextIO) -> ProbeResult:
    """Run the sessions of ``options``, and write their progress to the stream ``progress``.

    Raises:
        SessionError: there is no server.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    facts = asyncio.run(_ask(options))
    delay_frames = options.delay_frames if options.delay_frames is not None else facts.delay_frames or 0
    plans = spread(
        probe_url(options),
        options.sessions,
        seed=options.seed,
        delay_frames=delay_frames,
        is_extended=not options.is_stock and options.protocol is Protocol.CHAT,
        ready_timeout_s=options.ready_timeout_s + options.wait_s,
        keeps_audio=options.out is not None,
        is_transcript=options.protocol is Protocol.STT,
        cut_every_s=options.cut_every_s,
        unpaced_grace_s=GRACE_S + options.sessions * clip.seconds if options.is_unpaced else None,
    )
    bar = ProgressBar(progress, is_quiet=options.is_quiet)
    planned = options.sessions * clip.frames

    def show(now: Progress) -> None:
        detail = f"{now.speaking} speaking, {now.frames_answered} of {now.frames_sent} frames answered"
        bar.show(now.frames_sent / planned, detail, time.monotonic())

    load = ProbeLoad(plans, clip, verifies_tls=options.verifies_tls, api_key=options.api_key)
    result = generate(load, processes=options.processes, on_progress=show)
    bar.clear()
    try:
        facts = asyncio.run(_ask(options))  # memory is read after the load, not from an idle server
    except SessionError:
        facts = dataclasses.replace(facts, memory={})  # the server ended: the report has the outcomes
    report = report_probe([item.record for item in result.results], result.generator)
    return ProbeResult(
        started_at=started_at,
        facts=facts,
        result=result,
        report=report,
        card=make_card(facts, report, load=describe_load(options, clip)),
        broken=tuple(options.limits.broken_by(report)),
    )


async def _ask(options: ProbeOptions) -> ServerFacts:
    return await ask_facts(
        options.address, verifies_tls=options.verifies_tls, api_key=options.api_key, model=options.model
    )


def probe_url(options: ProbeOptions) -> str:
    """The WebSocket URL of the sessions for ``options.protocol``, chat or speech to text."""
    if options.protocol is Protocol.CHAT:
        return options.address.chat(chat_query(options))
    model = {"model": options.model} if options.model is not None else {}
    wait = {"wait": f"{options.wait_s:g}"} if options.wait_s else {}
    return options.address.speech({**wait, **model, **options.query})


def chat_query(options: ProbeOptions) -> dict[str, str]:
    """The query of the WebSocket ``/api/chat``. For a stock server it has only the model, if the options name
    one.
    """
    model = {"model": options.model} if options.model is not None else {}
    if options.is_stock:
        return {**model, **options.query}
    wait = {"wait": f"{options.wait_s:g}"} if options.wait_s else {}
    resume = {"resume": "1"} if options.cut_every_s else {}
    return {"ext": "1", "format": options.format.value, **resume, **wait, **model, **options.query}


def describe_load(options: ProbeOptions, clip: EncodedClip) -> str:
    """The load as text, for the benchmark card."""
    sessions = f"{options.sessions} session{'s' if options.sessions > 1 else ''}"
    message_ms = clip.message_s * 1000
    pace = "as fast as possible" if options.is_unpaced else "real time"
    return (
        f"{sessions} of {clip.seconds:.1f} s ({clip.frames} frames), {clip.format} in {message_ms:.0f} ms "
        f"messages, {pace}, random phases"
    )


def render_result(done: ProbeResult) -> str:
    """The text output: the report, the text that the first session received, and the card."""
    parts = [render_report(done.report)]
    if done.result.was_interrupted:
        parts.insert(0, "interrupted: the report covers the time until then")
    text = done.report.per_session[0].text.strip()
    if text:
        parts.append(f"text       {text}")
    if done.report.counts.answered:  # a card of nothing says nothing
        parts.append(render_card(done.card))
    return "\n\n".join(parts)


def result_to_json(done: ProbeResult) -> dict[str, Any]:
    """A probe's result as values for JSON, with the name of the schema."""
    return {
        "schema": SCHEMA,
        "started_at": done.started_at,
        "interrupted": done.result.was_interrupted,
        "broken_limits": list(done.broken),
        "card": done.card,
        "report": report_to_json(done.report),
        "build_info": dict(done.facts.raw),
    }


def check_outputs(options: ProbeOptions) -> None:
    """Check before the run that every result can be written.

    Raises:
        ConfigError: a file's folder does not exist.
        MissingExtraError: a figure needs matplotlib, which is not installed.
    """
    report = Path(options.json) if options.json not in (None, "-") else None
    for path in (report, options.plot, options.out):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if options.plot is not None:
        load_matplotlib()


def write_files(options: ProbeOptions, done: ProbeResult) -> None:
    """Write the requested outputs: the JSON, the figure, and the first session's reply as WAV."""
    if options.json == "-":
        print(json.dumps(result_to_json(done), indent=2))  # noqa: T201
    elif options.json is not None:
        Path(options.json).write_text(json.dumps(result_to_json(done), indent=2) + "\n", encoding="utf-8")
    if options.plot is not None:
        title = f"{done.facts.model or options.address.http}: {done.card['load']}"
        plot_records([item.record for item in done.result.results], options.plot, title=title)
    if options.out is not None:
        reply = decode_replies(done.result.results[0].payloads, options.format)
        write_wav(options.out, reply, sample_rate=SAMPLE_RATE)
