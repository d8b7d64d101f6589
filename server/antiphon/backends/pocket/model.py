"""The modules of Pocket-TTS, as its package makes them; they run one frame at a time, for one row or several.

The package generates one utterance in its own threads and draws noise from torch's global generator. Here a
row requests each step, with its own noise: the package's loops (``_generate_audio_stream_short_text``,
``_autoregressive_generation`` and ``_decode_audio_worker`` of ``TTSModel`` 4.0.1, ``FlowLMModel.forward``)
are replaced, its modules are used unchanged.

A single row reads all weights from memory to multiply one vector. With several rows, each block of a matrix
is read once and multiplied by every row's vector while it is in a cache. Each product is computed for one
row, so its result does not depend on the number of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from pocket_tts import TTSModel
from pocket_tts.models.flow_lm import drifting_decode, lsd_decode, ot_decode, pointwise_decode
from pocket_tts.models.text_chunking import prepare_text_prompt
from pocket_tts.modules.stateful_module import StatefulModule, init_states
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.base import FloatArray
from antiphon.backends.speaker import FADE_S
from antiphon.models.prompt import Prompt

BLOCK_NUMBERS: Final = 1 << 17
"""Weights of a block: half a megabyte in float32, which fits into a core's level 2 cache."""
BLOCK_ROWS: Final = 16
"""The number of outputs of a block is a multiple of this, so that a product uses the same routine at the
edges of a block.
"""


class Together:
    """Runs the transformer of the package ``pocket_tts`` for several rows at once, with its modules
    unchanged.
    """

    def __init__(self, transformer: Any) -> None:
        """Take ownership of a loaded transformer of the package."""
        self._layers: list[tuple[Any, Any]] = []
        for layer in transformer.layers:
            twin = copy.copy(layer.self_attn)  # from the projected input to the next one
            twin._modules = {**twin._modules, "in_proj": nn.Identity(), "out_proj": nn.Identity()}
            self._layers.append((layer, twin))

    def think(
        self, inputs: Sequence[Tensor], states: Sequence[Mapping[str, Mapping[str, Tensor]]]
    ) -> list[Tensor]:
        """Pass each row's input ``[1, 1, dim]`` through all layers, with its state."""
        rows = list(inputs)
        for layer, attend in self._layers:
            projected = multiply(layer.self_attn.in_proj, [layer.norm1(x) for x in rows])
            attended = [attend(x, state) for x, state in zip(projected, states, strict=True)]
            updates = multiply(layer.self_attn.out_proj, attended)
            rows = [x + layer.layer_scale_1(update) for x, update in zip(rows, updates, strict=True)]
            wide = multiply(layer.linear1, [layer.norm2(x) for x in rows])
            updates = multiply(layer.linear2, [functional.gelu(x, approximate="tanh") for x in wide])
            rows = [x + layer.layer_scale_2(update) for x, update in zip(rows, updates, strict=True)]
        return rows


def multiply(linear: nn.Module, rows: Sequence[Tensor]) -> list[Tensor]:
    """Apply ``linear`` to each row. A linear of a type other than torch's own processes the rows one at a
    time.
    """
    if type(linear) is not nn.Linear or linear.bias is not None or len(rows) == 1:
        return [linear(x) for x in rows]
    outputs = max(BLOCK_ROWS, BLOCK_NUMBERS // linear.in_features // BLOCK_ROWS * BLOCK_ROWS)
    blocks = linear.weight.split(outputs)
    parts = [[functional.linear(x, block) for x in rows] for block in blocks]
    return [torch.cat(found, dim=-1) for found in zip(*parts, strict=True)]


State: TypeAlias = dict[str, dict[str, Tensor]]
"""The package's state of an utterance: tensors of each module, by the module's name."""

_SAMPLERS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "lsd": lsd_decode,
        "flow_matching": ot_decode,
        "drifting": drifting_decode,
        "pointwise": pointwise_decode,
    }
)
_DECODER: Final = ("upsample", "decoder_transformer", "decoder")
"""The codec's modules for output; its other modules only encode a voice."""


class Opening(NamedTuple):
    """A processed chunk of text. Its frames need ``state``; there are at most ``max_frames``.

    ``tail_frames`` more frames follow after the model has ended the speech.
    """

    state: State
    max_frames: int
    tail_frames: int


