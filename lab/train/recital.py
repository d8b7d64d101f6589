"""Measures a synthesiser on held-out answers, without a server: the words that a recogniser understands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import torch
from moshi.models.lm import LMGen

from antiphon.arrays import FloatArray
from antiphon.models.script import Script, ScriptRules
from antiphon.models.spec import ModelSpec
from lab.train.domain import Domain
from lab.train.held_out import is_answer_held_out
from lab.train.recogniser import answers_grammar, recognise, word_errors
from lab.train.scripts import entries_of
from lab.train.segments import FRAME_SAMPLES
from lab.train.sequences import ZERO
from lab.train.talker_tokenizer import TalkerTokenizer

TEMPERATURE: Final = 0.3
TOP_K: Final = 50
MAX_STEPS: Final = 150
SENTENCES: Final = 24


def held_out_answers(count: int) -> list[str]:
    """Return up to ``count`` random answers that a synthesiser's training excludes."""
    answers = [answer for answer in Domain().answers() if is_answer_held_out(answer)]
    return random.Random(0).sample(answers, min(count, len(answers)))


def share_understood(said: Sequence[str], heard: Sequence[str]) -> float:
    """Return the share of words that were understood; a sentence counts at worst as completely wrong."""
    words = sum(len(text.split()) for text in said)
    wrong = sum(
        min(len(text.split()), word_errors(text, other)) for text, other in zip(said, heard, strict=True)
    )
    return 1 - wrong / max(1, words)


def recite(
    lm: Any, mimi: Any, spec: ModelSpec, tokenizer: TalkerTokenizer, condition: Any, seed: int
) -> float:
    """Return the share of held-out answers' words that pocketsphinx understands."""
    said = held_out_answers(SENTENCES)
    was_training = lm.training
    lm.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sounds = speak(lm, mimi, said, spec, tokenizer, condition)
    lm.train(was_training)
    return share_understood(said, recognise(sounds, answers_grammar()))


def speak(
    lm: Any, mimi: Any, texts: Sequence[str], spec: ModelSpec, tokenizer: TalkerTokenizer, condition: Any
) -> list[FloatArray]:
    """Return the sound of each text, float32 ``[samples]``, by upstream's generator with the server's
    scripts."""
    rules = ScriptRules.of(spec)
    scripts = [Script(rules) for _ in texts]
    for script, text in zip(scripts, texts, strict=True):
        script.add(tuple(entries_of(text, spec, tokenizer)))
    last_heard = [0] * len(texts)

    def on_text(tokens: torch.Tensor) -> None:
        for row, token in enumerate(tokens.tolist()):
            choices = scripts[row].choices
            tokens[row] = choices.word if token == 0 else choices.pad
            if not scripts[row].is_finished:
                last_heard[row] = scripts[row].step
            scripts[row].advance(token)

    def on_audio(tokens: torch.Tensor) -> None:
        step = scripts[0].step - 1
        for book in range(tokens.shape[1]):
            if step < rules.audio_delay + lm.delays[1 + book]:
                tokens[:, book] = ZERO

    conditions = lm.condition_provider.prepare_and_provide([condition] * len(texts))
    generator = LMGen(
        lm,
        temp=TEMPERATURE,
        top_k=TOP_K,
        temp_text=0.0,
        condition_tensors=conditions,
        on_text_hook=on_text,
        on_audio_hook=on_audio,
        check=False,
    )
    nothing = torch.zeros(len(texts), 0, 1, dtype=torch.long)
    frames: list[torch.Tensor] = []
    with torch.no_grad(), generator.streaming(len(texts)):
        while len(frames) < MAX_STEPS and not all(script.is_finished for script in scripts):
            frame = generator.step(nothing)
            if frame is not None:
                frames.append(frame[:, 1:].clone())
        codes = torch.cat(frames[rules.audio_delay :], dim=2).clamp(min=0)
        pcm = mimi.decode(codes)[:, 0].numpy()
    sounds = [max(1, last - rules.first_sound + 1) * FRAME_SAMPLES for last in last_heard]
    return [pcm[row, :size] for row, size in enumerate(sounds)]
