"""Mutated voice files: each is loaded or refused with an error message."""

from __future__ import annotations

import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from antiphon.errors import AntiphonError
from antiphon.models.conditioning import SpeakerShape, read_speaker
from antiphon.models.pocket_shape import PocketShape
from antiphon.serve.media.duplex_voices import read_embedded
from tests.models.test_tensor_file import repack
from tests.serve.embedded_voice import save_embedded
from tests.support.null_models import LM

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

MUTATIONS = 1000
"""Of each kind; there are six."""

MAX_TAKEN_BYTES = 8_000_000
"""A few kilobytes are read."""

BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
VALUES: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**31,
    2**63,
    2**80,
    1.5,
    None,
    "",
    "F64",
    "BF16",
    "F8_E4M3",
    "I64",
    "U8",
    "BOOL",
    "C64",
    [],
    {},
)


def mutated(random_: random.Random, data: bytes) -> bytes:
    """Some bytes changed, the end cut off, or one part put in the place of another."""
    changed = bytearray(data)
    kind = random_.randrange(5)
    if kind < 3:
        for _ in range(random_.randint(1, 4)):
            changed[random_.randrange(len(data))] = random_.choice((*BYTES, random_.randrange(256)))
    elif kind == 3:
        del changed[random_.randrange(len(data)) :]
    else:
        start, source = random_.randrange(len(data)), random_.randrange(len(data))
        changed[start : start + random_.randint(1, 8)] = data[source : source + random_.randint(0, 16)]
    return bytes(changed)


def mutated_header(random_: random.Random, data: bytes) -> bytes:
    """A safetensors file, one value of whose header is another."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    entry = random_.choice(list(header.values()))
    key = random_.choice(list(entry))
    if isinstance(entry[key], list) and entry[key] and random_.random() < 0.7:
        entry[key][random_.randrange(len(entry[key]))] = random_.choice(VALUES)
    else:
        entry[key] = random_.choice(VALUES)
    if random_.random() < 0.3:
        header[random_.choice(("", "transformer.layers.99999999.self_attn/cache"))] = entry
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    return len(packed).to_bytes(8, "little") + packed + data[8 + size :]


def embedded(folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    save_embedded(folder / "voice.pt")
    return folder / "voice.pt", lambda path: read_embedded(path, LM)


def speaker(folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    save_file({"speaker_wavs": np.arange(6, dtype=np.float16).reshape(1, 2, 3)}, folder / "voice.safetensors")
    shape = SpeakerShape(frames=3, width=2)

    def read(path: Path) -> Any:
        return shape.prompt(read_speaker(path))

    return folder / "voice.safetensors", read


def pocket(folder: Path) -> tuple[Path, Callable[[Path], Any]]:
    parts: dict[str, Any] = {}
    for layer, end in ((0, "offset"), (1, "current_end")):
        stem = f"transformer.layers.{layer}.self_attn"
        parts[f"{stem}/cache"] = np.zeros((2, 1, 5, 2, 3), np.float32)
        parts[f"{stem}/{end}"] = np.array([4]) if end == "offset" else np.zeros(4)
    save_file(parts, folder / "voice.safetensors")
    return folder / "voice.safetensors", PocketShape(
        2, 2, 3, 10, clones=False, query_heads=2, capacity=10
    ).read_voice


def mutated_pickle(random_: random.Random, source: Path, target: Path) -> None:
    """The archive whole, its pickle changed: nothing that the zip's checksums notice."""
    with zipfile.ZipFile(source) as archive:
        pickled = archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
    repack(source, target, pickled=mutated(random_, pickled))


def write_bytes(random_: random.Random, source: Path, target: Path) -> None:
    target.write_bytes(mutated(random_, source.read_bytes()))


def write_header(random_: random.Random, source: Path, target: Path) -> None:
    target.write_bytes(mutated_header(random_, source.read_bytes()))


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (embedded, write_bytes),
        (embedded, mutated_pickle),
        (speaker, write_bytes),
        (speaker, write_header),
        (pocket, write_bytes),
        (pocket, write_header),
    ],
)
def test_any_change_of_a_voice_is_read_or_refused_in_words(
    tmp_path: Path, make: Any, change: Callable[[random.Random, Path, Path], None]
) -> None:
    good, read = make(tmp_path)
    read(good)
    random_ = random.Random(7)
    target = tmp_path / f"changed{good.suffix}"
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(MUTATIONS):
            change(random_, good, target)
            try:
                read(target)
            except AntiphonError:
                refused += 1
        taken_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused > MUTATIONS // 2
    assert taken_bytes < MAX_TAKEN_BYTES
