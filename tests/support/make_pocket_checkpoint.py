"""Make a small, seeded Pocket-TTS checkpoint in the layout of its package.

The folder holds a configuration (YAML), the weights (safetensors), a tokenizer and two voices, one as the
package exports it and one as a recording. The weights are random, made by the package's own modules (the
extra pocket is needed) and scaled so that the outputs are lively: every text sounds different, and ends.

  python -m tests.support.make_pocket_checkpoint out/pocket
  python -m tests.support.make_pocket_checkpoint out/pocket --tokenizer tokenizers --seed 7
  python -m tests.support.make_pocket_checkpoint out/english --shape english
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram
from torch import nn

from antiphon.audio.wav import write_wav
from antiphon.backends.pocket.factory import undisturbed
from antiphon.models.tokenizer import TextTokenizer
from tests.support.make_checkpoint import train_tokenizer
from tests.support.small_models import SAMPLE_RATE, trial_signal

with undisturbed():
    from pocket_tts import TTSModel, export_model_state
    from pocket_tts.utils.config import CONFIGS_DIR

CONFIG_NAME = "small.yaml"
WEIGHTS_NAME = "model.safetensors"
TOKENIZERS = {"sentencepiece": "tokenizer.model", "tokenizers": "tokenizer.json"}
VOCABULARY = 256
EOS_THRESHOLD = 0.9
VOICE_S = 0.8


def configuration(tokenizer: str, flow: str) -> dict[str, Any]:
    """A model of about 0.1 M parameters; its end of speech is a matter of about ten frames."""
    transformer = {
        "d_model": 16, "num_heads": 2, "num_layers": 1, "layer_scale": 0.01, "context": 20,
        "dim_feedforward": 32, "input_dimension": 16, "output_dimensions": [16],
    }  # fmt: skip
    seanet = {
        "dimension": 16, "channels": 1, "n_filters": 4, "n_residual_layers": 1, "ratios": [6, 5, 4],
        "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "dilation_base": 2,
        "pad_mode": "constant", "compress": 2,
    }  # fmt: skip
    return {
        "weights_path": WEIGHTS_NAME,
        "default_temperature": 0.5,
        "default_eos_threshold": EOS_THRESHOLD,
        "replace_characters": {"\u2013": ","},
        "flow_lm": {
            "insert_bos_before_voice": True,
            "dtype": "float32",
            "flow": {"depth": 2, "dim": 32, "type": flow},
            "transformer": {
                "d_model": 32, "hidden_scale": 2, "max_period": 10000, "num_heads": 4, "num_layers": 2,
                "num_kv_heads": 2, "attn_dim": 64,
            },
            "lookup_table": {
                "dim": 32,
                "n_bins": VOCABULARY,
                "tokenizer": tokenizer,
                "tokenizer_path": TOKENIZERS[tokenizer],
            },
        },
        "mimi": {
            "dtype": "float32",
            "sample_rate": SAMPLE_RATE,
            "inner_dim": 8,
            "outer_dim": 16,
            "channels": 1,
            "frame_rate": 12.5,
            "seanet": seanet,
            "transformer": transformer,
            "quantizer": {"dimension": 8, "output_dimension": 16},
        },
    }  # fmt: skip


def published(shape: str) -> dict[str, Any]:
    """A configuration of the package, with our tokenizer and our weights."""
    config: dict[str, Any] = yaml.safe_load((CONFIGS_DIR / f"{shape}.yaml").read_text())
    table = {
        "n_bins": VOCABULARY,
        "tokenizer": "sentencepiece",
        "tokenizer_path": TOKENIZERS["sentencepiece"],
    }
    config["flow_lm"]["lookup_table"] |= table
    for key in ("weights_path_without_voice_cloning", "model_recommended_frames_after_eos"):
        config.pop(key, None)
    return {**config, "weights_path": WEIGHTS_NAME, "default_eos_threshold": EOS_THRESHOLD}


def make_pocket_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    tokenizer: str = "sentencepiece",
    flow: str = "lsd",
    clones: bool = True,
    shape: str | None = None,
) -> Path:
    """Write a checkpoint into ``folder``, and return the folder.

    ``tokenizer`` is "sentencepiece" or "tokenizers" (the same pieces in a ``tokenizer.json``), ``flow`` the
    kind of its sampler. Without ``clones`` the configuration names its weights as those without cloning.
    ``shape`` is the name of a configuration of the package: then the model is as large as the published one.
    """
    (folder / "voices").mkdir(parents=True, exist_ok=True)
    pieces = folder / TOKENIZERS["sentencepiece"]
    pieces.write_bytes(train_tokenizer(VOCABULARY))
    if tokenizer == "tokenizers":
        (folder / TOKENIZERS[tokenizer]).write_text(_as_json(pieces))
        pieces.unlink()
    config = configuration(tokenizer, flow) if shape is None else published(shape)
    with undisturbed(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = _unloaded(folder, config)
        _draw(model)
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, _weights(folder))
        for index, name in enumerate(("calm", "ring")):
            pcm = trial_signal(round(VOICE_S * SAMPLE_RATE)) * (1 + index)
            if name == "calm":
                state = model.get_state_for_audio_prompt(pcm[None])
                export_model_state(state, folder / "voices" / f"{name}.safetensors")
            else:
                write_wav(folder / "voices" / f"{name}.wav", pcm.numpy(), SAMPLE_RATE)
    if not clones:
        config["weights_path_without_voice_cloning"] = config.pop("weights_path")
    (folder / CONFIG_NAME).write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    return folder


def _weights(folder: Path) -> Path:
    return folder / WEIGHTS_NAME


def _unloaded(folder: Path, config: dict[str, Any]) -> Any:
    """The package's model of a configuration, without weights."""
    table = {**config["flow_lm"]["lookup_table"]}
    table["tokenizer_path"] = str(folder / table["tokenizer_path"])
    path = folder / CONFIG_NAME
    bare = {key: value for key, value in config.items() if key != "weights_path"}
    path.write_text(yaml.safe_dump({**bare, "flow_lm": {**config["flow_lm"], "lookup_table": table}}))
    return TTSModel.load_model(config=path)


