"""Measures all numbers of the small models' model cards, on held-out phrasings, voices, surroundings and
speeds.

Usage: python -m lab.train.evaluate --model out/train/tiny --stt out/train/tiny-stt \\
           --tts out/train/tiny-tts --speech out/train/codec-test \\
           --questions out/train/questions-test --json out/train/tiny.json

Training selects the best checkpoint by the first shard of the held-out questions; the other shards are used
here. With a single shard, that one is used, and the report's "judged_by" states it.

It starts servers and calls them like clients: the talker in real time, recogniser and synthesiser at full
speed; --only selects one part. The parts "duplex" and "natural" run without a server: see lab.train.duplex
and lab.train.yardsticks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from antiphon.arrays import FloatArray
from antiphon.models.catalog import load_checkpoint
from antiphon.serve.media.tts_voices import find_tts_voices
from lab.train import calls, codec_quality, duplex, eval_calls
from lab.train.answers import Answer, speak_answers
from lab.train.codec import load_mimi
from lab.train.ear import Count, Ear, words_wrong
from lab.train.material import Material
from lab.train.outside import CHAT, PROSE, Outside
from lab.train.outside import INTENTS as OUTSIDE
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance, read_shard
from lab.train.readings import NATURAL_VOICES, VOICES, natural_speakers, words_in_frames
from lab.train.recordings import pieces, recordings_in
from lab.train.rows import Recogniser, Talker
from lab.train.shards import shards_in
from lab.train.synthetic_voices import Voice
from lab.train.yardsticks import Sets, ask, write_down
from tests.support.launch import ANTIPHON, RunningServer, free_port, running_server

PARTS: Final = ("codec", "talk", "duplex", "stt", "tts", "natural")
ENGLISH_SENTENCES: Final = 20
NOT_ASKED: Final = (*OUTSIDE, "half")


def balanced(
    utterances: Sequence[Utterance], per_intent: int, intents: Iterable[str] = PHRASINGS
) -> list[Utterance]:
    """Return the first utterances of each intent, at most ``per_intent``, shuffled with a fixed seed."""
    chosen = [
        one for intent in intents for one in [u for u in utterances if u.turn.intent == intent][:per_intent]
    ]
    order = np.random.default_rng(2).permutation(len(chosen))
    return [chosen[index] for index in order]


@contextmanager
def serving(model: str, options: argparse.Namespace) -> Iterator[RunningServer]:
    """Run a fresh server of one model, with a row for every caller."""
    port, log = free_port(), Path("out/evaluate-server.log")
    log.parent.mkdir(exist_ok=True)
    command = [*ANTIPHON, "serve", "--model", model, "--port", str(port), "--slots", str(options.callers)]
    command += ["--outside-files"] if Path(model).is_dir() else []  # the codec may be in another folder
    if options.backend:
        command += ["--backend", options.backend]
    with running_server(command, port, log) as server:
        yield server


def judging_shards(folder: Path) -> list[Path]:
    """Return all shards but the first, which training uses to select the best checkpoint; or the only shard.

    Raises:
        SystemExit: there is none.
    """
    shards = shards_in(folder)
    if not shards:
        made_by = f"python -m lab.train.questions --held-out --shards 4 --out {folder}"
        raise SystemExit(f"no questions in {folder}; make them with: {made_by}")
    return shards[1:] or shards


def held_out_questions(folder: Path) -> list[Utterance]:
    """Return the questions of the judging shards."""
    return [one for path in judging_shards(folder) for one in read_shard(path)]


def dictate(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Transcribe the questions and other speech with a recogniser; returns the report."""
    asked = balanced(held_out_questions(options.questions), options.per_intent, (*PHRASINGS, *OUTSIDE))
    asked += pieces(recordings_in(options.recordings))
    with serving(model, options) as server:
        note = progress("dictated")
        results = asyncio.run(eval_calls.dictate_all(server.url, asked, options.callers, note))
    return eval_calls.dictation_report(results)


