from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError
from antiphon.models import tensor_file
from antiphon.models.tensor_file import read_tensors


def test_it_reads_what_torch_wrote(tmp_path: Path) -> None:
    wide = torch.randn(4, 6)
    tensors = {
        "float": torch.randn(2, 3),
        "bfloat16": torch.randn(5, 1, 2).bfloat16(),
        "half": torch.randn(3).half(),
        "double": torch.randn(2).double(),
        "long": torch.arange(-3, 9).view(3, 4),
        "int": torch.arange(3, dtype=torch.int32),
        "transposed": wide.t(),
        "part": wide[1:3, 2:],
        "scalar": torch.tensor(4.5),
        "empty": torch.zeros(0, 3),
    }
    torch.save(tensors, tmp_path / "voice.pt")
    found = read_tensors(tmp_path / "voice.pt")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        wanted = tensor.float() if tensor.is_floating_point() else tensor
        assert found[name].shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(found[name], wanted.numpy(), err_msg=name)
    assert {found[name].dtype for name in ("float", "bfloat16", "half", "double")} == {np.dtype("float32")}


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointFormatError, match=r"it names (builtins|__builtin__)\.print"):
        read_tensors(tmp_path / "evil.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [[1, 2], {"x": 3}, torch.zeros(2)])
def test_other_content_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(CheckpointFormatError, match="does not hold a dictionary of tensors"):
        read_tensors(tmp_path / "other.pt")


def test_no_file_and_no_archive(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no file at"):
        read_tensors(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointFormatError, match="is not a file of tensors"):
        read_tensors(tmp_path / "text.pt")
    with zipfile.ZipFile(tmp_path / "empty.pt", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(CheckpointFormatError, match=r"it has no data\.pkl"):
        read_tensors(tmp_path / "empty.pt")


def test_a_view_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(9)}, tmp_path / "good.pt")
    with (
        zipfile.ZipFile(tmp_path / "good.pt") as good,
        zipfile.ZipFile(tmp_path / "bad.pt", "w") as bad,
    ):
        for name in good.namelist():
            content = good.read(name)
            if name.endswith("data.pkl"):  # the count of the storage stays 9, the tensor's length becomes 10
                at = content.index(b"K\x00K\x09\x85")
                content = content[:at] + b"K\x00K\x0a\x85" + content[at + 5 :]
                assert content[:1] == pickle.PROTO
            bad.writestr(name, content)
    with pytest.raises(CheckpointFormatError, match=r"a tensor \[10\] does not fit its storage of 9"):
        read_tensors(tmp_path / "bad.pt")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "MAX_BYTES", 1000)
    torch.save({"x": torch.zeros(1000)}, tmp_path / "large.pt")
    with pytest.raises(CheckpointFormatError, match="bytes, more than 1000"):
        read_tensors(tmp_path / "large.pt")