def _draw(model: Any) -> None:
    """Draw every matrix so that it keeps the variance of its input, and fit what is heard to a loudness."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            fan_in = module.weight.shape[1] * module.kernel_size[0]
            if isinstance(module, nn.ConvTranspose1d):
                fan_in = module.weight.shape[0] // module.groups * module.kernel_size[0] // module.stride[0]
            module.weight.normal_(0, 1.3 / math.sqrt(max(1, fan_in)))
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0, 1 / math.sqrt(module.in_features))
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0, 1)
    model.flow_lm.speaker_proj_weight.normal_(0, 1)
    model.flow_lm.out_eos.bias.data.zero_()
    voice = model.get_state_for_audio_prompt(trial_signal(SAMPLE_RATE)[None])
    heard = model.generate_audio(voice, "One two.")
    last = [module for module in model.mimi.decoder.modules() if isinstance(module, nn.Conv1d)][-1]
    last.weight.mul_(0.1 / heard.std())
    assert last.bias is not None
    last.bias.zero_()


def _as_json(path: Path) -> str:
    """The pieces of a SentencePiece model as a ``tokenizer.json``."""
    known = TextTokenizer(path)
    processor = SentencePieceProcessor(model_file=str(path))
    pieces = [(processor.IdToPiece(index), processor.GetScore(index)) for index in range(known.vocabulary)]
    made = Tokenizer(Unigram(pieces, unk_id=processor.unk_id()))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return json.dumps(json.loads(made.to_str()), ensure_ascii=False)


def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--tokenizer", choices=sorted(TOKENIZERS), default="sentencepiece")
    parser.add_argument("--shape", metavar="NAME", help="as large as this model of the package")
    options = vars(parser.parse_args(argv))
    folder = make_pocket_checkpoint(options.pop("folder"), **options)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {np.ceil(size / 1000):.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