def read_aloud(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Synthesise answers in every voice that is named after a teacher; returns the report."""
    texts, report = eval_calls.held_out_texts(options.answers), dict[str, Any]()
    mimi = load_mimi(options.codec or codec_quality.folder_of(model))
    mimi.eval()
    ear = Ear(Material(options.material)) if options.material else None
    with serving(model, options) as server:
        for name in voices_of(model):
            note = progress(f"read by {name}")
            speeches = asyncio.run(eval_calls.read_all(server.url, texts, options.callers, note, name))
            report[name] = eval_calls.reading_report(
                texts,
                speeches,
                as_taught(name, texts, options),
                partial(after_codec, mimi, name),
                ear,
            )
            if ear is not None:
                report[name]["whisper_english"] = asdict(english_at_large(server.url, name, options, ear))
    return report


def after_codec(mimi: Any, name: str, answer: Answer) -> FloatArray:
    """Return an answer in the training data of a voice, after the codec: as it is spoken, or word by word."""
    sound = answer.pcm if name in NATURAL_VOICES else np.concatenate(words_in_frames(answer))
    return codec_quality.round_trip_from_silence(mimi, sound)


def as_taught(name: str, texts: Sequence[str], options: argparse.Namespace) -> Mapping[str, Answer]:
    """Return the texts as the teacher speaks them; natural voices need the material."""
    if name in VOICES:
        return speak_answers(texts, voice=Voice("flite", VOICES[name]))
    teacher = natural_speakers(Material(options.material))[name]
    return {text: teacher.say(text) for text in sorted(set(texts))}


def english_at_large(url: str, name: str, options: argparse.Namespace, ear: Ear) -> Count:
    """Count the word errors of the independent recogniser on sentences outside the domain, most of whose
    words are unknown to the model."""
    rng, outside = random.Random(14), Outside(held_out=True)
    drawn = [outside.draw(rng)[0] for _ in range(4 * ENGLISH_SENTENCES)]
    texts = [turn.question for turn in drawn if turn.intent in (CHAT, PROSE)][:ENGLISH_SENTENCES]
    note = progress(f"English by {name}")
    speeches = asyncio.run(eval_calls.read_all(url, texts, options.callers, note, name, may_refuse=True))
    return words_wrong(texts, ear.hear(eval_calls.sounds_of(speeches)))


def voices_of(model: str) -> list[str]:
    """Return the names of a synthesiser's voices that have a teacher."""
    found = find_tts_voices(None, load_checkpoint(model))
    return [name for name in ([] if found is None else found.names()) if name in {**VOICES, **NATURAL_VOICES}]


def naturally(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the talker, and a recogniser if given, on natural voices and people."""
    material = Material(options.material)
    sets, ear = Sets.of(material, options.yardsticks), Ear(material)
    report: dict[str, Any] = {"talker": ask(Talker(options.model, options.backend), sets, ear)}
    if options.stt:
        own, without = (Recogniser(options.stt, options.backend, prefix_frames=it) for it in (None, 1))
        report["recogniser"] = {"model": options.stt} | write_down(own, without, sets, ear)
    return report


def converse(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Test a talker on a server: questions, silence and noise, interruptions; returns the report."""
    utterances = held_out_questions(options.questions)
    asked = balanced(utterances, options.per_intent)
    with serving(model, options) as server:
        note = progress("questions")
        results = asyncio.run(calls.ask_all(server.url, asked, options.callers, note))
        quiet = asyncio.run(calls.stay_quiet(server.url, options.quiet_minutes, options.callers))
        note = progress("interruptions")
        interrupted = asyncio.run(
            calls.interrupt_all(server.url, utterances, options.interruptions, options.callers, note)
        )
    return {
        "questions": calls.answers_report(results),
        "spoken": calls.spoken_report(results),
        "quiet": quiet,
        "interruptions": interrupted,
    }


def in_process(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Test a talker in this process: questions, other speech, pauses and interruptions; returns the
    report."""
    utterances = held_out_questions(options.questions)
    return duplex.measure(
        Talker(model, options.backend),
        balanced(utterances, options.per_intent),
        balanced(utterances, options.per_intent, NOT_ASKED),
        recordings_in(options.recordings),
        options.tracks,
    )


def progress(what: str) -> Callable[[int, int], None]:
    """Return a function that prints the progress and the remaining time."""
    start_s = time.monotonic()

    def note(done: int, total: int) -> None:
        left_s = (time.monotonic() - start_s) / max(done, 1) * (total - done)
        sys.stderr.write(f"{what}: {done} of {total}, {left_s:.0f} s left\n")

    return note


def main(argv: list[str] | None = None) -> int:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="out/train/tiny", help="a built-in name or a folder [%(default)s]")
    parser.add_argument("--stt", help="the recogniser, likewise [not measured]")
    parser.add_argument("--tts", help="the synthesiser, likewise [not measured]")
    parser.add_argument("--codec", type=Path, help="folder with mimi.safetensors [the model's own]")
    parser.add_argument("--backend", help="the server's backend [auto]")
    parser.add_argument(
        "--speech",
        type=Path,
        default=Path("out/train/codec-test"),
        help="held-out speech of lab.train.corpus [%(default)s]",
    )
    parser.add_argument(
        "--questions",
        type=Path,
        default=Path("out/train/questions-test"),
        help="held-out folder of lab.train.questions [%(default)s]",
    )
    parser.add_argument(
        "--material",
        type=Path,
        help="folder of lab.train.material: adds natural voices, people and Whisper [not measured]",
    )
    parser.add_argument(
        "--yardsticks",
        type=Path,
        default=Path("out/train/yardsticks"),
        help="where the natural voices' questions are kept [%(default)s]",
    )
    parser.add_argument("--recordings", type=Path, help="a folder of real speech, reported separately")
    parser.add_argument("--per-intent", type=int, default=30, help="held-out questions of each intent")
    parser.add_argument("--answers", type=int, default=64, help="held-out answers read aloud [%(default)s]")
    parser.add_argument("--quiet-minutes", type=float, default=10)
    parser.add_argument("--interruptions", type=int, default=40)
    parser.add_argument(
        "--tracks",
        type=int,
        default=60,
        help="tracks of each kind: pauses, interruptions and so on [%(default)s]",
    )
    parser.add_argument("--callers", type=int, default=4, help="calls at once [%(default)s]")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("out/evaluation.json"),
        help="the numbers are written there too [%(default)s]",
    )
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    options = parser.parse_args(argv)
    torch.set_num_threads(2)
    report: dict[str, Any] = {"model": options.model}
    wanted = PARTS if options.only is None else (options.only,)
    needs_material = "tts" in wanted and options.tts and not options.material
    natural = [name for name in voices_of(options.tts) if name in NATURAL_VOICES] if needs_material else []
    if natural:
        parser.error(
            f"{options.tts} has natural voices ({', '.join(natural)}), whose teacher is in the folder of "
            "--material; to make it: python -m lab.train.material --out out/material"
        )
    if {*wanted} & {"talk", "duplex", "stt"}:
        report["judged_by"] = [path.name for path in judging_shards(options.questions)]
    if "codec" in wanted:
        folder = options.codec or codec_quality.folder_of(options.model)
        report["codec"] = codec_quality.measure(
            folder, options.speech, options.questions, recordings_in(options.recordings)
        )
    if "talk" in wanted:
        report |= converse(options.model, options)
    if "duplex" in wanted:
        report["duplex"] = in_process(options.model, options)
    if "stt" in wanted and options.stt:
        report["dictation"] = {"model": options.stt} | dictate(options.stt, options)
    if "natural" in wanted and options.material:
        report["natural"] = naturally(options)
    if "tts" in wanted and options.tts:
        report["reading"] = {"model": options.tts} | read_aloud(options.tts, options)
    text = json.dumps(report, indent=2)
    sys.stdout.write(text + "\n")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
