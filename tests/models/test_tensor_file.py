from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError
from antiphon.models import tensor_file
from antiphon.models.tensor_file import read_pickle, read_tensors


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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "its pickle has the step EMPTY_LIST, which no dictionary of tensors needs"),
        ({"x": 3}, "does not hold a dictionary of tensors"),
        (torch.zeros(2), "does not hold a dictionary of tensors"),
        ({3: torch.zeros(2)}, "a name in it is a int, text is needed"),
        ({"x": torch.zeros(2, dtype=torch.uint8)}, "a ByteStorage; there are: FloatStorage, "),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(CheckpointFormatError, match=words):
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
    with pytest.raises(CheckpointFormatError, match=r"has [0-9]+ bytes, more than 1000"):
        read_tensors(tmp_path / "large.pt")


def test_a_stride_of_0_makes_no_tensor_larger_than_its_storage(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(1).expand(2**29)}, tmp_path / "wide.pt")
    assert (tmp_path / "wide.pt").stat().st_size < 2000
    with pytest.raises(CheckpointFormatError, match=r"a tensor \[536870912\] does not fit its storage of 1"):
        read_tensors(tmp_path / "wide.pt")


def test_many_views_of_one_storage_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "MAX_BYTES", 20_000)
    wide = torch.zeros(1000)
    torch.save({f"x{index}": wide for index in range(9)}, tmp_path / "views.pt")
    with pytest.raises(CheckpointFormatError, match="its tensors take 24000 bytes, more than 20000"):
        read_tensors(tmp_path / "views.pt")


def test_what_torch_does_not_write_is_refused_by_its_size(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(1000)}, tmp_path / "good.pt")
    repack(tmp_path / "good.pt", tmp_path / "small.pt", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointFormatError, match=r"torch\.save compresses nothing"):
        read_tensors(tmp_path / "small.pt")
    repack(tmp_path / "good.pt", tmp_path / "long.pt", pickled=b"\x80\x02" + b"}" * 70_000 + b".")
    with pytest.raises(CheckpointFormatError, match=r"its data\.pkl has 70003 bytes, the limit is 65536"):
        read_tensors(tmp_path / "long.pt")


@pytest.mark.parametrize(
    ("pickled", "words"),
    [
        # Python's unpickler makes room for 2^29 entries of its memory: 4 GB.
        (b"\x80\x02}r\xff\xff\xff\x1f.", None),
        # A name that takes 2^60 steps to hash: a pair of pairs of pairs.
        (b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns.", "a name in it is a tuple, text is needed"),
        (b"\x80\x04" + b")" + b"q\x00h\x00\x86" * 60 + b")\x93.", "has a name that is no text"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.", "is not a file of tensors"),
        (b"\x80\x02h\x07.", "asks for value 7, which it never kept"),
        (b"\x80\x02\x86.", "takes more values than it has"),
        (b"\x80\x02}", "is not a file of tensors"),
    ],
)
def test_a_pickle_that_declares_huge_sizes_is_read_at_once(
    tmp_path: Path, pickled: bytes, words: str | None
) -> None:
    torch.save({}, tmp_path / "good.pt")
    repack(tmp_path / "good.pt", tmp_path / "moon.pt", pickled=pickled)
    tracemalloc.start()
    try:
        if words is None:
            assert read_tensors(tmp_path / "moon.pt") == {}
        else:
            with pytest.raises(CheckpointFormatError, match=words):
                read_tensors(tmp_path / "moon.pt")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def repack(
    source: Path, target: Path, *, pickled: bytes | None = None, compression: int = zipfile.ZIP_STORED
) -> None:
    """The same archive with another pickle, or compressed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            is_pickle = pickled is not None and name.endswith("data.pkl")
            new.writestr(name, pickled if is_pickle and pickled is not None else old.read(name))


def test_a_name_that_no_tensor_needs_is_quoted_in_part() -> None:
    with pytest.raises(ValueError, match=r"^it names m\.x{78}, which no tensor needs$"):
        read_pickle(b"cm\n" + b"x" * 5000 + b"\n.")
