"""Readers of untrusted files: configuration, keys, manifests, weights, voices, states of rows."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.config import load_config, load_file
from antiphon.engine import call_state as row_state
from antiphon.errors import AntiphonError, CheckpointError, ConfigError, UnsupportedError
from antiphon.models.checkpoint import read_checkpoint
from antiphon.models.conditioning import SpeakerShape, read_speaker
from antiphon.models.manifest import manifest_from_json
from antiphon.models.onnx_file import read_opset
from antiphon.models.pocket import read_pocket
from antiphon.models.pocket_shape import PocketShape
from antiphon.models.published import MIMI_NAME, MOSHI_NAME, TOKENIZER_NAME
from antiphon.models.script import Script, ScriptRules
from antiphon.models.source import Folder
from antiphon.models.strict import read_json_object
from antiphon.models.tensor_file import read_tensors
from antiphon.models.weights import MLX_NAMES, count_parameters, read_header
from antiphon.serve.access.addresses import parse_networks
from antiphon.serve.access.keys import format_key, parse_keys
from lab.tools.fuzz.target import Target, require

IDENTITY = row_state.StateIdentity("a" * 8, "null", "float32", "none")
RULES = ScriptRules(entries=100, audio_delay=2, acoustic_delay=1)


def _folder() -> Path:
    """A folder in memory if there is one: an input is written as a file a thousand times a second."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = parent / f"antiphon-fuzz-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


def _as_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], None]:
    """A reader of files as a reader of bytes."""

    def read_bytes(data: bytes) -> None:
        path = _folder() / name
        path.write_bytes(data)
        read(path)

    return read_bytes


def read_config(path: Path) -> None:
    """Read a file of options, without and with options of the command line on top."""
    table = load_file(str(path))
    load_config(table, {"port": 1, "slots": 2, "max_queue": 3})
    load_config(table, {})


def read_keys(data: bytes) -> None:
    """Read a file of API keys, write it, and require the same keys when it is read again."""
    keys = parse_keys(data.decode("utf-8", "replace"), "keys")
    written = "\n".join(map(format_key, keys))
    require(parse_keys(written, "keys") == keys, f"{keys!r:.200} is not read back")


def read_networks(data: bytes) -> None:
    """Read the networks of an option, separated by commas."""
    parse_networks(data.decode("utf-8", "replace").split(","))


def read_manifest(path: Path) -> None:
    """Read a manifest, write it, and require the same manifest when it is read again."""
    manifest = manifest_from_json(read_json_object(path), "antiphon.json")
    again = json.loads(json.dumps(asdict(manifest)))
    require(manifest_from_json(again, "antiphon.json") == manifest, "a manifest is not read back")


def read_folder(data: bytes) -> None:
    """Read a model's folder: ``config.json``, weights' header and ``mimi_config.json``, with zero bytes
    between."""
    config, header, mimi, *_ = (*data.split(b"\0", 2), b"{}", b"{}")
    folder = _folder() / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(config)
    (folder / "mimi_config.json").write_bytes(mimi)
    weights = len(header).to_bytes(8, "little") + header
    for name in (MOSHI_NAME, MIMI_NAME, "mimi.safetensors", TOKENIZER_NAME, *MLX_NAMES):
        (folder / name).write_bytes(weights)
    spec = read_checkpoint(Folder(folder, folder), "model").spec
    require(spec.frame_samples > 0, f"a frame of {spec.frame_samples} samples")


def read_weights(path: Path) -> None:
    """Read the header of a safetensors file."""
    require(count_parameters(read_header(path)) >= 0, "a negative number of parameters")


def read_voice(path: Path) -> None:
    """Read a voice for each of the two kinds of models with voices."""
    try:
        SpeakerShape(frames=3, width=2).prompt(read_speaker(path))
    except AntiphonError:
        PocketShape(2, 2, 3, 10, clones=False, query_heads=2, capacity=10).read_voice(path)


def read_pickle(data: bytes) -> None:
    """Read a voice in ``torch.save``'s format with this ``data.pkl``; its storages exist and are correct."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("voice/data.pkl", data)
        for name in ("0", "1"):
            written.writestr(f"voice/data/{name}", np.arange(16, dtype=np.float32).tobytes())
    path = _folder() / "voice.pt"
    path.write_bytes(archive.getvalue())
    for array in read_tensors(path).values():
        require(array.nbytes <= 1 << 20, f"an array of {array.nbytes} bytes")


def read_state(data: bytes) -> None:
    """Read the state of a row, and the script in such a state."""
    try:
        Script.from_bytes(RULES, data)
    except UnsupportedError:
        row_state.unpack(data, IDENTITY)


def read_yaml(path: Path) -> None:
    """Read a configuration of Pocket-TTS; the weights that it may name exist."""
    header = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    path.with_name("w").write_bytes(len(header).to_bytes(8, "little") + header)
    read_pocket(path, "pocket", "pocket")


TARGETS = {
    "config": Target(_as_file("antiphon.toml", read_config), (ConfigError,), is_remote=False),
    "keys": Target(read_keys, (ConfigError,), is_remote=False),
    "networks": Target(read_networks, (ConfigError,), 128, is_remote=False),
    "manifest": Target(_as_file("antiphon.json", read_manifest), (CheckpointError,), 4096, is_remote=False),
    "folder": Target(read_folder, (CheckpointError,), 4096, is_remote=False),
    "weights": Target(_as_file("model.safetensors", read_weights), (CheckpointError,), is_remote=False),
    "voice": Target(_as_file("voice.safetensors", read_voice)),
    "tensors": Target(_as_file("voice.pt", read_tensors), (CheckpointError,), 2048),
    "pickle": Target(read_pickle, (CheckpointError,)),
    "onnx": Target(_as_file("model.onnx", read_opset), (CheckpointError,), is_remote=False),
    "pocket": Target(_as_file("model.yaml", read_yaml), (CheckpointError,), is_remote=False),
    "row_state": Target(read_state, (UnsupportedError,)),
}
