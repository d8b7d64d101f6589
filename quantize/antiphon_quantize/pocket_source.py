"""The stages of a Pocket-TTS model with its published weights, without its package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from antiphon.backends.torch.weights import assign
from antiphon.errors import UnsupportedError
from antiphon.models.checkpoint import Checkpoint, as_checkpoint_error
from antiphon.models.pocket_shape import PocketShape
from antiphon_quantize.onnx_int8 import DECODER_MIDDLE, round_network
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.pocket_codec import PcmStage, VoiceEncoderStage, prepare_half
from antiphon_quantize.pocket_lm import FlowLM, LatentStage, ReadStage

FLOW: Final = "flow_lm."
MIMI: Final = "mimi."
_LATENT: Final = "latent_proj"
_SHORTER: Final[Mapping[str, str]] = {
    ".convtr.convtr.": ".",
    ".conv.conv.": ".",
    ".convtr.": ".",
    ".conv.": ".",
    "_transformer.transformer.": "_transformer.",
    ".linear1.": ".feed_forward.linear1.",
    ".linear2.": ".feed_forward.linear2.",
}


def pocket_makers(
    checkpoint: Checkpoint, int8_positions: Mapping[str, int]
) -> dict[str, Callable[[], ExportedStage]]:
    """Functions that make the stages for export, in float32 except for the INT8 parts that ``int8_positions``
    allows.

    Raises:
        UnsupportedError: the weights are in two files, or the runtime has no operator for the shape.
        CheckpointFormatError: the weights do not fit their configuration.
    """
    spec, shape, path = checkpoint.spec, PocketShape.of(checkpoint.spec), checkpoint.files.get("lm")
    assert shape is not None
    if path is None or "mimi" in checkpoint.files:
        raise UnsupportedError(
            f"{spec.name} has weights in two files; graphs are made of one, with both parts"
        )
    config, codec = spec.generation["tts_config"]["flow_lm"], spec.mimi.config
    with as_checkpoint_error(spec.name, torch.OutOfMemoryError):
        published = {name: tensor.float() for name, tensor in load_file(path).items()}
        with torch.device("meta"):
            sound, voice_stage = PcmStage(codec), VoiceEncoderStage(codec)
            voice = voice_stage.downsample.weight.shape[0]
            model = FlowLM(config, sound.width, voice, shape)
        assign(model, _part(published, FLOW), path)
        model.flow_net.prepare()
        halves = _codec_tensors(published, model)
        for stage, chosen in (
            (sound, ("decoder", "upsample", _LATENT)),
            (voice_stage, ("encoder", "downsample")),
        ):
            assign(stage, {name: it for name, it in halves.items() if name.startswith(chosen)}, path)
        round_network(sound.decoder, int8_positions.get("decoder", 0), middle=DECODER_MIDDLE)
        round_network(voice_stage.encoder, int8_positions.get("encoder", 0), middle=0)
    prepare_half(sound)
    prepare_half(voice_stage)
    makers: dict[str, Callable[[], ExportedStage]] = {"encode": lambda: voice_stage} if shape.clones else {}
    return makers | {
        "read": lambda: ReadStage(model, clones=shape.clones),
        "lm": lambda: LatentStage(model),
        "decode": lambda: sound,
    }


def _part(published: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): it for name, it in published.items() if name.startswith(prefix)}


def _codec_tensors(published: Mapping[str, Tensor], model: FlowLM) -> dict[str, Tensor]:
    """The codec's tensors by our names; the latent's scale and mean are part of its projection."""
    found: dict[str, Tensor] = {}
    for name, tensor in _part(published, MIMI).items():
        for long, short in _SHORTER.items():
            name = name.replace(long, short)
        found[name] = tensor
    projection = found.pop("quantizer.output_proj.weight")[..., 0]
    found[f"{_LATENT}.weight"] = projection * model.emb_std
    found[f"{_LATENT}.bias"] = projection @ model.emb_mean
    return found
