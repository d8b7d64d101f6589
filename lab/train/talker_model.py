"""The small talker in training: upstream's modules, the composition of a step, and its losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from moshi.models import loaders
from torch import Tensor, nn
from torch.nn import functional

from lab.train.dialogues import REACTION_FRAMES, Dialogue
from lab.train.loop import Schedule
from lab.train.quick_lm import Read, read
from lab.train.segments import CodeArray
from lab.train.sequences import ZERO, delay, misheard
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer

RATE, FURTHER_RATE = 1.2e-3, 2e-4
"""Peaks of the learning rate: from scratch, and from a trained talker."""
SOON_FRAMES = 9
"""A counted number follows the one before within this number of frames."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    batch: int = 7
    """Rows of a step, including drills."""
    drills: int = 2
    sums: int = 16
    """Number of additional short rows of sums, without any sound."""
    frames: int = 300
    peak_learning_rate: float = RATE
    warm_up_steps: int = 200
    total_steps: int = 14_500
    weight_decay: float = 0.05
    padding_weight: float = 0.5
    """Weight of a padding token in the text's loss."""
    mark_weight: float = 3.5
    """Weight of the mark before a word soon after another: with a smaller one, more answers stop before their
    result."""
    first_mark_weight: float = 2.0
    """Weight of the mark before an answer: with a larger one, unclear questions are answered more often.

    A bias of 1 on that mark, in weights trained with 1, took wrong refusals of 138 questions from 19 to 9 %
    and refusals of 62 other turns from 84 to 58 %.
    """
    stopping_weight: float = 2.0
    """Weight of a padding token between two words of an answer."""
    ending_weight: float = 2.75
    """Weight of a padding token soon after a word that no other follows as soon: an answer's last, or its
    pause.

    With 2 counts continued past their end, with 3.5 some ended too soon: seen in single answers, not
    compared.
    """
    word_weight: float = 6.0
    """Weight of a word's token: few frames have one, and they determine the answer."""
    text_weight: float = 2.0
    audio_weight: float = 0.5
    words_weight: float = 0.5
    sums_weight: float = 1.0
    words_layer: int = 3
    """The layer that is trained to spell the words of the input."""
    speaking_frames_share: float = 0.4
    quiet_frames_share: float = 0.03
    """Share of the talker's silent frames during its speech that train its voice."""
    voice_every_steps: int = 1
    """Its own codes cost a fifth of a step."""
    head_alone_steps: int = 0
    """Steps in which the spelling head learns without changing the model, which already has words."""
    misheard: float = 0.25
    """Largest share of a row's input codes replaced by similar-sounding ones."""
    averaged_steps: int = 400
    """The average of the weights over about this number of steps is judged and shipped."""
    rounded_steps: int = 1000
    """The last steps use the weights rounded as they are shipped. With 0 they are also judged unrounded."""
    judge_every_steps: int = 500
    seed: int = 3

    @property
    def schedule(self) -> Schedule:
        """The schedule of the learning rate."""
        return Schedule(
            self.peak_learning_rate,
            self.warm_up_steps,
            self.total_steps,
            weight_decay=self.weight_decay,
        )


