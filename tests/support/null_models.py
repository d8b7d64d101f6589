"""Models without files for the null backend: their descriptions and tokenizers. Imports no server."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind

MIMI = MimiSpec(sample_rate=24000, frame_rate=12.5, codebooks=8, cardinality=2048)
LM = LMSpec(
    dim=8,
    num_layers=1,
    num_heads=1,
    context=16,
    n_q=16,
    dep_q=8,
    card=2048,
    text_card=100,
    delays=(0, *[0, 1, 1, 1, 1, 1, 1, 1] * 2),
)
CODEC = ModelSpec("null-echo", PipelineKind.CODEC, "mimi", MIMI)
DUPLEX = ModelSpec("null-duplex", PipelineKind.DUPLEX, "moshi", MIMI, LM)
HIBIKI = ModelSpec("null-hibiki", PipelineKind.DUPLEX, "hibiki", MIMI, LM)


class SpelledTokens:
    """A tokenizer whose text names the token."""

    def piece(self, token_id: int) -> str:
        return "" if token_id in (0, 3) else f" t{token_id}"

    def decode(self, ids: Sequence[int]) -> str:
        return "-".join(map(str, ids))

    def encode(self, text: str) -> list[int]:
        """One token a word, its length."""
        return [len(word) for word in text.split()]


class Lengths:
    """A tokenizer of one token a letter, which is how long the word is; it knows ASCII alone."""

    letters = frozenset(string.printable)
    unsayable = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [len(text)] * len(text) if text.isascii() else [0]


class NullCheckpoint(Checkpoint):
    """A checkpoint without files."""

    def text_tokenizer(self) -> Any:
        if self.spec.kind is PipelineKind.TTS:
            return Lengths()
        return None if self.spec.lm is None else SpelledTokens()


def null_checkpoint(spec: ModelSpec) -> Checkpoint:
    return NullCheckpoint(spec, spec.name, Path("/nowhere"), {})
