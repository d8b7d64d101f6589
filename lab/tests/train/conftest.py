"""The domain's tokenizer, and a voice of noise in the shipped codec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.tests.train.made_up import SENTENCES, TINY
from lab.tools.built_in import whole
from lab.train.answers import Answer
from lab.train.codec import load_mimi
from lab.train.domain import REFUSAL
from lab.train.talker_tokenizer import TalkerTokenizer
from lab.train.voicebox import Voicebox


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TalkerTokenizer:
    return TalkerTokenizer.made(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


@pytest.fixture(scope="session")
def voicebox(tokenizer: TalkerTokenizer) -> Voicebox:
    mimi = load_mimi(TINY)
    mimi.eval()
    rng = np.random.default_rng(0)
    answers = {}
    for sentence in (*SENTENCES, REFUSAL):
        words = tuple(sentence.split())
        pcm = (rng.standard_normal(int(0.3 * len(words) * 24_000)) * 0.1).astype(np.float32)
        answers[sentence] = Answer(words, tuple(0.3 * i for i in range(len(words))), pcm)
    return Voicebox.encoded(mimi, answers, tokenizer)


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in models, each in one folder with its published weights."""
    folder = tmp_path_factory.mktemp("built-in")
    whole(folder)
    return folder
