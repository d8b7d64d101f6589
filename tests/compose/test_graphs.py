"""The service ``graphs`` with the commands of its runbook, and speech to text on its output."""

from __future__ import annotations

import json
import re
import shlex

import msgpack
import numpy as np

from antiphon.audio.wav import encode_wav
from antiphon_quantize.main import parse
from tests.compose.conftest import Start
from tests.support.stack.composefile import ROOT, services


def test_the_runbook_makes_graphs_of_what_compose_serves() -> None:
    """And puts into .env where they are."""
    text = (ROOT / "deploy" / "README.md").read_text()
    made = [words[-1] for words in runbook_commands()]
    served = [services()[name].argv for name in ("stt", "tts")]
    for words, argv in zip(runbook_commands()[:2], served, strict=True):
        assert words[0] in argv
    values = {"STT_MODEL": made[0], "TTS_MODEL": made[1]}
    agent = {"AGENT_STT_MODEL": made[0], "AGENT_TTS_MODEL": made[2]}
    line = " ".join(f"{name}={folder}" for name, folder in (values | agent).items())
    assert f"\nprintf '%s\\n' {line} >> .env\n" in text.replace(" \\\n ", "")
    assert {f"--model={made[0]}", f"--model={made[2]}"} <= set(services(agent)["agent"].argv)
    for name, folder in zip(("stt", "tts"), made[:2], strict=True):
        assert f"--model={folder}" in services(values)[name].argv
        assert services(values)["balancer"].environment[f"{name.upper()}_MODEL"] == folder


def runbook_commands() -> list[list[str]]:
    """What follows the name of the service in the commands of deploy/README.md."""
    text = (ROOT / "deploy" / "README.md").read_text()
    found = re.findall(r"^docker compose run --rm graphs (.*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_the_command_of_the_runbook_asks_for_graphs() -> None:
    """What the command makes of a model is the matter of tests/quantize and tests/backends/onnx."""
    entrypoint = services()["graphs"].raw["entrypoint"]
    assert entrypoint[:2] == ["antiphon", "quantize"]
    for words in runbook_commands():
        options = parse([*entrypoint[2:], *words])
        assert (options.target, str(options.out)) == ("onnx", words[-1])
        assert options.model.startswith(("hf://kyutai/", "pocket://"))


async def test_speech_to_text_by_its_path_on_its_graphs_and_told_in_its_own_words_when_full(
    start: Start,
) -> None:
    """The built-in recogniser, which is graphs: the null backend does not transcribe."""
    values = {"STT_MODEL": "tiny-stt", "STT_SLOTS": "2"}
    async with start(values=values, stt=1) as stack:
        _, info, _ = await stack.get(f"{stack.url}/m/stt/api/build_info")
        assert json.loads(info)["backend"]["name"] == "onnx"
        wav = encode_wav(np.zeros(24000, np.float32), 24000)
        for path in ("/api/asr-streaming", "/m/stt/api/asr-streaming"):
            async with stack.http.post(stack.url + path, data=wav) as response:
                assert response.status == 200, await response.text()
                assert {item["type"] for item in await response.json()} <= {"Word", "EndWord"}
        url = f"{stack.url}/api/asr-streaming".replace("http", "ws")
        async with stack.http.ws_connect(url) as first, stack.http.ws_connect(url) as second:
            for socket in (first, second):
                assert msgpack.unpackb((await socket.receive()).data)["type"] == "Ready"
            await stack.sees("stt", {"127.0.1.1": 0})
            async with stack.http.ws_connect(url) as third:
                told = msgpack.unpackb((await third.receive()).data)
                assert (told["type"], told["message"]) == ("Error", "no free channels")
