"""How often a quantised language model's first choice is the float one's, both fed the same tokens.

    python -m bench.token_agreement                            int8 and int4 beside float32, built-in duplex
    python -m bench.token_agreement --model ./float --steps 1000

The model has float32 graphs (antiphon quantize --target onnx --recipe float32). Tokens are random: on a
trained model that is harder than speech. Columns: equal first choices of the text stream, the mean divergence
from the float distribution (Kullback and Leibler, in nats), and the relative error of the logits (norms).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.errors import AntiphonError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.recipe import load_recipe
from bench.harness import tell

Floats: TypeAlias = NDArray[np.float64]


def random_tokens(lm: dict[str, Any], steps: int) -> NDArray[np.int64]:
    """Tokens ``[steps, 1 + n_q]``, text first."""
    random = np.random.default_rng(0)
    text = random.integers(0, lm["text_card"], (steps, 1))
    return np.concatenate([text, random.integers(0, lm["card"], (steps, lm["n_q"]))], axis=1)


def logits_of(graph: Graph, tokens: NDArray[np.int64]) -> Floats:
    """Text logits ``[steps, text_card]`` under these tokens, as a call of its own."""
    graph.inputs["exec"][:] = True
    found = []
    for line in tokens:
        graph.inputs["tokens"][0] = line
        graph.run(1)
        found.append(graph.outputs["logits"][0].astype(np.float64))
    return np.stack(found)


def compare(wanted: Floats, found: Floats) -> tuple[float, float, float]:
    """Equal first choices, mean divergence in nats, relative error."""
    logs = [part - np.logaddexp.reduce(part, axis=1, keepdims=True) for part in (wanted, found)]
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).mean()
    equal = (wanted.argmax(axis=1) == found.argmax(axis=1)).mean()
    return float(equal), float(divergence), float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def measure(model: str, recipes: Sequence[str], steps: int, folder: Path) -> str:
    """A table of every recipe beside float32; rounded graphs go to ``folder``.

    Raises:
        UnsupportedError: the model has no graph of a language model, or it is quantised already.
    """
    checkpoint = load_checkpoint(model)
    if "lm" not in checkpoint.graphs or checkpoint.spec.lm is None:
        raise UnsupportedError(f"{model} has no graph 'lm': antiphon quantize --target onnx --recipe float32")
    form = checkpoint.graphs["lm"]
    whole, providers = checkpoint.file(form.file), pick_provider("cpu")[1]
    tokens = random_tokens(dict(checkpoint.spec.lm.config), steps)
    wanted = logits_of(Graph(open_session(whole, providers, 1), form, 1), tokens)
    lines = ["| recipe | first choice | divergence | error of logits |", "|---|---|---|---|"]
    for name in recipes:
        path = folder / f"{Path(name).stem}-lm.onnx"
        quantize_graph(whole, path, load_recipe("onnx", name))
        found = logits_of(Graph(open_session(path, providers, 1), form, 1), tokens)
        equal, divergence, error = compare(wanted, found)
        lines.append(f"| {name} | {equal:.1%} | {divergence:.1e} | {error:.2%} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench.token_agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="duplex-seeded", help="with float32 graphs [%(default)s]")
    parser.add_argument("--recipe", action="append", help="[int8 and int4]")
    parser.add_argument("--steps", type=int, default=300, help="[%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        print(measure(options.model, options.recipe or ["int8", "int4"], options.steps, options.out))
    except AntiphonError as error:
        tell(f"bench.token_agreement: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
