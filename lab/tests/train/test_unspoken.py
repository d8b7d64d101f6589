"""An independent recogniser understands `tiny-tts` on texts with more than its words."""

from __future__ import annotations

import io
import json
import urllib.request
from pathlib import Path

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.stream import decode_pieces
from lab.train.recital import share_understood
from lab.train.recogniser import answers_grammar, recognise
from tests.support.calm import SERVE
from tests.support.launch import free_port, running_server

HEARD = {
    "Snow \U0001f600 is white.": "snow is white",
    "a c\u00adow says\u200b \uff4d\uff4f\uff4f": "a cow says moo",
    "after mond\u00e1y \u201ccomes\u201d caf\u00e9 tuesday": "after monday comes tuesday",
    "<speak>ten plus 3 is 13</speak>": "ten plus three is thirteen",
    "\u0441\u043d\u0435\u0433 nine minus 4 \u2014 is five": "nine minus four is five",
}


TAKES = 4
"""Takes of each text with different seeds: in one take some words are misheard."""


def test_what_is_left_of_a_text_is_understood(tmp_path: Path) -> None:
    port = free_port()
    command = [*SERVE, "--model", "tiny-tts", "--port", str(port), "--slots", "2"]
    sounds: list[FloatArray] = []
    with running_server(command, port, tmp_path / "server.log") as server:
        for text in [*HEARD] * TAKES:
            body = json.dumps({"input": text, "voice": "will", "response_format": "wav"}).encode()
            request = urllib.request.Request(
                f"{server.url}/v1/audio/speech", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                pieces = list(decode_pieces(io.BytesIO(response.read()), 24_000))
            sounds.append(np.concatenate(pieces))
    assert share_understood([*HEARD.values()] * TAKES, recognise(sounds, answers_grammar())) > 0.6