def lm_config(text_card: int) -> dict[str, Any]:
    """Return the talker's ``config.json``, with upstream's names."""
    return {
        "dim": 320,
        "text_card": text_card,
        "existing_text_padding_id": PAD,
        "n_q": 16,
        "dep_q": 8,
        "card": 512,
        "num_heads": 8,
        "num_layers": 6,
        "hidden_scale": 4,
        "causal": True,
        "layer_scale": None,
        "context": 125,
        "max_period": 10000,
        "gating": "silu",
        "norm": "rms_norm_f32",
        "positional_embedding": "rope",
        "depformer_dim": 128,
        "depformer_dim_feedforward": 512,
        "depformer_num_heads": 4,
        "depformer_num_layers": 3,
        "depformer_layer_scale": None,
        "depformer_multi_linear": True,
        "depformer_context": 8,
        "depformer_max_period": 10000,
        "depformer_gating": "silu",
        "depformer_pos_emb": "none",
        "depformer_weights_per_step": True,
        "delays": [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1],
    }


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of dialogues: ``codes`` int64 ``[B, 17, T]``; ``is_speaking`` bool ``[B, T]`` where the talker
    makes a sound.

    ``is_text_trained`` bool ``[B, T]`` and ``is_voice_trained`` bool ``[B]`` select the content of the
    losses. ``spans`` are questions in the input: row, first input step, last one, word tokens.
    """

    codes: Tensor
    is_speaking: Tensor
    is_text_trained: Tensor
    is_voice_trained: Tensor
    spans: list[tuple[int, int, int, list[int]]]


def collate(dialogues: list[Dialogue], silence: CodeArray, tokenizer: TalkerTokenizer) -> Batch:
    """Stack dialogues into a batch. A question's span ends before the first step with a word of its answer as
    input.

    Speech outside the domain has no words, and no span.
    """
    codes = np.stack([np.concatenate([d.text[None], d.talker, d.user]) for d in dialogues]).astype(np.int64)
    loud = (codes[:, 1:9] != silence[None, :, None]).any(1) | (codes[:, 0] != PAD)
    loud[:, 1:] |= loud[:, :-1].copy()
    loud[:, :-1] |= loud[:, 1:].copy()
    spans = [
        (row, asked.start, asked.end + REACTION_FRAMES + 1, tokenizer.encode(asked.question))
        for row, dialogue in enumerate(dialogues)
        for asked in dialogue.asked
        if asked.question
    ]
    return Batch(
        torch.from_numpy(codes),
        torch.from_numpy(loud),
        torch.from_numpy(np.stack([one.is_text_trained for one in dialogues])),
        torch.tensor([one.is_voice_trained for one in dialogues]),
        spans,
    )


class Talker(nn.Module):
    """The talker in training: upstream's LM, and an unsaved head that predicts the words of its input."""

    def __init__(self, config: Mapping[str, Any], settings: Settings, near: Tensor | None = None) -> None:
        """``near`` ``[8, card, N]`` are the codes that may replace each."""
        super().__init__()
        self.settings, self.near = settings, near
        self.lm: Any = loaders.get_moshi_lm(None, lm_kwargs=dict(config), device="cpu", dtype=torch.float32)
        self.words_head = nn.Linear(self.lm.dim, self.lm.text_card)

    @property
    def device(self) -> torch.device:
        """The device of the model; batches are on the CPU."""
        return self.words_head.weight.device

    def read(self, batch: Batch, rng: np.random.Generator) -> tuple[Tensor, Read, Tensor]:
        """Return the loss of the text, the model's outputs, and all targets ``[B, 17, T]``."""
        lm, settings, codes = self.lm, self.settings, batch.codes
        initial = lm._get_initial_token().cpu().expand(codes.shape[0], -1, -1)
        delayed = torch.cat([initial, delay(lm.delays, codes, initial)], dim=2)
        inputs = delayed[:, :, :-1].clone()
        if self.near is not None:  # the stream before the input streams is unchanged
            inputs[:, lm.dep_q :] = misheard(inputs[:, lm.dep_q :], self.near, rng, settings.misheard)
        inputs = forgetful(inputs, rng, lm.dep_q)
        made = read(lm, inputs.to(self.device))
        targets = delayed[:, :, 1:]
        text = targets[:, 0]
        weight = (text_weights(text, settings) * batch.is_text_trained).to(self.device)
        text_loss = functional.cross_entropy(
            made.text_logits.float().transpose(1, 2), text.to(self.device), reduction="none"
        )
        return (text_loss * weight).sum() / weight.sum(), made, targets

    def losses(self, batch: Batch, rng: np.random.Generator, step: int = 0) -> dict[str, Tensor]:
        """Return the parts of the loss, unweighted, of the step that follows ``step`` other steps."""
        settings = self.settings
        text_loss, made, targets = self.read(batch, rng)
        heard = made.layers[settings.words_layer]
        if step < settings.head_alone_steps:
            heard = heard.detach()
        parts = {"text": text_loss, "words": self._words_loss(heard, batch)}
        if step % settings.voice_every_steps == 0:
            parts["audio"] = self._voice_loss(batch, made.last, targets, rng)
        return parts

    def _voice_loss(self, batch: Batch, hidden: Tensor, targets: Tensor, rng: np.random.Generator) -> Tensor:
        """Loss of the talker's own codes in some of the frames."""
        lm, settings = self.lm, self.settings
        share = torch.where(batch.is_speaking, settings.speaking_frames_share, settings.quiet_frames_share)
        share = share * batch.is_voice_trained[:, None]
        chosen = torch.from_numpy(rng.random(share.shape)) < share
        picked = targets.transpose(1, 2)[chosen][:, :, None].to(self.device)
        said = hidden[chosen.to(self.device)][:, None]
        audio_logits = lm.forward_depformer_training(picked, said)[:, :, 0].float()
        wanted = picked[:, 1 : 1 + lm.dep_q, 0]
        return functional.cross_entropy(
            audio_logits.flatten(0, 1), torch.where(wanted >= lm.card, -100, wanted).flatten()
        )

    def _words_loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """CTC (Graves et al. 2006) of each question's words, from its first frame to its answer's."""
        spans = batch.spans
        if not spans:
            return hidden.new_zeros(())
        longest = max(stop - start for _, start, stop, _ in spans)
        padded = torch.stack(
            [
                functional.pad(hidden[row, start:stop], (0, 0, 0, longest - stop + start))
                for row, start, stop, _ in spans
            ]
        )
        log_probabilities = self.words_head(padded.float()).float().log_softmax(-1).transpose(0, 1)
        lengths = torch.tensor([stop - start for _, start, stop, _ in spans])
        words = [torch.tensor(tokens) for *_, tokens in spans]
        return functional.ctc_loss(
            log_probabilities,
            torch.cat(words).to(self.device),
            lengths,
            torch.tensor([len(tokens) for tokens in words]),
            zero_infinity=True,
        )


