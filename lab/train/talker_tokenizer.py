"""The SentencePiece model of the domain: a piece for every word."""

from __future__ import annotations

import io
import string
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from lab.train.domain import NUMBERS, Domain

EPAD, PAD = 0, 3
"""Text tokens of the Moshi family: the last padding before a word, and padding."""


class TalkerTokenizer:
    """A tokenizer of words. ``EPAD`` has the id of the unknown token and ``PAD`` that of padding, as in
    Moshi."""

    def __init__(self, path: Path) -> None:
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(path))

    @classmethod
    def made(cls, path: Path, *, is_forgiving: bool = False) -> TalkerTokenizer:
        """Return the tokenizer at ``path``, which is made there if it is missing.

        A forgiving one maps capitals to small letters, figures to twenty and "+ - =" to their words, and
        ignores punctuation.
        """
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                rules: dict[str, Any] = {"normalization_rule_name": "identity"}
                if is_forgiving:
                    table = Path(folder) / "rules.tsv"
                    table.write_text(forgiving_rules())
                    rules = {"normalization_rule_tsv": str(table)}
                data = _trained(rules)
            part = path.with_suffix(".part")
            part.write_bytes(data)
            part.replace(path)
        return cls(path)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text of the domain."""
        return [int(token) for token in self.model.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids."""
        return str(self.model.decode(list(tokens)))

    @property
    def size(self) -> int:
        """The number of token ids."""
        return int(self.model.get_piece_size())


def _trained(rules: dict[str, Any]) -> bytes:
    words = Domain().words()
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words)] * 2 + words),
        model_writer=writer,
        model_type="word",
        vocab_size=len(words) + 4,
        unk_id=EPAD,
        bos_id=1,
        eos_id=2,
        pad_id=PAD,
        minloglevel=2,
        **rules,
    )
    return writer.getvalue()


def forgiving_rules() -> str:
    """Return SentencePiece's table of replacements: code points in hexadecimal, a line for each rule."""
    spoken = {str(number): word for number, word in enumerate(NUMBERS)} | {
        "+": "plus",
        "-": "minus",
        "\u2212": "minus",
        "=": "is",
    }
    rules = {letter: letter.lower() for letter in string.ascii_uppercase}
    rules |= {sign: f" {word} " for sign, word in spoken.items()}
    rules |= dict.fromkeys(".,;!?\"'\u2026\u201c\u201d", "")

    def points(text: str) -> str:
        return " ".join(f"{ord(letter):X}" for letter in text)

    return "".join(f"{points(source)}\t{points(target)}\n" for source, target in rules.items())
