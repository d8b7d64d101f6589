"""Upstream's recogniser: its words for a recording.

The loop is that of scripts/stt_from_file_pytorch.py (kyutai-labs/delayed-streams-modeling): silence, then the
audio, one frame at a time through upstream's Mimi and LMGen; words are read off its tokens by the rules of
rust/moshi-core/src/asr.rs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import sentencepiece
import torch
from moshi.models import loaders
from moshi.models.lm import LMGen
from moshi.utils.compile import no_compile

from antiphon.backends.base import FloatArray
from antiphon.protocol.kyutai import EndWord, Word
from tests.serve.asr_client import Scribe
from tests.serve.harness import FRAME_SAMPLES
from tests.support.make_checkpoint import NOT_LM
from tests.support.small_models import trial_signal

DELAY = 6


SECONDS = 4


def recording(seed: int = 0, seconds: int = SECONDS) -> FloatArray:
    torch.manual_seed(seed)
    array: FloatArray = trial_signal(24_000 * seconds).numpy()
    return np.concatenate([np.zeros(24_000, np.float32), array])


Told: TypeAlias = "list[tuple[str, float] | float]"
"""Words with their starts, and stops, in the order they are told."""


class Upstream:
    """What upstream writes: its tokens, the probabilities of a pause, words and their times."""

    def __init__(self, folder: Path, pcm: FloatArray, silence_after: int) -> None:
        """Hear a frame of silence, the audio, and so many frames of silence more."""
        config = json.loads((folder / "config.json").read_text())
        mimi_config = json.loads((folder / "mimi_config.json").read_text())
        mimi = loaders.get_mimi(folder / "mimi.safetensors", mimi_config, num_codebooks=config["n_q"])
        arguments = {
            key: value for key, value in config.items() if key not in NOT_LM and not key.endswith("_name")
        }
        lm = loaders.get_moshi_lm(
            folder / "model.safetensors", lm_kwargs=arguments, device="cpu", dtype=torch.float32
        )
        self._spm = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        tail = -len(pcm) % FRAME_SAMPLES + silence_after * FRAME_SAMPLES
        whole = torch.from_numpy(np.pad(pcm, (FRAME_SAMPLES, tail)))[None, None]
        gen = LMGen(lm, temp=0.0, temp_text=0.0, use_sampling=False)
        self.tokens: list[int] = []
        self.pauses: list[list[float]] = []
        with torch.no_grad(), no_compile(), mimi.streaming(1), gen.streaming(1):
            for frame in torch.split(whole, FRAME_SAMPLES, dim=2):
                written = gen.step_with_extra_heads(mimi.encode(frame))
                assert written is not None
                text, heads = written
                self.tokens.append(int(text[0, 0, 0]))
                self.pauses.append([float(head[0, 0, 0]) for head in heads])

    def told(self, steps: int | None = None) -> Told:
        """All that is certain after so many steps."""
        told: Told = []
        word: list[int] = []
        is_unended, last_stop_s = False, 0.0
        for step, token in enumerate(self.tokens[:steps], start=1):
            if step < DELAY:
                continue
            if token not in (0, 3):
                word.append(token)
            elif word:
                told.append((self._spm.decode(word), last_stop_s))
                word, is_unended = [], True
            if token == 0:
                stop_s = (step - DELAY) / 12.5
                told += [stop_s] if is_unended else []
                is_unended, last_stop_s = False, stop_s
        return told


def told_by(client: Scribe) -> Told:
    return [
        (message.text, message.start_time) if isinstance(message, Word) else message.stop_time
        for message in client.messages
        if isinstance(message, Word | EndWord)
    ]


def assert_same(told: Told, expected: Told) -> None:
    """The same texts, and times equal to a millisecond."""
    texts, times = zip(*(it if isinstance(it, tuple) else ("", it) for it in told), strict=True)
    other_texts, other_times = zip(
        *(it if isinstance(it, tuple) else ("", it) for it in expected), strict=True
    )
    assert texts == other_texts
    assert times == pytest.approx(other_times, abs=0.0006)
