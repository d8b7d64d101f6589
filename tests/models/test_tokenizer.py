"""Text tokens to text."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError
from antiphon.models.tokenizer import TextTokenizer
from tests.support.make_checkpoint import TEXT, train_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_tokenizer(200))
    return path


@pytest.mark.parametrize("sentence", TEXT.read_text().splitlines()[:8])
def test_pieces_put_together_are_the_text(model: Path, sentence: str) -> None:
    tokenizer = TextTokenizer(model)
    pieces = [tokenizer.piece(token) for token in tokenizer.encode(sentence)]
    assert "".join(pieces) == f" {sentence}"


def test_padding_says_nothing(model: Path) -> None:
    assert [TextTokenizer(model, padding_id=7).piece(token) for token in (0, 3, 7)] == ["", "", ""]
    assert TextTokenizer(model).piece(7) != ""


@pytest.mark.parametrize("token", [-2, -1, 200, 32000])
def test_ids_outside_the_vocabulary_say_nothing(model: Path, token: int) -> None:
    tokenizer = TextTokenizer(model)
    assert tokenizer.vocabulary == 200
    assert tokenizer.piece(token) == ""


def test_special_pieces_are_spelled_out(model: Path) -> None:
    assert [TextTokenizer(model).piece(token) for token in (1, 2)] == ["<s>", "</s>"]


def test_missing_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no text tokenizer at"):
        TextTokenizer(tmp_path / "absent.model")


def test_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\xff\xfe not a model")
    with pytest.raises(CheckpointFormatError, match="is not a SentencePiece model"):
        TextTokenizer(path)


@pytest.mark.parametrize("sentence", TEXT.read_text().splitlines()[:3])
def test_tokens_together_are_the_text_without_the_first_space(model: Path, sentence: str) -> None:
    tokenizer = TextTokenizer(model)
    assert tokenizer.decode([200, *tokenizer.encode(sentence), -1, 32000]) == sentence