class PocketModel:
    """One loaded model without state, so threads may use it at the same time."""

    def __init__(self, loaded: TTSModel, *, sampler_steps: int) -> None:
        """Take ownership of a model of the package."""
        self._model, self._flow, self._mimi = loaded, loaded.flow_lm, loaded.mimi
        self._sampler_steps = sampler_steps
        self._together = Together(loaded.flow_lm.transformer)
        self._sampler = _SAMPLERS[loaded.flow_lm.flow_type]
        self._sounding = {
            name: module
            for name, module in loaded.mimi.named_modules()
            if isinstance(module, StatefulModule) and name.startswith(_DECODER)
        }
        self._heard = {
            name: module
            for name, module in loaded.flow_lm.named_modules()
            if isinstance(module, StatefulModule)
        }
        self.mimi_steps = int(loaded.mimi.encoder_frame_rate / loaded.mimi.frame_rate)
        self.latent_width = int(loaded.flow_lm.ldim)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters and buffers."""
        parts = (*self._model.parameters(), *self._model.buffers())
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the packages that run the model, by name."""
        return {"torch": str(torch.__version__)}

    # Text.

    def count(self, text: str) -> int:
        """The number of tokens of a sentence, as the package counts them when it joins sentences."""
        prepared = self._prepare(text, capitalize_first_letter=False)
        return 0 if prepared is None else len(self._flow.conditioner.tokenizer.encode(prepared[0].strip()))

    def _prepare(self, text: str, **changes: bool) -> tuple[str, int] | None:
        """A text in the form of the model's training, and the frames after its end; None if it is empty."""
        model = self._model
        rules = {
            "pad_with_spaces_for_short_inputs": model.pad_with_spaces_for_short_inputs,
            "remove_semicolons": model.remove_semicolons,
            "append_terminal_punctuation": model.append_terminal_punctuation,
            "capitalize_first_letter": model.capitalize_first_letter,
            "replace_characters": model.replace_characters,
        }
        kept = text.translate(str.maketrans(model.replace_characters)).strip()
        return prepare_text_prompt(text, **{**rules, **changes}) if kept else None

    # Voices.

    def voice(self, prompt: Prompt | None) -> State:
        """The language model's state for a voice; None is no voice."""
        if prompt is None:
            state: State = init_states(self._flow, batch_size=1, sequence_length=0)
            return state
        if prompt.keys_values is None:
            assert prompt.voice is not None
            heard: State = self._model.get_state_for_audio_prompt(
                torch.from_numpy(prompt.voice.reshape(1, -1))
            )
            return heard
        return {
            f"transformer.layers.{layer}.self_attn": {
                "cache": torch.from_numpy(cache[:, None]),
                "offset": torch.full((1,), cache.shape[1], dtype=torch.long),
            }
            for layer, cache in enumerate(prompt.keys_values)
        }

    # Speech.

    def open(self, voice: State, text: str) -> Opening | None:
        """Process a chunk of text after a voice, which remains unchanged; None for an empty chunk."""
        prepared = self._prepare(text)
        if prepared is None:
            return None
        model = self._model
        tokens = self._flow.conditioner.prepare(prepared[0])
        max_frames = self.longest_frames(tokens.shape[1])
        state = {name: {key: tensor.clone() for key, tensor in part.items()} for name, part in voice.items()}
        start = model._flow_lm_current_end(state)
        model._expand_kv_cache(state, sequence_length=start + tokens.shape[1] + max_frames)
        self._think(state, self._flow.conditioner(tokens), torch.empty(1, 0, self.latent_width))
        recommended = model.model_recommended_frames_after_eos
        return Opening(state, max_frames, prepared[1] + 2 if recommended is None else recommended)

    def longest_frames(self, tokens: int) -> int:
        """The maximum number of frames of a chunk of ``tokens`` tokens; the chunk ends there even if the
        model continues.
        """
        return int(self._model._estimate_max_gen_len(tokens))

    def codec(self, max_frames: int) -> State:
        """The state of a fresh decoder, for ``max_frames`` frames."""
        length = max_frames * self.mimi_steps
        return {name: module.init_state(1, sequence_length=length) for name, module in self._sounding.items()}

    def first_latent(self) -> Tensor:
        """The input before the first frame: NaN, the model's marker of the start."""
        return torch.full((1, 1, self.latent_width), float("nan"))

    def run_language_model(self, states: Sequence[State], latents: Sequence[Tensor]) -> list[Tensor]:
        """The language model's output for :meth:`next_latent`, for several rows at once, each ``[1,
        dim]``.

        States advance only after all rows are computed: if one row fails, no row has advanced.
        """
        heard = [torch.where(torch.isnan(latent), self._flow.bos_emb, latent) for latent in latents]
        thought = self._together.think([self._flow.input_linear(latent) for latent in heard], states)
        if self._flow.out_norm:
            thought = [self._flow.out_norm(row) for row in thought]
        if self._flow.z_proj is not None:
            thought = [self._flow.z_proj(row) for row in thought]
        for state in states:
            self._pass(state, 1)
        return [row[:, -1] for row in thought]

    def next_latent(
        self, state: State, latent: Tensor, noise: FloatArray, thought: Tensor | None = None
    ) -> tuple[Tensor, bool]:
        """Compute the latent after ``latent`` [1, 1, width] from ``noise`` [width]; also return whether
        speech is over.

        ``thought``: the language model's output for ``latent``, if it is already computed.
        """
        out = thought
        if out is None:
            out = self._think(state, torch.empty(1, 0, self._flow.dim), latent)[:, -1]
        is_over = bool((self._flow.out_eos(out) > self._model.eos_threshold).item())
        made: Tensor = self._sampler(
            partial(self._flow.flow_net, out), torch.from_numpy(noise)[None], self._sampler_steps
        )
        return made[:, None, :], is_over

    def sound(self, state: State, latent: Tensor, *, is_first: bool) -> FloatArray:
        """The samples of one frame, float32 ``[frame_samples]``."""
        scaled = latent * self._flow.emb_std + self._flow.emb_mean
        pcm: FloatArray = self._mimi.decode_from_latent(scaled, state)[0, 0].numpy()
        for name, module in self._sounding.items():
            module.increment_step(state[name], self.mimi_steps)
        if is_first:
            fade = min(len(pcm), int(self._model.sample_rate * FADE_S))
            pcm[:fade] *= torch.linspace(0, 1, fade).numpy()
        return pcm

    def _think(self, state: State, text: Tensor, latents: Tensor) -> Tensor:
        """Run the language model over its next input: text embeddings ``[1, T, dim]``, then latents."""
        heard = torch.where(torch.isnan(latents), self._flow.bos_emb, latents)
        out: Tensor = self._flow.backbone(self._flow.input_linear(heard), text, heard, model_state=state)
        self._pass(state, text.shape[1] + latents.shape[1])
        return out

    def _pass(self, state: State, positions: int) -> None:
        for name, module in self._heard.items():
            module.increment_step(state[name], positions)


def state_bytes(state: State) -> int:
    """Bytes of a state."""
    return sum(tensor.numel() * tensor.element_size() for part in state.values() for tensor in part.values())
