"""``antiphon verify``: a model's files, its parity with upstream, its gate and its card, in one run."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.backends.base import NO_TOKEN, Backend, FloatArray, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.config import MODEL_HELP, ModelConfig
from antiphon.errors import AntiphonError, ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec
from antiphon.option import Parser
from antiphon_quantize.bench.card import Card, Quality, TickPlan
from antiphon_quantize.bench.options import (
    QualitySource,
    add_backend_options,
    add_plan_options,
    add_quality_options,
    make_subjects,
    one_entry,
    plan_of,
    run_gate,
)
from antiphon_quantize.bench.output import can_draw, free_place, tell, verdict, write_card
from antiphon_quantize.bench.player import FarPlayer, no_progress
from antiphon_quantize.bench.run import run
from antiphon_quantize.bench.subject import Subject
from antiphon_quantize.gate_sound import built_in_clips

GREEDY = SamplingParameters(text_temperature=0.0, audio_temperature=0.0)
LEAST_SNR_DB = 40.0
"""Signal-to-noise ratio in dB above which sound counts as equal: rounding in float32 stays above it, another
token far below."""


@dataclass(frozen=True, slots=True)
class BackendOutput:
    """A backend's output: ``pcm [frames, frame_samples]`` and ``text [frames]`` of emitted frames."""

    pcm: FloatArray
    text: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """A comparison of two outputs for the same speech.

    ``first_difference``: the first frame whose text token differs.
    """

    frames: int
    first_difference: int | None
    snr_db: float

    @property
    def is_equal(self) -> bool:
        """Whether all text tokens agree, and the sound agrees except for rounding."""
        return self.first_difference is None and self.snr_db >= LEAST_SNR_DB

    def __str__(self) -> str:
        """The comparison as text, with its numbers."""
        if self.first_difference is not None:
            return f"text tokens differ from frame {self.first_difference} of {self.frames} on"
        level = "equal" if math.isinf(self.snr_db) and self.snr_db > 0 else f"{self.snr_db:.1f} dB alike"
        return f"{self.frames} frames, every text token equal, sound {level} (least {LEAST_SNR_DB:g} dB)"


def speak(make: Callable[[], Backend], pcm: FloatArray) -> BackendOutput:
    """The greedy output of a backend for ``pcm [frames, frame_samples]``; closes the backend."""
    backend = make()
    try:
        backend.warm_up(no_progress)
        backend.set_parameters(0, GREEDY)
        sound, text, row = [], [], np.zeros(1, np.int32)
        for index, frame in enumerate(pcm):
            out = backend.step(StepInputs(row, np.array([index == 0]), frame[None]))
            if not out.emitted[0]:
                continue
            if out.pcm is not None:
                sound.append(out.pcm[0].copy())
            text.append(NO_TOKEN if out.text_tokens is None else int(out.text_tokens[0]))
    finally:
        backend.close()
    return BackendOutput(np.stack(sound) if sound else np.zeros((0, pcm.shape[1]), np.float32), tuple(text))


def compare(upstream: BackendOutput, ours: BackendOutput) -> Parity:
    """Compare this project's output with the output of upstream's modules.

    Raises:
        ValueError: the numbers of frames differ.
    """
    pairs = enumerate(zip(upstream.text, ours.text, strict=True))
    differing = next((index for index, (theirs, own) in pairs if theirs != own), None)
    return Parity(len(upstream.text), differing, snr_db(upstream.pcm, ours.pcm))


