"""Do we compute what upstream's ``moshi_mlx`` computes? The same frames through both, logits compared.

moshi_mlx asks for an older mlx than ours, and runs on it. So it goes, without its dependencies, into an
environment of its own:

  python -m venv out/oracle
  out/oracle/bin/pip install 'mlx[cpu]==0.32.4' numpy safetensors huggingface_hub rustymimi
  out/oracle/bin/pip install --no-deps moshi_mlx==0.3.0
  PYTHONPATH=server:. out/oracle/bin/python -m lab.bench.mlx_upstream FOLDER

FOLDER is a language model in the published layout of PyTorch, or one that ``antiphon quantize --target mlx``
wrote with a recipe that rounds every matrix alike (upstream's files have no exceptions). Upstream fixes its
hidden width at 4.125 times its own, so a small model needs ``--hidden-scale 4.125`` to fit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.quantized import quantize

from antiphon.backends.mlx.lm import LanguageModel
from antiphon.backends.mlx.lm_weights import load_lm
from antiphon.backends.mlx.state import Packing, State, Step
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.mlx_layout import is_mlx_layout
from antiphon.models.spec import LMSpec
from antiphon.models.weights import read_header

UPSTREAM = "moshi_mlx.models.lm"  # imported by name: only the environment above has it
DTYPES: Mapping[str, mx.Dtype] = {"F32": mx.float32, "BF16": mx.bfloat16}


class Listener:
    """A sampler of upstream's that takes the likeliest token and keeps the logits."""

    def __init__(self) -> None:
        self.heard: list[mx.array] = []

    def __call__(self, logits: mx.array) -> tuple[mx.array, None]:
        self.heard.append(logits.reshape(-1))
        return mx.argmax(logits, axis=-1).astype(mx.int32), None


def load_upstream(checkpoint: Checkpoint) -> Any:
    """Upstream's model, in the dtype of the file, rounded matrices as they are."""
    assert checkpoint.spec.lm is not None
    path, config = checkpoint.file("lm"), dict(checkpoint.spec.lm.config)
    header = read_header(path)
    upstream = import_module(UPSTREAM)
    model = upstream.Lm(upstream.LmConfig.from_config_dict({"model_type": "moshi", **config}))
    if not is_mlx_layout(header):
        return model.load_pytorch_weights(str(path), model.cfg, strict=True)
    scales = header.get("text_linear.scales")
    if scales is not None:
        dim = checkpoint.spec.lm.dim
        words = header["text_linear.weight"].shape[1]
        quantize(model, group_size=dim // scales.shape[1], bits=32 * words // dim)
    return model.load_weights(str(path), strict=True)


def upstream_logits(model: Any, tokens: list[int]) -> tuple[mx.array, list[mx.array]]:
    """One frame of upstream: text logits, and each codebook's, the likeliest tokens taken."""
    text, audio = Listener(), Listener()
    frames = [mx.array([[token]]) for token in tokens]
    model._sample(frames[0], frames[1:], text, audio)
    return text.heard[0], audio.heard


def our_logits(
    model: LanguageModel, state: State, tokens: list[int], frame: int
) -> tuple[mx.array, list[mx.array]]:
    """One frame of ours."""
    step = Step(state, Packing(np.zeros(1, np.int32), 1, is_fixed=False), np.array([frame + 1]))
    hidden, text = model(mx.array([tokens]), step)
    heard: list[mx.array] = []

    def likeliest(codebook: int, logits: mx.array) -> mx.array:  # noqa: ARG001
        heard.append(logits[0])
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    if model.depformer is not None:
        model.depformer(hidden, mx.argmax(text, axis=-1).astype(mx.int32), likeliest)
    step.commit()
    return text[0], heard


def draw_tokens(lm: LMSpec, frames: int) -> list[list[int]]:
    """Random tokens of every stream, the same in every run."""
    random = np.random.default_rng(0)
    text = random.integers(0, lm.text_card, (frames, 1))
    drawn: list[list[int]] = np.concatenate(
        [text, random.integers(0, lm.card, (frames, lm.n_q))], axis=1
    ).tolist()
    return drawn


def compare(checkpoint: Checkpoint, frames: int) -> tuple[float, float, int]:
    """The largest difference between logits, the largest logit, and how many likeliest tokens differ."""
    lm = checkpoint.spec.lm
    assert lm is not None
    header = read_header(checkpoint.file("lm"))
    dtype = DTYPES[next(info.dtype for name, info in header.items() if "norm" in name)]
    theirs = load_upstream(checkpoint)
    ours = load_lm(checkpoint.file("lm"), lm.config, steps=lm.depformer_steps, dtype=dtype)
    state = State(ours.specs(), 1)
    worst = largest = 0.0
    different = 0
    for frame, tokens in enumerate(draw_tokens(lm, min(frames, lm.context))):
        their_text, their_audio = upstream_logits(theirs, tokens)
        our_text, our_audio = our_logits(ours, state, tokens, frame)
        for one, other in zip([our_text, *our_audio], [their_text, *their_audio], strict=True):
            mine, yours = (np.array(array.astype(mx.float32)) for array in (one, other))
            worst = max(worst, float(np.abs(mine - yours).max()))
            largest = max(largest, float(np.abs(yours).max()))
            different += int(mine.argmax() != yours.argmax())
    return worst, largest, different


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status: 1 where the likeliest tokens differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="FOLDER", help="a checkpoint")
    parser.add_argument("--frames", type=int, default=100, help="frames compared, within the context")
    options = parser.parse_args(argv)
    worst, largest, different = compare(load_checkpoint(options.model), options.frames)
    print(
        f"{options.model}: logits differ by {worst:.2e} at most (the largest is {largest:.1f}); "
        f"{different} of the likeliest tokens differ"
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
