"""The probe's command line: each option reaches its setting, invalid ones give an error message."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.protocol.chat import AudioFormat
from antiphon_client.arguments import parse_arguments
from antiphon_client.limits import ProbeLimits


def test_without_options_it_probes_this_machine_once_in_opus() -> None:
    options = parse_arguments([])
    assert options.address.http == "http://127.0.0.1:8998"
    assert (options.sessions, options.seconds, options.format) == (1, None, AudioFormat.OPUS)
    assert options.limits == ProbeLimits()


LOAD = "host:9 --audio a.wav --sessions 3 --seconds 2.5 --message-ms 20 --processes 2 --seed 7"
CONNECTION = "--format pcm_s16le --wait 5 --ready-timeout 3 --set text_topk=1 --set model=echo --insecure"
OUTPUT = "--delay-frames 2 --json - --plot p.png --out r.wav --quiet"
TIME_LIMITS = "--max-p50-ms 1 --max-p99-ms 2 --max-ms 3 --max-first-audio-ms 4"
COUNT_LIMITS = "--max-lost 5 --max-late 6 --max-gaps 7 --max-misplaced 8 --max-rejected 9 --max-failed 10"


def test_every_option_arrives() -> None:
    options = parse_arguments(f"{LOAD} {CONNECTION} {OUTPUT}".split())
    assert options.address.http == "http://host:9"
    assert (options.audio, options.sessions, options.seconds) == (Path("a.wav"), 3, 2.5)
    assert (options.format, options.message_ms) == (AudioFormat.PCM_S16LE, 20)
    assert (options.processes, options.seed, options.wait_s, options.ready_timeout_s) == (2, 7, 5.0, 3.0)
    assert options.query == {"text_topk": "1", "model": "echo"}
    assert (options.delay_frames, options.verifies_tls, options.is_quiet) == (2, False, True)
    assert (options.json, options.plot, options.out) == ("-", Path("p.png"), Path("r.wav"))


def test_every_limit_arrives() -> None:
    options = parse_arguments(f"{TIME_LIMITS} {COUNT_LIMITS}".split())
    assert options.limits == ProbeLimits(
        p50_ms=1,
        p99_ms=2,
        max_ms=3,
        first_audio_ms=4,
        lost=5,
        late=6,
        gaps=7,
        misplaced=8,
        rejected=9,
        failed=10,
    )


def test_a_stock_server_is_spoken_to_in_ogg() -> None:
    assert parse_arguments(["--stock"]).format is AudioFormat.OGG


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--sessions 0", "must be at least 1, got 0"),
        ("--seconds 0", "must be above 0, got 0"),
        ("--set nonsense", "must be NAME=VALUE, got 'nonsense'"),
        ("--stock --format opus", "--stock servers accept ogg only, not opus"),
        ("--format flac", "argument --format"),
        ("--sesions 3", "unrecognized arguments: --sesions"),
    ],
)
def test_what_cannot_be_used_ends_with_code_2_and_words(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(words.split())
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
