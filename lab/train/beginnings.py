"""Initial weights of a language model: from the codec's vectors, from a number line, or from a trained
model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from lab.train.domain import NUMBERS
from lab.train.loop import checkpoint_in
from lab.train.talker_tokenizer import TalkerTokenizer

CODEBOOKS: Final = 8


def codebook_vectors(mimi: Any) -> list[Tensor]:
    """Return for each codebook the vectors that its codes add to a frame, ``[card, D]``."""
    quantizer = mimi.quantizer
    vectors: list[Tensor] = []
    for split, count in ((quantizer.rvq_first, 1), (quantizer.rvq_rest, CODEBOOKS - 1)):
        weight = split.output_proj.weight[:, :, 0]
        vectors += [(layer._codebook.embedding @ weight.T).detach() for layer in split.vq.layers[:count]]
    return vectors


def nearest_codes(mimi: Any, count: int) -> Tensor:
    """Return for each code the ``count`` other codes that sound most like it, int64 ``[8, card, count]``."""
    apart = (torch.cdist(vector, vector).fill_diagonal_(math.inf) for vector in codebook_vectors(mimi))
    return torch.stack([distances.topk(count, largest=False).indices for distances in apart])


def start_from_codec(model: Any, mimi: Any, shares: Sequence[float]) -> None:
    """Initialise the audio embeddings as projections of the codec's own codebook vectors.

    Codes that sound similar are then similar from the first step on, which random embeddings have to learn.
    ``shares`` has one loudness for each group of eight streams.
    """
    vectors = codebook_vectors(mimi)
    scale = 0.15 / math.sqrt(sum(float(v.var()) for v in vectors))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for side, share in enumerate(shares):
            wide = torch.randn(model.dim, vectors[0].shape[1], generator=generator)
            basis = torch.linalg.qr(wide).Q.T * math.sqrt(model.dim / vectors[0].shape[1])
            for index, vector in enumerate(vectors):
                rows = (vector - vector.mean(0)) @ basis * scale * share
                model.emb[side * CODEBOOKS + index].weight[: rows.shape[0]] = rows


NUMBER_WAVES = (84, 42, 21, 14, 10.5, 7, 5, 4, 3, 2)
"""Wavelengths, in units, of the waves that place a number's word on a line."""


def number_waves(count: int) -> Tensor:
    """Return the numbers 0 to ``count - 1`` as points on circles, ``[count, 2 * waves]``.

    Networks that have learned to add represent numbers in this way (Nanda et al. 2023); with this start a few
    hundred sums suffice to learn the others.
    """
    angle = 2 * math.pi * torch.arange(count)[:, None] / torch.tensor(NUMBER_WAVES)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def start_from_number_line(model: Any, tokenizer: TalkerTokenizer) -> None:
    """Initialise the embeddings of number words by their positions on the number line only, so that sums can
    be learned.

    With random components in addition, a network remembers each sum of its training, and does not generalise.
    """
    tokens = [tokenizer.encode(word)[0] for word in NUMBERS]
    waves = number_waves(len(tokens))
    waves = waves - waves.mean(0)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        table = model.text_emb.weight
        basis = torch.linalg.qr(torch.randn(model.dim, waves.shape[1], generator=generator)).Q.T
        rows = waves @ basis
        table[tokens] = rows * (table[: model.text_card].std() / rows.std())


def start_from_talker(model: Any, folder: Path, tokenizer: TalkerTokenizer) -> None:
    """Initialise a talker with the weights in ``folder``, which is published or written by a trainer.

    Raises:
        ValueError: its words have other tokens.
        RuntimeError: a tensor is missing or has another shape.
    """
    theirs = TalkerTokenizer(folder / "tokenizer.model").model
    ours = tokenizer.model
    if [theirs.id_to_piece(i) for i in range(theirs.get_piece_size())] != [
        ours.id_to_piece(i) for i in range(tokenizer.size)
    ]:
        raise ValueError(f"the words of {folder / 'tokenizer.model'} are not those of the domain")
    weights = load_file(checkpoint_in(folder) / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})


def start_from_talkers_ear(model: Any, talker: dict[str, Tensor], heard_from: int) -> None:
    """Initialise a model of the same width with a talker's first layers and input embeddings.

    ``talker`` are the weights of its language model; streams from ``heard_from`` on are its input.

    Raises:
        ValueError: the widths differ, or the talker has more or fewer input streams, or fewer layers.
        RuntimeError: a tensor has another shape.
    """
    width = talker["text_emb.weight"].shape[1]
    if width != model.dim:
        raise ValueError(f"a talker of width {width} cannot start a model of width {model.dim}")
    begun = {}
    for name, tensor in talker.items():
        part, _, rest = name.partition(".")
        if part == "emb" and int(rest.split(".")[0]) >= heard_from:
            index, _, rest = rest.partition(".")
            begun[f"emb.{int(index) - heard_from}.{rest}"] = tensor
        elif name == "text_emb.weight" or _layer(name) in range(len(model.transformer.layers)):
            begun[name] = tensor
    # The published names of attention's weights are not the modules' own: upstream's modules translate.
    found = model.load_state_dict(begun, strict=False)
    if found.unexpected_keys:
        raise ValueError(f"the model has no place for the talker's {', '.join(found.unexpected_keys)}")
    missing = [name for name in found.missing_keys if name.startswith(("emb.", "text_emb.", "transformer."))]
    if missing:
        raise ValueError(f"the talker has no {', '.join(missing)}")


def _layer(name: str) -> int | None:
    """The N of ``transformer.layers.N.``, None for other tensors."""
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["transformer", "layers"] else None
