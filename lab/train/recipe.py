"""The recipe of the built-in models: its stages in order, each a module's main function with arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lab.train import (
    asr_trainer,
    codec,
    corpus,
    natural,
    own_speech,
    questions,
    readings,
    segments,
    ship,
    stretches,
    talker,
    tts_trainer,
    word_times,
)

Stage = tuple[str, Callable[[list[str]], int], list[str]]


@dataclass(frozen=True, slots=True)
class Minutes:
    """The minutes of each model's training."""

    codec: float = 60
    decoder: float = 30
    talker: float = 120
    listener: float = 90
    reader: float = 60


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of every kind of data; ``steps`` shortens every trainer's schedule."""

    speech_shards: int = 100
    own_shards: int = 4
    question_shards: int = 140
    test_shards: int = 4
    reading_shards: int = 16
    natural_shards: int = 0
    copies: int = 1
    speeches: int = corpus.UTTERANCES_PER_SHARD
    own_speeches: int = own_speech.UTTERANCES_PER_SHARD
    utterances: int = questions.UTTERANCES_PER_SHARD
    readings: int = readings.SHORT_PER_SHARD
    natural: int = natural.UTTERANCES_PER_SHARD
    answers: int | None = None
    steps: int | None = None


SMALL: Final = Scale(
    *(1, 1, 1, 1, 1, 1, 2),
    speeches=4,
    own_speeches=4,
    utterances=12,
    readings=5,
    natural=6,
    answers=9,
    steps=2,
)
"""A test of the whole pipeline, whose models have no skills."""
NATURAL: Final = Scale(question_shards=40, test_shards=2, natural_shards=120, copies=3, reading_shards=70)
"""With natural voices: about nine hours of synthetic questions, eleven of natural ones, and 26 of texts."""
NATURAL_READER: Final = ("--steps", "13000", "--rate", "1e-3", "--batches", "12", "4")
"""In natural voices the sound of a word depends on its neighbours: more steps, of fewer readings each."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings of the recipe. Training continues the models in the folder ``start``, if given, such as
    out/built-in; their codec is unchanged.

    With ``material``, a folder of lab.train.material, recogniser and synthesiser are trained further from
    ``start``, the first also, the second only on natural voices; the talker is unchanged. Without it the
    synthesiser learns two voices of flite.
    """

    out: Path
    minutes: Minutes = field(default_factory=Minutes)
    scale: Scale = field(default_factory=Scale)
    start: Path | None = None
    further: tuple[str, ...] = ()
    threads: int = 2
    material: Path | None = None

    def stages(self) -> list[Stage]:
        """Return the stages in order: a title, a stage's main function and its arguments."""
        return [
            *([] if self.start else self._codec_stages()),
            *self._question_stages(),
            *(self._natural_stages(self.material) if self.material else self._talker_stages()),
            *self._listener_stages(),
            *self._reader_stages(),
        ]

    def _at(self, name: str) -> str:
        return str(self.out / name)

    @property
    def _codec(self) -> str:
        return str(self.start / "tiny") if self.start else self._at("decoder")

    def _trained(self, name: str, minutes: float, begun: str | None) -> list[str]:
        """A trainer's folder, its minutes, and its initial model."""
        steps = [] if self.scale.steps is None else ["--steps", str(self.scale.steps)]
        begin = [] if begun is None else ["--start", begun]
        return ["--out", self._at(name), "--minutes", str(minutes), *self._threads, *steps, *begin]

    @property
    def _shared_codec(self) -> str:
        """The folder whose codec recogniser and synthesiser name."""
        return str(self.start / "tiny") if self.material and self.start else self._at("tiny")

    @property
    def _threads(self) -> list[str]:
        return ["--threads", str(self.threads)]

    def _begun(self, model: str, otherwise: str | None = None) -> str | None:
        return str(self.start / model) if self.start else otherwise

    def _codec_stages(self) -> list[Stage]:
        """The codec, and the decoder, which is trained further on the models' output."""
        scale, speech, own = self.scale, self._at("codec-speech"), self._at("own-speech")
        many = ["--utterances", str(scale.speeches), *self._threads]
        said = ["--utterances", str(scale.own_speeches), *self._threads, *self._answers]
        test = ["--held-out", "--shards", "1", *many, "--out", self._at("codec-test")]
        return [
            (
                "speech for the codec",
                corpus.main,
                ["--shards", str(scale.speech_shards), *many, "--out", speech],
            ),
            ("held-out speech", corpus.main, test),
            (
                "the codec",
                codec.main,
                ["--speech", speech, *self._trained("codec", self.minutes.codec, None)],
            ),
            (
                "what the models say",
                own_speech.main,
                ["--shards", str(scale.own_shards), *said, "--out", own],
            ),
            (
                "the codec's decoder",
                codec.main,
                [
                    *("--speech", speech, "--own", own, "--rate", "3e-4", "--steps", "3000"),
                    *self._trained("decoder", self.minutes.decoder, self._at("codec")),
                ],
            ),
        ]

    @property
    def _answers(self) -> list[str]:
        return [] if self.scale.answers is None else ["--answers", str(self.scale.answers)]

    def _question_stages(self) -> list[Stage]:
        """The questions, and their codes, for talker and recogniser (except for pauses to think)."""
        scale, asked, heard = self.scale, self._at("questions"), self._at("segments")
        many = ["--utterances", str(scale.utterances), *self._threads]
        more_voices = [f"--{name}" for name in self.further]
        codes = ["--codec", self._codec, "--out"]
        copies = ["--copies", str(scale.copies)]
        return [
            (
                "questions",
                questions.main,
                ["--shards", str(scale.question_shards), *many, *more_voices, "--out", asked],
            ),
            (
                "held-out questions",
                questions.main,
                ["--held-out", "--shards", str(scale.test_shards), *many, "--out", f"{asked}-test"],
            ),
            ("codes", segments.main, ["--questions", asked, *copies, *codes, heard]),
            (
                "held-out codes",
                segments.main,
                ["--held-out", "--questions", f"{asked}-test", *codes, f"{heard}-test"],
            ),
        ]

    def _natural_stages(self, material: Path) -> list[Stage]:
        """Natural speech in whole stretches and as codes with word times, and its held-out part as these."""
        scale, said, out = self.scale, self._at("natural"), self._at
        speak = ["--material", str(material), "--utterances", str(scale.natural)]
        held_out = ["--held-out", "--shards", "1", *speak, "--out", f"{said}-test"]
        codes = ["--codec", self._codec, "--out"]
        return [
            (
                "natural speech",
                natural.main,
                ["--shards", str(scale.natural_shards), *speak, *self._threads, "--out", said],
            ),
            (
                "stretches",
                stretches.main,
                ["--questions", said, "--copies", str(scale.copies), *codes, out("stretches")],
            ),
            (
                "codes of natural speech",
                segments.main,
                ["--questions", said, *codes, out("natural-segments")],
            ),
            (
                "word times of natural speech",
                word_times.main,
                ["--questions", said, "--out", out("natural-times")],
            ),
            ("held-out natural speech", natural.main, held_out),
            (
                "codes of held-out natural speech",
                segments.main,
                ["--held-out", "--questions", f"{said}-test", *codes, out("natural-segments-test")],
            ),
            (
                "word times of held-out natural speech",
                word_times.main,
                ["--questions", f"{said}-test", "--out", out("natural-times-test")],
            ),
        ]

    def _talker_stages(self) -> list[Stage]:
        heard = self._at("segments")
        return [
            (
                "the talker",
                talker.main,
                [
                    *("--segments", heard, "--test", f"{heard}-test/0000.npz", "--codec", self._codec),
                    *self._trained("talker", self.minutes.talker, self._begun("tiny")),
                ],
            ),
            (
                "the talker's folder",
                ship.main,
                ["--talker", self._at("talker"), "--codec", self._codec, "--out", self._at("tiny")],
            ),
        ]

    def _listener_stages(self) -> list[Stage]:
        """The recogniser, which starts with the talker's input layers and uses its training data."""
        asked, heard, times = self._at("questions"), self._at("segments"), self._at("word-times")
        codes, starts, copies = [heard], [times], ["--copies", str(self.scale.copies)]
        tests, test_times = [f"{heard}-test/0000.npz"], [f"{times}-test/0000.npz"]
        whole = list[str]()
        if self.material:
            codes.append(self._at("natural-segments"))
            starts.append(self._at("natural-times"))
            tests.append(self._at("natural-segments-test/0000.npz"))
            test_times.append(self._at("natural-times-test/0000.npz"))
            whole = ["--remember", "--stretches", self._at("stretches")]
        return [
            ("word times", word_times.main, ["--questions", asked, *copies, "--out", times]),
            (
                "held-out word times",
                word_times.main,
                ["--questions", f"{asked}-test", "--out", f"{times}-test"],
            ),
            (
                "the recogniser",
                asr_trainer.main,
                [
                    *("--segments", *codes, "--times", *starts, *whole, "--codec", self._codec),
                    *("--test", *tests, "--test-times", *test_times),
                    *self._trained(
                        "listener", self.minutes.listener, self._begun("tiny-stt", self._at("talker"))
                    ),
                    *(["--rate", "4e-4"] if self.start else []),
                ],
            ),
            (
                "the recogniser's folder",
                ship.main,
                [
                    "--listener",
                    self._at("listener"),
                    "--shared-codec",
                    self._shared_codec,
                    "--out",
                    self._at("tiny-stt"),
                ],
            ),
        ]

    def _reader_stages(self) -> list[Stage]:
        scale, read = self.scale, self._at("readings")
        many = ["--readings", str(scale.readings), *self._threads, *self._answers]
        many += ["--natural", str(self.material)] if self.material else []
        return [
            (
                "readings",
                readings.main,
                ["--shards", str(scale.reading_shards), *many, "--codec", self._codec, "--out", read],
            ),
            (
                "the synthesiser",
                tts_trainer.main,
                [
                    *("--readings", read, "--codec", self._codec),
                    *(NATURAL_READER if self.material else ()),
                    *self._trained("reader", self.minutes.reader, self._begun("tiny-tts")),
                ],
            ),
            (
                "the synthesiser's folder",
                ship.main,
                [
                    "--reader",
                    self._at("reader"),
                    "--shared-codec",
                    self._shared_codec,
                    "--out",
                    self._at("tiny-tts"),
                ],
            ),
        ]
