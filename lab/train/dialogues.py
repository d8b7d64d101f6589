"""Composes random dialogues, any number of them, from encoded questions and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lab.train.chains import Chains
from lab.train.domain import REFUSAL
from lab.train.segments import PACED, PACES, CodeArray, Scene, Segment
from lab.train.talker_tokenizer import EPAD, PAD
from lab.train.voicebox import TAIL_FRAMES, Voicebox, words_at

REACTION_FRAMES = 3
"""Frames from the end of a question to the first word of its answer."""
REFUSAL_FRAMES = 16
"""The same for speech that was not understood: a speaker who continues after a breath is not interrupted."""
DRAWN_AGAIN = 0.3
"""Share of turns to refuse that are redrawn for a dialogue: of 35 % 28 % remain."""
GOES_ON = 0.3
"""Share of speech that is not understood that is followed by more after a breath, and has no separate
reply."""
BREATH_FRAMES = 10
"""Longest breath in frames: the next words begin before the refusal."""
STOP_FRAMES = 3
"""Frames from the start of an interruption to silence."""
SUMS_FRAMES = 75
CHAINS_SHARE = 0.5
"""Share of recitals that are sums of several numbers."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question in a dialogue: its first and last frame, its words, and its right answer."""

    start: int
    end: int
    question: str
    answer: str


@dataclass(slots=True)
class Dialogue:
    """Codes int16 ``[8, T]`` of both sides, text tokens int16 ``[T]``, and the questions.

    ``is_text_trained`` bool ``[T]``: where the text follows from earlier input and output.
    """

    talker: CodeArray
    user: CodeArray
    text: NDArray[np.int16]
    is_text_trained: NDArray[np.bool_]
    is_voice_trained: bool = True
    asked: list[Asked] = field(default_factory=list)


def reaction_frames(answer: str) -> int:
    """Return the number of frames from the end of a question to the first word of this answer."""
    return REFUSAL_FRAMES if answer == REFUSAL else REACTION_FRAMES


def spaced(tokens: Sequence[int], rng: np.random.Generator) -> NDArray[np.int16]:
    """Return text ``[frames]`` whose tokens are two to four frames apart, each but the first after a mark."""
    places = np.cumsum([0, *rng.integers(2, 5, len(tokens) - 1)])
    text = np.full(int(places[-1]) + 3, PAD, np.int16)
    text[places[1:] - 1] = EPAD
    text[places] = tokens
    return text


def heard_segment(scene: Scene, rng: np.random.Generator) -> Segment:
    """Draw one of the scene's segments, at its own pace or another pace."""
    return at_a_pace(scene.segments[rng.integers(len(scene.segments))], rng)


def asked_segment(scene: Scene, rng: np.random.Generator) -> Segment:
    """Draw a segment for a dialogue, in which fewer turns are to be refused than in a shard."""
    segment = scene.segments[rng.integers(len(scene.segments))]
    if segment.answer == REFUSAL and rng.random() < DRAWN_AGAIN:
        segment = scene.segments[rng.integers(len(scene.segments))]
    return at_a_pace(segment, rng)


def at_a_pace(segment: Segment, rng: np.random.Generator) -> Segment:
    """Return a segment at its own pace or another pace."""
    return segment.paced(float(rng.uniform(*PACES))) if rng.random() < PACED else segment


