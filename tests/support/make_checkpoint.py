"""Make a small, seeded checkpoint in the published layout of Moshi-family models.

The weights are random, made by upstream's own modules (the torch and moshi packages are needed) and
scaled so that the outputs are lively: codes follow the audio and greedy tokens vary. Everything follows
from ``--seed``, so the same command writes the same bytes.

  python -m tests.support.make_checkpoint out/moshi
  python -m tests.support.make_checkpoint out/stt --kind stt --seed 7
  python -m tests.support.make_checkpoint out/big --dim 256 --num-layers 4 --context 250 --dtype float32
  python -m tests.support.make_checkpoint out/duplex --mimi weights/antiphon_weights/tiny --link --manifest
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import describe
from antiphon.models.manifest import MANIFEST_NAME, write_manifest
from tests.support.small_models import KINDS, SMALL, make_lm, make_mimi, mimi_config, published_names

TEXT = Path(__file__).with_name("text.txt")
TOKENIZER_NAME = "tokenizer.model"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

LIES = {"personaplex": {"dep_q": 8}}
"""What the published ``config.json`` says although the weights are different."""
BETWEEN_WORDS = (0, 3)
"""The end of padding, and padding."""
NOT_LM = ("model_type", "lm_gen_config", "stt_config", "tts_config")


def make_checkpoint(
    folder: Path,
    *,
    kind: str = "moshi",
    seed: int = 0,
    mimi: Path | None = None,
    link: bool = False,
    dtype: str = "bfloat16",
    card: int = 64,
    **shape: Any,
) -> Path:
    """Write a checkpoint of ``kind`` (a key of ``KINDS``) into ``folder``, and return the folder.

    ``mimi`` is a folder with ``mimi.safetensors`` and ``mimi_config.json`` to use instead of a seeded
    codec of ``card`` entries; with ``link`` it is named by its relative path instead of copied.
    ``dtype`` is the language model's; Mimi is float32 as published. ``shape`` overrides LM arguments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**KINDS[kind]} if kind == "codec" else {**SMALL, **KINDS[kind], **shape}
    levels = max(config.get("dep_q", 8), config.get("n_q", 8) - config.get("dep_q", 0))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _one_thread():
        torch.manual_seed(seed)
        names, codec = _write_mimi(folder, mimi, link, codebooks=min(levels, 8), card=card)
        if kind != "codec":
            config["card"] = codec["quantizer"]["bins"]
            lm = make_lm({key: value for key, value in config.items() if key not in NOT_LM})
            if kind == "stt":
                lm.text_linear.weight[[*BETWEEN_WORDS]] *= 3  # words end, as often as not
            tensors = published_names(
                {name: value.to(DTYPES[dtype]) for name, value in lm.state_dict().items()}
            )
            _save(tensors, folder / "model.safetensors")
            (folder / TOKENIZER_NAME).write_bytes(train_tokenizer(config["text_card"]))
            names |= {"moshi_name": "model.safetensors", "tokenizer_name": TOKENIZER_NAME}
    published = config | names | LIES.get(kind, {})
    (folder / "config.json").write_text(json.dumps(published, indent=2) + "\n")
    return folder


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums come out the same only when they are cut into the same parts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_tokenizer(vocabulary: int) -> bytes:
    """A SentencePiece model of ``vocabulary`` pieces from our own sentences. Padding is id 3, as in Moshi."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        vocab_size=vocabulary,
        pad_id=3,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file(dict(tensors), path)
    path.chmod(0o644)  # save_file makes it unreadable for others


def _write_mimi(
    folder: Path, mimi: Path | None, link: bool, *, codebooks: int, card: int
) -> tuple[dict[str, str], dict[str, Any]]:
    """Put a Mimi into the folder; return how config.json names it, and its configuration."""
    names = {"mimi_name": "mimi.safetensors", "mimi_config_name": "mimi_config.json"}
    if mimi is None:
        config = mimi_config(codebooks=codebooks, card=card)
        _save(make_mimi(config).state_dict(), folder / names["mimi_name"])
        (folder / names["mimi_config_name"]).write_text(json.dumps(config, indent=2) + "\n")
        return names, config
    config = json.loads((mimi / names["mimi_config_name"]).read_text())
    if link:
        return {key: os.path.relpath(mimi / name, folder) for key, name in names.items()}, config
    for name in names.values():
        shutil.copyfile(mimi / name, folder / name)
    return names, config


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--kind", choices=sorted(KINDS), default="moshi", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--mimi", type=Path, metavar="FOLDER", help="use this Mimi instead of a seeded one")
    parser.add_argument("--link", action="store_true", help="name that Mimi by relative path, copy nothing")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--card", type=int, default=64, help="entries of a seeded codebook, default: %(default)s"
    )
    for name in ("dim", "num_layers", "num_heads", "context", "text_card"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=SMALL[name], help="of the LM, default: %(default)s")
    parser.add_argument("--manifest", action="store_true", help=f"write {MANIFEST_NAME} as well")
    arguments = vars(parser.parse_args(argv))
    wants_manifest = arguments.pop("manifest")
    folder = make_checkpoint(arguments.pop("folder"), **arguments)
    if wants_manifest:
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        write_manifest(describe(load_checkpoint(str(folder))), folder / MANIFEST_NAME)
    spec = load_checkpoint(str(folder)).spec
    print(f"{folder}: {spec.family}, {spec.parameters / 1e6:.2f} M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
