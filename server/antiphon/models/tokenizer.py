"""Converts text to token ids, and token ids to text, one piece at a time as it is sent to callers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import sentencepiece

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError, MissingExtraError

UNSPOKEN_IDS: Final = (0, 3)
"""Tokens that Moshi servers never send: end of padding, and padding."""

_UNSAYABLE: Final = re.compile(r"<unk>|\[UNK\]|<0x[0-9A-F]{2}>")


class Tokenizer(Protocol):
    """Converts text to token ids and back; ``vocabulary`` is the number of pieces, which consist of
    ``letters``.

    ``unsayable`` tokens stand for text without a piece: the unknown token, and single bytes.
    """

    vocabulary: int
    letters: frozenset[str]
    unsayable: frozenset[int]

    def piece(self, token_id: int) -> str:
        """The text of one token, with spaces; "" for tokens that are never sent."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of several tokens, without the space before the first."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""


def open_tokenizer(path: Path, *, padding_id: int = 3) -> Tokenizer:
    """The tokenizer in a file: a SentencePiece model, or Hugging Face's ``tokenizer.json``.

    Raises:
        CheckpointNotFoundError, CheckpointFormatError: the file does not exist, or has another format.
        MissingExtraError: the reader of ``tokenizer.json`` is not installed.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) == b"{":
                return JsonTokenizer(path)
    return TextTokenizer(path, padding_id=padding_id)


class TextTokenizer:
    """A SentencePiece model. ``vocabulary`` is its number of pieces."""

    def __init__(self, path: Path, *, padding_id: int = 3) -> None:
        """Read the model. Raises CheckpointNotFoundError (no file) and CheckpointFormatError (no model)."""
        if not path.is_file():
            raise CheckpointNotFoundError(f"no text tokenizer at {path}")
        self._unspoken = {*UNSPOKEN_IDS, padding_id}
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(path.read_bytes())
        except RuntimeError as error:
            raise CheckpointFormatError(f"{path} is not a SentencePiece model: {error}") from error
        self.vocabulary: int = self._processor.GetPieceSize()
        model, ids = self._processor, range(self.vocabulary)
        self.unsayable = frozenset(it for it in ids if model.IsUnknown(it) or model.IsByte(it))
        pieces = (model.IdToPiece(it) for it in ids if not model.IsControl(it) and it not in self.unsayable)
        self.letters = frozenset("".join(pieces)) - {"▁"}

    def piece(self, token_id: int) -> str:
        """The text of one token, with spaces; "" for padding and for ids outside the vocabulary.

        Special pieces ("<s>") and bytes ("<0x0A>") are written out, as upstream's servers do.
        """
        if token_id in self._unspoken or not 0 <= token_id < self.vocabulary:
            return ""
        piece: str = self._processor.IdToPiece(token_id)
        return piece.replace("▁", " ")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of several tokens, without the space before the first; ids without a piece are ignored."""
        text: str = self._processor.DecodeIds([token for token in ids if 0 <= token < self.vocabulary])
        return text

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        ids: list[int] = self._processor.EncodeAsIds(text)
        return ids


class JsonTokenizer:
    """A ``tokenizer.json``, as in Pocket-TTS. ``vocabulary`` is its number of pieces."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            CheckpointFormatError: the file is not a tokenizer. MissingExtraError: its reader is not
            installed.
        """
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError as error:
            what = f"the tokenizer {path.name}"
            raise MissingExtraError(what, extra="tts", module="tokenizers") from error
        try:
            self._reader = Reader.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the reader raises no more precise type
            raise CheckpointFormatError(f"{path} is not a tokenizer: {error}") from error
        self.vocabulary: int = self._reader.get_vocab_size()
        pieces = self._reader.get_vocab()
        self.unsayable = frozenset(token for piece, token in pieces.items() if _UNSAYABLE.fullmatch(piece))
        self.letters = frozenset("".join(it for it in pieces if not _UNSAYABLE.fullmatch(it))) - {"▁"}

    def piece(self, token_id: int) -> str:
        """The text of one token, with spaces; "" for ids outside the vocabulary."""
        return (self._reader.id_to_token(token_id) or "").replace("▁", " ")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of several tokens, without the space before the first."""
        return self._reader.decode(list(ids))

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return self._reader.encode(text).ids
