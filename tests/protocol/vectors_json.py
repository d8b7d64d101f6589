"""The vector files, and conversion of messages to and from their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from antiphon.protocol import moshi

Vector: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent / "vectors"

KINDS: dict[str, type[moshi.Message]] = {
    "handshake": moshi.Handshake,
    "audio": moshi.Audio,
    "text": moshi.Text,
    "control": moshi.Control,
    "metadata": moshi.Metadata,
    "error": moshi.Error,
    "ping": moshi.Ping,
    "coloured_text": moshi.ColouredText,
    "codes": moshi.Codes,
    "event": moshi.Event,
    "stamped_audio": moshi.StampedAudio,
    "unknown": moshi.Unknown,
}


def load(name: str) -> dict[str, list[Vector]]:
    vectors: dict[str, list[Vector]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return vectors


def message_of(value: Vector) -> moshi.Message:
    fields = {name: field for name, field in value.items() if name != "kind"}
    if "data" in fields:
        fields["data"] = bytes.fromhex(fields["data"])
    if "action" in fields:
        fields["action"] = moshi.ControlAction[fields["action"].upper()]
    if "codes" in fields:
        fields["codes"] = tuple(fields["codes"])
    return KINDS[value["kind"]](**fields)