class Composer:
    """A source of random dialogues of ``frames`` frames, composed from scenes. ``recited`` are pairs of a
    sentence and the position of the first word of its known end.

    A recited sentence has its known end from that word on: in "a cow says moo" from the fourth.
    """

    def __init__(
        self,
        scenes: list[Scene],
        quiet: list[CodeArray],
        voicebox: Voicebox,
        frames: int,
        recited: Sequence[tuple[str, int]] = (),
        chains: Chains | None = None,
    ) -> None:
        self.chains = chains
        self.quiet, self.voicebox, self.frames = quiet, voicebox, frames
        self.recited = [one for one in recited if one[0] in voicebox.codes]
        self.heard = scenes
        answered = ((scene.strip, tuple(one for one in scene.segments if one.answer)) for scene in scenes)
        self.scenes = [Scene(strip, segments) for strip, segments in answered if segments]

    def _silent(self, strip: CodeArray, rng: np.random.Generator) -> Dialogue:
        """A dialogue without speech: ``strip`` is the talker's input."""
        shift = int(rng.integers(strip.shape[1]))
        return Dialogue(
            np.repeat(self.voicebox.silence[:, None], self.frames, axis=1),
            np.take(strip, np.arange(shift, shift + self.frames), axis=1, mode="wrap"),
            np.full(self.frames, PAD, np.int16),
            np.ones(self.frames, np.bool_),
        )

    def draw_drill(self, rng: np.random.Generator) -> Dialogue:
        """Draw questions and words in random order as input only, and unrelated answers as output.

        Only the parts of the answers that follow from their own words are trained, with a voice that says
        something else, so that a sum is learned as such: neither from a question's sound nor from the
        talker's own.
        """
        scene = self.heard[rng.integers(len(self.heard))]
        dialogue = self._silent(scene.strip, rng)
        dialogue.is_text_trained[:], dialogue.is_voice_trained = False, False
        self._listen(rng, dialogue, scene)
        if self.recited:
            self._recite(rng, dialogue)
        return dialogue

    def draw_sums(self, rng: np.random.Generator) -> Dialogue:
        """Draw a short recital of sums, ``[SUMS_FRAMES]``, silent or spoken, over silence or over speech."""
        silence = np.repeat(self.voicebox.silence[:, None], SUMS_FRAMES, axis=1)
        text, is_trained = np.full(SUMS_FRAMES, PAD, np.int16), np.zeros(SUMS_FRAMES, np.bool_)
        user = silence if rng.random() < 0.5 else self._overheard(rng)
        dialogue = Dialogue(silence.copy(), user, text, is_trained, is_voice_trained=False)
        is_spoken, at = rng.random() < 0.5, int(rng.integers(1, 6))
        while self.chains is not None:
            tokens = self.voicebox.tokenizer.encode(self.chains.draw(rng))
            codes, said = None, spaced(tokens, rng)
            if is_spoken and self.voicebox.has_said(tokens[:-1]):
                codes, said = self.voicebox.put_together(tokens, rng)
            stop = at + said.size
            if stop > SUMS_FRAMES:
                break
            if codes is not None:
                dialogue.talker[:, at:stop] = codes
            text[at - 1] = EPAD
            text[at:stop] = said
            is_trained[at + words_at(said)[-1]] = True
            at = stop + int(rng.integers(1, 4))
        return dialogue

    def _overheard(self, rng: np.random.Generator) -> CodeArray:
        """A question in some scene, ``[8, SUMS_FRAMES]``."""
        scene = self.heard[rng.integers(len(self.heard))]
        user = np.take(scene.strip, np.arange(SUMS_FRAMES), axis=1, mode="wrap")
        question = scene.segments[rng.integers(len(scene.segments))].codes[:, :SUMS_FRAMES]
        user[:, : question.shape[1]] = question
        return user

    def _listen(self, rng: np.random.Generator, dialogue: Dialogue, scene: Scene) -> None:
        at = int(rng.integers(1, 20))
        while True:
            segment = heard_segment(scene, rng)
            stop = at + max(segment.codes.shape[1], segment.end + REACTION_FRAMES + 1)
            if stop > self.frames:
                return
            dialogue.user[:, at : at + segment.codes.shape[1]] = segment.codes
            dialogue.asked.append(Asked(at + segment.start, at + segment.end, segment.question, ""))
            at = stop

    def _recite(self, rng: np.random.Generator, dialogue: Dialogue) -> None:
        is_loud, at = rng.random() < 0.5, int(rng.integers(1, 20))
        while True:
            text, known = self._recited(rng)
            if at + text.size > self.frames:
                return
            if is_loud:
                other, _ = self.recited[int(rng.integers(len(self.recited)))]
                sound = self.voicebox.codes[other][:, : self.frames - at]
                dialogue.talker[:, at : at + sound.shape[1]] = sound
            dialogue.text[at - 1] = EPAD
            dialogue.text[at : at + text.size] = text
            dialogue.is_text_trained[at + words_at(text)[known:]] = True
            at += text.size + int(rng.integers(1, 6))

    def _recited(self, rng: np.random.Generator) -> tuple[NDArray[np.int16], int]:
        """The text of a recital ``[frames]``, and its first known word."""
        if self.chains is not None and rng.random() < CHAINS_SHARE:
            tokens = self.voicebox.tokenizer.encode(self.chains.draw(rng))
            return spaced(tokens, rng), len(tokens) - 1
        sentence, known = self.recited[int(rng.integers(len(self.recited)))]
        return self.voicebox.text[sentence], known

    def draw(self, rng: np.random.Generator) -> Dialogue:
        """Draw a dialogue in one scene; one in ten is a scene without speech for the talker."""
        scene = self.scenes[rng.integers(len(self.scenes))]
        is_quiet = rng.random() < 0.1
        dialogue = self._silent(self.quiet[rng.integers(len(self.quiet))] if is_quiet else scene.strip, rng)
        if not is_quiet:
            self._converse(rng, dialogue, scene)
        return dialogue

    def _converse(self, rng: np.random.Generator, dialogue: Dialogue, scene: Scene) -> None:
        at, is_interrupting, is_owed_from = int(rng.integers(1, 30)), False, self.frames
        while True:
            segment = asked_segment(scene, rng)
            reply = at + segment.end + reaction_frames(segment.answer)
            said = self.chains.misbegun(segment.answer, rng) if self.chains is not None else segment.answer
            codes, text = self.voicebox.codes[said], self.voicebox.text[said]
            reply_end = reply + codes.shape[1]
            if reply_end > self.frames:
                dialogue.is_text_trained[is_owed_from:] = False
                return
            if is_interrupting:
                stop = at + segment.start + STOP_FRAMES
                dialogue.talker[:, stop:] = self.voicebox.silence[:, None]
                dialogue.text[stop:] = PAD
            dialogue.user[:, at : at + segment.codes.shape[1]] = segment.codes[:, : self.frames - at]
            if segment.answer == REFUSAL and rng.random() < GOES_ON:
                dialogue.asked.append(Asked(at + segment.start, at + segment.end, segment.question, ""))
                is_interrupting, is_owed_from = False, reply
                at += segment.end + 1 + int(rng.integers(BREATH_FRAMES))
                continue
            is_owed_from = self.frames
            dialogue.talker[:, reply:reply_end] = codes
            dialogue.text[reply - 1] = EPAD
            dialogue.text[reply:reply_end] = text
            if said != segment.answer:  # a start that was not requested
                dialogue.is_text_trained[reply] = False
            dialogue.asked.append(
                Asked(at + segment.start, at + segment.end, segment.question, segment.answer)
            )
            sound_end = reply_end - TAIL_FRAMES
            is_interrupting = bool(rng.random() < 0.15)
            if is_interrupting:
                at = int(rng.integers(reply + 2, sound_end)) - segment.start
                at = max(at, dialogue.asked[-1].end + 1)
            else:
                gap = rng.integers(25, 80) if rng.random() < 0.12 else rng.integers(0, 20)
                at = sound_end + int(gap)
