"""Press every question of the page, as visitors do, and check the built-in model's answers.

Usage: python -m lab.tools.press_questions [--rounds N]

A round presses each of the six questions in a separate call, then all of them in one call: four rounds are 48
presses. Exits with 0 if all answers were correct. ``late`` and ``lost`` count the frames of a call: on a busy
machine the model does not get the whole question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon.audio.wav import write_wav
from antiphon_client.clip import load_clip
from tests.support.ask import QUESTIONS
from tests.support.caller import SAMPLE_RATE
from tests.support.launch import ANTIPHON, free_port, running_server
from tests.support.node import browser_env, find_node

SCRIPT = Path(__file__).with_suffix(".js")


def main(argv: list[str]) -> int:
    """Start a server and a browser, press the questions, and print each answer."""
    parser = argparse.ArgumentParser(description="Press every question of the page.")
    parser.add_argument("--rounds", type=int, default=4, help="12 presses each [%(default)s]")
    options = parser.parse_args(argv)
    answers = {f"{words.lower()}?": answer for words, answer in QUESTIONS.values()}
    right = presses = 0
    with tempfile.TemporaryDirectory() as scratch:
        clip, port = Path(scratch) / "clip.wav", free_port()
        write_wav(clip, load_clip(None), SAMPLE_RATE)
        command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1"]
        with running_server(command, port, Path(scratch) / "server.log") as server:
            script = [find_node(), str(SCRIPT), server.url, str(options.rounds)]
            run = subprocess.run(script, env=browser_env(clip), stdout=subprocess.PIPE, text=True, check=True)
    for line in run.stdout.splitlines():
        press = json.loads(line)
        is_right = press["answer"] == answers[press["question"].lower()]
        presses, right = presses + 1, right + is_right
        mark = "right" if is_right else "WRONG"
        frames = f"{press['late']} late, {press['lost']} lost"
        print(f"{press['call']:<12} {press['question']:<26} {press['answer']:<32} {mark}  ({frames})")
    print(f"{right} of {presses} answers were right")
    return int(right < presses or not presses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
