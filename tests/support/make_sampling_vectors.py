"""Write the test vectors of docs/sampling.md, computed one number at a time from its text.

  python tests/support/make_sampling_vectors.py tests/models/vectors/sampling.json

Nothing here is shared with the numpy reference, so the two check each other. Seeds are hex strings
(64 bits do not survive every JSON reader); a null logit is NaN; logits too many to list are
``(word >> 8) / 2**20 - 8`` of the noise words of the given seed, step and stream.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF
KNOWN_ANSWERS = [
    # from kat_vectors of the Random123 distribution, D. E. Shaw Research
    ("00000000 00000000 00000000 00000000", "00000000 00000000"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0"),
]

Logits = list[float | None] | dict[str, Any]
STEPS = [0, 1, 2, 3, 4, 5, 6, 7, 2**32 + 5, 2**40]
FEW: Logits = [0.5, -1.25, 3.0, 2.75, -0.0, 3.0, 0.0, 1.5]


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 of one counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def noise_word(seed: int, step: int, stream: int, token: int) -> int:
    """Section 2, rules 1 and 2."""
    return philox((step & MASK, step >> 32, stream, token // 4), (seed & MASK, seed >> 32))[token % 4]


def noise(word: int) -> np.float32:
    """Section 2, rule 3."""
    return np.float32(-math.log(-math.log((word + 0.5) / 2**32)))


def choose(logits: Sequence[np.float32], case: dict[str, Any], step: int) -> int:
    """Section 3."""
    z = [np.float32(-np.inf) if np.isnan(logit) else logit for logit in logits]
    penalty = np.float32(case.get("penalty", 1))
    for token in sorted(set(case.get("recent", []))):
        factor = np.float32(1) / penalty if z[token] > 0 else penalty
        z[token] = z[token] * factor
    temperature = np.float32(case["temperature"])
    inverse = np.float32(1) / temperature if temperature else np.float32(1)
    t = [value * inverse for value in z]
    if "pad_id" in case:
        t[case["pad_id"]] += np.float32(case["pad_mult"])
    ranked = sorted(range(len(t)), key=lambda token: (-t[token], token))
    if not temperature:
        return ranked[0]
    candidates = sorted(ranked[: case["topk"] or len(t)])
    seed, stream = int(case["seed"], 16), case["stream"]
    return max(
        candidates, key=lambda token: (t[token] + noise(noise_word(seed, step, stream, token)), -token)
    )


def logits_of(source: Logits) -> list[np.float32]:
    """The logits a case lists or describes."""
    if isinstance(source, list):
        return [np.float32(np.nan) if value is None else np.float32(value) for value in source]
    seed, step, stream = int(source["seed"], 16), source["step"], source["stream"]
    words = (noise_word(seed, step, stream, token) for token in range(source["count"]))
    return [np.float32((word >> 8) / 2**20 - 8) for word in words]


def _many(count: int) -> Logits:
    return {"seed": "0x7", "step": 3, "stream": 99, "count": count}


def _case(
    name: str, logits: Logits, temperature: float, topk: int, stream: int = 1, **more: Any
) -> dict[str, Any]:
    fixed = {"name": name, "logits": logits, "temperature": temperature, "topk": topk, "stream": stream}
    return {**fixed, "seed": "0x3e8", **more}


def _text(
    name: str, logits: Logits, temperature: float, pad_mult: float = 0.0, **more: Any
) -> dict[str, Any]:
    return _case(name, logits, temperature, 25, 0, pad_id=3, pad_mult=pad_mult, **more)


def cases() -> list[dict[str, Any]]:
    """Every case, without its tokens."""
    return [
        _case("greedy", FEW, 0, 25),
        _case("greedy ties go to the lowest id", [1, 2, 2, 2], 0, 0),
        _case("NaN never wins", [None, -3, None, -2.5], 0, 0),
        _case("nothing but NaN", [None, None, None], 0.8, 2),
        _case("few, all candidates", FEW, 1, 0),
        _case("few, top 1", FEW, 1, 1),
        _case("more top k than tokens", FEW, 2, 500),
        _case("ties at the edge of the top k", [1, 1, 1, 1, 1, 1], 1, 3),
        _case("zeros of both signs tie", [-0.0, 0.0, -0.0, 0.0], 1, 2),
        _case("with NaN", [None, 1, 0.5, None, 0], 1, 4),
        _case("audio", _many(2048), 0.8, 250),
        _case("audio, another codebook", _many(2048), 0.8, 250, 8),
        _case("audio, another seed", _many(2048), 0.8, 250, seed="0x3e9"),
        _case("audio, 64-bit seed", _many(2048), 0.8, 250, seed="0xfedcba9876543210"),
        _case("audio, hot", _many(512), 1.2, 0),
        _text("text", _many(4000), 0.7),
        _text("text, padding rare", FEW, 0.7, -4.0),
        _text("text, padding favoured", FEW, 0.7, 4.0),
        _text("text, penalty", FEW, 0.7, recent=[2, 5, 2, 1], penalty=1.3),
        _text("greedy, padding favoured", FEW, 0, 0.5),
        _text("greedy, penalty", FEW, 0, recent=[2, 5], penalty=2.0),
    ]


def make() -> dict[str, Any]:
    """The whole file's content."""
    filled = []
    for case in cases():
        logits = logits_of(case["logits"])
        tokens = [choose(logits, case, step) for step in STEPS]
        filled.append({**case, "steps": STEPS, "tokens": tokens})
    words = [0, 1, 2**31, 2**32 - 1, *philox((1, 2, 3, 4), (5, 6))]
    return {
        "philox": [
            {"counter": counter, "key": key, "output": " ".join(f"{word:08x}" for word in output)}
            for counter, key in KNOWN_ANSWERS
            for output in [philox([int(c, 16) for c in counter.split()], [int(k, 16) for k in key.split()])]
        ],
        "gumbel": [{"word": word, "noise": float(noise(word))} for word in words],
        "cases": filled,
    }


def to_text(content: dict[str, Any]) -> str:
    """JSON with one case to a line."""
    sections = []
    for name, entries in content.items():
        lines = ",\n    ".join(json.dumps(entry) for entry in entries)
        sections.append(f'  "{name}": [\n    {lines}\n  ]')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the JSON file to write")
    parser.parse_args(argv).file.write_text(to_text(make()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
