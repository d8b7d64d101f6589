"""Plain words: odd phrases, each with its replacement.

The rules are in CONTRIBUTING.md. Code, quoted or fenced, is not read.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.docs.blocks import without_blocks

WORDS: Mapping[str, str] = {
    r"\bgo(?:es|ing)? on\b|\bwent on\b": "continue, resume",
    r"\bby turns\b": "alternating",
    r"\bheld to\b(?! (?:the|its) )": "compared with",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bstrangers?\b": "untrusted clients",
    r"\bin words\b": "with an error message",
    r"\bby itself\b|\bby themselves\b": "automatically, or: alone",
    r"\bwhoever\b|\bnobody\b|\bwho asks\b|\beverybody\b": "name the agent: client, server, operator",
    r"\bso many\b|\bso long\b(?! as)": "the number",
    r"\b(?:is|are|was|were) told\b|\btold\b": "sent, notified, reported",
    r"\b(?:server|worker|process)s? (?:hears?|speaks?|says?|leaves?)\b": "receives, sends, reports",
    r"\bbeside\b|\bbesides\b": "next to, compared with, under load",
    r"(?<=\w )alone(?=[,.;:)]| (?:and|or|is|are|has|have|in|on|of)\b)": "only",
    r"\bwhat (?:it|they) (?:is|are) worth\b": "the gain",
    r"\b(?:NVIDIA|known) cards?\b|\b(?:on|without|for) (?:a|the) cards?\b": "GPU, model card, report",
    r"\bWhat [^.?|\n]{0,60}(?:is|are) (?:said|told) by\b": "subject, verb, object",
    r"\banew\b|\brightly\b|\bunasked\b": "again or from scratch, correctly, unexpected",
    r"\bfor want of\b|\bto be had\b|\ball the same\b": "for lack of, available, anyway",
    r"\bheld against\b|\bturned away\b|\bby the book\b": "compared with, rejected, as specified",
    r"\bas it were\b|\bat large\b|\bwithout a word\b": "leave it out, in general, silently",
    r"\bof (?:its|their|our|your) own making\b|\bknows? nothing\b": "made by, has no information",
}
"""Patterns, and what to write instead."""

_FOUND = {re.compile(pattern, re.IGNORECASE): cure for pattern, cure in WORDS.items()}


def faults_of_text(name: str, text: str) -> Iterator[str]:
    """The phrases in a text, a sentence each."""
    for number, line in enumerate(text.split("\n"), start=1):
        for pattern, cure in _FOUND.items():
            for match in pattern.finditer(line):
                yield f"{name}:{number}: '{match.group()}': write plainly ({cure})"


_CODE_IN_STRING = re.compile(r"``[^`\n]*``|\{[^{}\n]*\}")
_JS_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
_JS_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`')


def blanked(text: str) -> str:
    """As many lines, and nothing on them."""
    return "\n" * text.count("\n")


def words_of_page(text: str) -> str:
    """The strings of a script, each on its line."""
    text, words, end = _JS_COMMENT.sub(lambda match: blanked(match[0]), text), "", 0
    for match in _JS_STRING.finditer(text):
        words += blanked(text[end : match.start()]) + match[0]
        end = match.end()
    return words


def words_of_module(text: str) -> str:
    """The strings and comments of a module, each on its line."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or "FSTRING" in tokenize.tok_name[token.type]:
            string = _CODE_IN_STRING.sub("", token.string)
            if " " not in string:
                continue  # a name, not words
            for offset, line in enumerate(string.split("\n")):
                lines[token.start[0] + offset - 1] += f" {line}"
    return "\n".join(lines)


def faults_of_plain_words(root: Path) -> Iterator[str]:
    """Of the pages that users read, of the web page, and of the modules."""
    web = root / "web" / "static"
    read: list[tuple[Path, Callable[[str], str]]] = [(page, without_blocks) for page in pages(root)]
    read += [(script, words_of_page) for script in sorted(web.glob("*.js"))]
    read += [(page, str) for page in sorted(web.glob("*.html"))]
    read += [(module, words_of_module) for module in modules(root)]
    for path, words in read:
        yield from faults_of_text(path.relative_to(root).as_posix(), words(path.read_text(encoding="utf-8")))


SPOKEN = ("lab/train/outside_texts.py", "lab/train/sentences.py")
"""Modules whose strings are texts for synthetic speech."""


def modules(root: Path) -> list[Path]:
    """The modules of the product and of the lab, without the lab's tests and texts to speak."""
    folders = (
        root / name for name in ("server", "clients", "quantize", "lab/bench", "lab/tools", "lab/train")
    )
    found = {module for folder in folders for module in folder.rglob("*.py")}
    return sorted(found - {root / name for name in SPOKEN})


OF_CHANGES = "CHANGELOG.md"
"""What is added to in every change."""


def pages(root: Path) -> list[Path]:
    """Pages of the top folder, the docs, the deployment, the examples and the lab, without the changelog."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "lab").rglob("*.md")]
    found += [root / "deploy/README.md", root / "examples/README.md"]
    return sorted(page for page in found if page.name != OF_CHANGES)