def snr_db(clean: FloatArray, other: FloatArray) -> float:
    """Signal-to-noise ratio in dB of ``other`` to ``clean``, which have the same shape; inf if they are
    equal.
    """
    wide = clean.astype(np.float64)
    noise, signal = float(np.square(other - wide).sum()), float(np.square(wide).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


EXAMPLES = """\
examples:
  antiphon verify hf://kyutai/moshiko-pytorch-bf16 --device cuda --frames 100
  antiphon verify ./moshiko-int8 --baseline ./moshiko
  antiphon verify ./stt-1b --no-figure --out out/stt-1b

Without access to the hub, a model must be in the hub's cache: run hf download OWNER/NAME on another machine
and copy the cache ($HF_HOME).
"""

UPSTREAM = "reference"


class VerifyState(StrEnum):
    """Result of a part of the verification."""

    OK = "ok"
    FAILED = "FAILED"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """A part of the verification: its name, its result, and the numbers or the reason as text."""

    name: str
    state: VerifyState
    words: str

    def __str__(self) -> str:
        """The line that is printed."""
        return f"{self.name:<7} {self.state}: {self.words}"


def main(argv: Sequence[str]) -> int:
    """Verify a model; returns the exit code, 1 if a part of it failed.

    Raises:
        AntiphonError: an invalid option, or a model that cannot be reached or run.
    """
    options = _parse(argv)
    plan, out = plan_of(options), free_place(Path(options.out))
    if options.frames < 1:
        raise ConfigError(f"frames = {options.frames} is below 1, the minimum")
    has_figure = not options.no_figure and can_draw()
    (subject,) = make_subjects([one_entry(options)])
    checkpoint = load_checkpoint(options.model)
    baseline = baseline_of(subject, checkpoint, options.baseline)
    findings = [
        reported(check_files(checkpoint)),
        reported(check_parity(subject, checkpoint, options.frames)),
    ]
    judge = partial(run_gate, questions=options.questions, tell=tell)
    quality = QualitySource(baseline, [subject], [], judge).quality(subject.label)
    findings.append(reported(gate_finding(quality)))
    command = shlex.join(["antiphon", "verify", *argv])
    card = measure(subject, plan, quality, command)
    paths = write_card(card, out, has_figure=has_figure)
    findings.append(reported(VerifiedPart("card", VerifyState.OK, ", ".join(map(str, paths)))))
    return int(any(finding.state is VerifyState.FAILED for finding in findings))


def reported(finding: VerifiedPart) -> VerifiedPart:
    """Print a finding, and return it."""
    print(finding, flush=True)  # noqa: T201
    return finding


def check_files(checkpoint: Checkpoint) -> VerifiedPart:
    """Compare every file that has a digest in the manifest with the digest."""
    try:
        count = checkpoint.verify()
    except AntiphonError as error:
        return VerifiedPart("files", VerifyState.FAILED, str(error))
    if not count:
        return VerifiedPart(
            "files", VerifyState.NOT_CHECKED, f"{checkpoint.ref} has no manifest with digests"
        )
    return VerifiedPart("files", VerifyState.OK, f"{count} files have the digests of the manifest")


def check_parity(subject: Subject, checkpoint: Checkpoint, frames: int) -> VerifiedPart:
    """Compare a backend's greedy output for a recording with the output of upstream's own modules."""
    reason = no_parity(subject, checkpoint)
    if reason is not None:
        return VerifiedPart("parity", VerifyState.NOT_CHECKED, reason)
    pcm = speech(checkpoint.spec, frames + checkpoint.spec.delay_frames)
    exact = {"dtype": "float32"}
    own = {**(exact if subject.backend == "torch" else {}), **subject.options}
    ours = partial(make_backend, subject.backend, checkpoint, slots=1, device=subject.device, options=own)
    theirs = partial(make_backend, UPSTREAM, checkpoint, slots=1, device=subject.device, options=exact)
    try:
        parity = compare(speak(theirs, pcm), speak(ours, pcm))
    except AntiphonError as error:  # upstream is not installed, or cannot run this model
        return VerifiedPart("parity", VerifyState.NOT_CHECKED, str(error))
    state = VerifyState.OK if parity.is_equal else VerifyState.FAILED
    return VerifiedPart("parity", state, f"{subject.backend} against upstream's modules: {parity}")


def no_parity(subject: Subject, checkpoint: Checkpoint) -> str | None:
    """The reason why a model cannot be compared with upstream; None if it can."""
    if not checkpoint.spec.kind.is_live:
        return f"upstream's modules are run here for codec and duplex models, not for {checkpoint.spec.kind}"
    recipe = checkpoint.quantization_for(subject.backend)
    if recipe is not None:
        return f"upstream has no such weights ({recipe.scheme}); its gate compares it with another model"
    if subject.backend == UPSTREAM:
        return "it runs on upstream's modules already"
    return None


def speech(spec: ModelSpec, frames: int) -> FloatArray:
    """The probe's recording, repeated or cut to ``[frames, frame_samples]``."""
    samples = read_audio(built_in_clips()[0], spec.sample_rate)
    size = spec.frame_samples
    return np.resize(samples, frames * size).reshape(frames, size)


def baseline_of(subject: Subject, checkpoint: Checkpoint, asked: str | None) -> Subject | None:
    """The baseline of a model: the requested one, for graphs the model from which they were exported, or
    None.

    Raises:
        AntiphonError: the baseline is missing, or no installed backend runs it.
    """
    if asked is not None:
        (baseline,) = make_subjects([ModelConfig(model=asked, device=subject.device)])
        return baseline
    has_weights = ("lm" if checkpoint.spec.lm is not None else "mimi") in checkpoint.files
    if subject.backend == "onnx" and has_weights:
        return Subject(f"{subject.label} on torch", subject.model, "torch", subject.device)
    return None


def gate_finding(quality: Quality | None) -> VerifiedPart:
    """The gate's verdict as a finding."""
    if quality is None:
        return VerifiedPart(
            "gate", VerifyState.NOT_CHECKED, "there is no model to compare it with; give --baseline MODEL"
        )
    if quality.note:
        return VerifiedPart("gate", VerifyState.NOT_CHECKED, quality.note)
    state = VerifyState.FAILED if quality.is_passed is False else VerifyState.OK
    return VerifiedPart("gate", state, verdict(quality))


def measure(subject: Subject, plan: TickPlan, quality: Quality | None, command: str) -> Card:
    """Measure one model, and return its card."""
    return run(
        [(subject.label, partial(FarPlayer, subject, plan, no_progress))],
        plan,
        baseline=None,
        quality=lambda _: quality,
        command=command,
        now=datetime.now(UTC),
        tell=tell,
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="antiphon verify",
        description="Check a model: digests, parity with upstream, quality gate, card.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_backend_options(parser)
    parser.add_argument(
        "--frames", type=int, default=25, metavar="N", help="frames of speech for the check of parity [25]"
    )
    add_quality_options(parser, baseline="the model that the gate compares MODEL with")
    add_plan_options(parser, seconds=5.0, rows="1")
    parser.add_argument(
        "--out",
        default="out/verify",
        metavar="FILE",
        help="file name of the card, without a suffix [out/verify]",
    )
    parser.add_argument("--no-figure", action="store_true", help="write no PNG")
    return parser.parse_args(list(argv))