def text_weights(text: Tensor, settings: Settings) -> Tensor:
    """Return the weight of each token of ``text [B, T]`` in the loss."""
    is_soon = soon_after_words(text)
    continues_elsewhere = soon_after_words(text.flip(1)).flip(1)
    stopping = torch.where(continues_elsewhere, settings.stopping_weight, settings.ending_weight)
    padding = torch.where(is_soon, stopping, settings.padding_weight)
    mark = torch.where(is_soon, settings.mark_weight, settings.first_mark_weight)
    weight = torch.where(text == PAD, padding, settings.word_weight)
    return torch.where(text == EPAD, mark, weight)


def soon_after_words(text: Tensor) -> Tensor:
    """Return where one of the last ``SOON_FRAMES`` frames has a word, bool like ``text [B, T]``."""
    is_word = ((text != PAD) & (text != EPAD)).float()
    reached = functional.max_pool1d(functional.pad(is_word[:, None], (SOON_FRAMES, 0)), SOON_FRAMES, 1)
    return reached[:, 0, : text.shape[1]] > 0


def forgetful(inputs: Tensor, rng: np.random.Generator, own: int) -> Tensor:
    """Return ``inputs [B, K, S]`` with some user codebooks, and a few of the talker's own codes, hidden."""
    inputs = inputs.clone()
    for row in range(inputs.shape[0]):
        if rng.random() < 0.2:
            inputs[row, 1 + own + int(rng.integers(4, 8)) :] = ZERO
    hidden = torch.from_numpy(rng.random((inputs.shape[0], inputs.shape[2])) < 0.06)
    inputs[:, 1 : 1 + own] = torch.where(hidden[:, None], ZERO, inputs[:, 1 : 1 + own])
    heard = torch.from_numpy(rng.random((inputs.shape[0], inputs.shape[2])) < 0.02)
    inputs[:, 1 + own :] = torch.where(heard[:, None], ZERO, inputs[:, 1 + own :])
    return inputs
