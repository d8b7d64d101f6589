"""The SentencePiece model of the domain: a piece for every word."""

from __future__ import annotations

import io
from pathlib import Path

import sentencepiece

from train.domain import Domain

EPAD, PAD = 0, 3
"""Text tokens of the Moshi family: the last padding before a word, and padding."""


class TalkerTokenizer:
    """Words to token ids. ``EPAD`` takes the unknown's place and ``PAD`` the padding's, as in Moshi."""

    def __init__(self, path: Path) -> None:
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))

    @classmethod
    def made(cls, path: Path) -> TalkerTokenizer:
        """The tokenizer at ``path``, made there if it is missing."""
        if not path.exists():
            words = Domain().words()
            writer = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([" ".join(words)] * 2 + words),
                model_writer=writer,
                model_type="word",
                normalization_rule_name="identity",
                vocab_size=len(words) + 4,
                unk_id=EPAD,
                bos_id=1,
                eos_id=2,
                pad_id=PAD,
                minloglevel=2,
            )
            part = path.with_suffix(".part")
            part.write_bytes(writer.getvalue())
            part.replace(path)
        return cls(path)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text of the domain."""
        return [int(token) for token in self.model.encode(text)]

    @property
    def size(self) -> int:
        """How many ids there are."""
        return int(self.model.get_piece_size())
