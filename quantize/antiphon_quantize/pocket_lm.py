"""Pocket-TTS's language model as stages of a tick: reading a text or a voice, and the next latent.

Parameters have the published names, of ``flow_lm``. Noise is an input, so that the same noise
gives the same speech. Keys and values have the layout of the runtime's GroupQueryAttention, which reads only
a row's own length, so the cost of a step grows with the row's speech rather than with its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.layers import LayerNorm, Linear
from antiphon.backends.torch.state import MaskedStep, Step
from antiphon.errors import UnsupportedError
from antiphon.models.pocket_shape import BOS, HEARD, READ_POSITIONS, PocketShape
from antiphon_quantize.onnx_modules import ExportedStage

HEAD_MULTIPLE: Final = 16
"""The head width that the runtime can rotate is a multiple of this."""
EULER_STEPS: Final = 16
"""Number of steps of a head that was trained for flow matching; other heads have one step."""


class CachedAttention(nn.Module):
    """Causal attention over a row's own past; its keys and values are written in place."""

    def __init__(self, dim: int, shape: PocketShape) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.shape = shape
        width, kv_width = shape.query_heads * shape.head_dim, shape.heads * shape.head_dim
        self.in_proj = Linear(dim, width + 2 * kv_width)
        self.out_proj = Linear(width, dim)

    def forward(self, x: Tensor, past: Past, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map ``x [n, T, dim]``, and ``keys`` and ``values [n, heads, capacity, D]``, to the same shapes."""
        shape = self.shape
        inputs = [self.in_proj(x), None, None, keys, values, past.last, past.total, past.cos, past.sin]
        width = shape.query_heads * shape.head_dim
        found, keys, values = torch.onnx.ops.symbolic_multi_out(
            "com.microsoft::GroupQueryAttention",
            inputs,
            {
                "num_heads": shape.query_heads,
                "kv_num_heads": shape.heads,
                "do_rotary": 1,
                "rotary_interleaved": 1,
            },
            dtypes=[x.dtype] * 3,
            shapes=[(*x.shape[:2], width), keys.shape, values.shape],
            version=1,
        )
        return self.out_proj(found), keys, values


@dataclass(frozen=True, slots=True)
class Past:
    """Common inputs of all layers: int32 ``last [n]``, the last position of this pass, ``total []``, the
    largest length of a row, and the tables of the rotation ``[capacity, D / 2]``.
    """

    last: Tensor
    total: Tensor
    cos: Tensor
    sin: Tensor


class FlowLayer(nn.Module):
    """One layer of the language model."""

    def __init__(self, dim: int, hidden: int, shape: PocketShape) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.self_attn = CachedAttention(dim, shape)
        self.norm1, self.norm2 = (LayerNorm(dim, eps=1e-5, in_float32=False) for _ in range(2))
        self.linear1, self.linear2 = Linear(dim, hidden), Linear(hidden, dim)

    def forward(self, x: Tensor, past: Past, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map ``x [n, T, dim]``, ``keys`` and ``values`` to the same shapes, see :class:`CachedAttention`."""
        update, keys, values = self.self_attn(self.norm1(x), past, keys, values)
        x = x + update
        hidden = functional.gelu(self.linear1(self.norm2(x)), approximate="tanh")
        return x + self.linear2(hidden), keys, values


class FlowTransformer(nn.Module):
    """The language model's layers, each over a row's own past. State: ``lm.position`` int64, and
    ``lm.LAYER.k`` and ``.v``."""

    cos: Tensor
    sin: Tensor

    def __init__(self, dim: int, hidden: int, max_period: float, shape: PocketShape) -> None:
        """Create the network without weights, which are loaded later."""
        super().__init__()
        if shape.head_dim % HEAD_MULTIPLE:
            raise UnsupportedError(
                f"heads of {shape.head_dim}; the runtime takes a multiple of {HEAD_MULTIPLE}"
            )
        self.shape = shape
        half = shape.head_dim // 2
        frequencies = torch.exp(torch.arange(half, device="cpu") * (-math.log(max_period) / half))
        angles = torch.arange(shape.capacity, device="cpu")[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.layers = nn.ModuleList(FlowLayer(dim, hidden, shape) for _ in range(shape.layers))

    def specs(self) -> Iterator[TensorSpec]:
        """The state of a row."""
        shape = self.shape
        yield TensorSpec("lm.position", (), torch.int64)
        for layer in range(shape.layers):
            for part in ("k", "v"):
                yield TensorSpec(
                    f"lm.{layer}.{part}", (shape.heads, shape.capacity, shape.head_dim), torch.float32
                )

    def forward(self, x: Tensor, step: MaskedStep, count: Tensor | int) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape; only ``count`` int64 ``[n]`` positions of a row are
        valid."""
        position = step.read("lm.position")
        capacity, positions = self.shape.capacity, x.shape[1]
        first = position.clamp(max=capacity - positions)  # beyond it the runtime would write elsewhere
        last = (first + (positions - 1)).to(torch.int32)
        past = Past(last, last.max() + 1, self.cos, self.sin)
        for layer, block in enumerate(self.layers):
            names = f"lm.{layer}.k", f"lm.{layer}.v"
            x, *written = block(x, past, *map(step.read, names))
            step.tensors.update(zip(names, written, strict=True))  # idle rows ignore these values
        step.write("lm.position", first + count)
        return x


class TimeEmbedding(nn.Module):
    """Embeds a time between noise (0) and sample (1) as a vector."""

    freqs: Tensor

    def __init__(self, dim: int, frequencies: int) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.register_buffer("freqs", torch.empty(frequencies))
        self.mlp = nn.Sequential(
            Linear(2 * frequencies, dim, bias=True), nn.SiLU(), Linear(dim, dim, bias=True), VarianceNorm(dim)
        )

    def forward(self, moment: float) -> Tensor:
        """The embedding of the time ``moment``, ``[1, dim]``."""
        angles = moment * self.freqs[None]
        out: Tensor = self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1))
        return out


class VarianceNorm(nn.Module):
    """``x * alpha / sqrt(var(x) + 1e-5)``, with the unbiased variance, as published."""

    def __init__(self, dim: int) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(dim), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, dim]`` to the same shape."""
        return x * (self.alpha * torch.rsqrt(1e-5 + x.var(dim=-1, keepdim=True)))


class FlowBlock(nn.Module):
    """A residual block whose norm and whose output are modulated by the condition."""

    def __init__(self, dim: int) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.in_ln = LayerNorm(dim, eps=1e-6, in_float32=False)
        self.mlp = nn.Sequential(Linear(dim, dim, bias=True), nn.SiLU(), Linear(dim, dim, bias=True))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(dim, 3 * dim, bias=True))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        """Map ``[n, dim]`` to the same shape."""
        out: Tensor = x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)
        return out


class FinalLayer(nn.Module):
    """The last norm, without weights, and its projection."""

    def __init__(self, dim: int, width: int) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.linear = Linear(dim, width, bias=True)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(dim, 2 * dim, bias=True))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Map ``[n, dim]`` to ``[n, width]``."""
        plain = functional.layer_norm(x, x.shape[-1:], None, None, 1e-6)
        out: Tensor = self.linear(plain * (1 + scale) + shift)
        return out


MOMENTS: Final[Mapping[str, int]] = {"lsd": 2, "flow_matching": 1, "drifting": 0, "pointwise": 0}
"""By kind of head, the number of times in its condition."""


class FlowNet(nn.Module):
    """Makes a latent from noise under a condition (Li et al. 2024, an MLP that a transformer conditions)."""

    def __init__(self, kind: str, dim: int, depth: int, condition: int, width: int) -> None:
        """Create the network without weights, which are loaded later."""
        super().__init__()
        self.kind, self.dim = kind, dim
        self.time_embed = nn.ModuleList(TimeEmbedding(dim, 128) for _ in range(MOMENTS[kind]))
        self.cond_embed = Linear(condition, dim, bias=True)
        self.input_proj = Linear(width, dim, bias=True)
        self.res_blocks = nn.ModuleList(FlowBlock(dim) for _ in range(depth))
        self.final_layer = FinalLayer(dim, width)

    def prepare(self) -> None:
        """Finish loading: combine all modulations into one product, and compute the times' embeddings."""
        steps = EULER_STEPS if self.kind == "flow_matching" else 1
        moments: list[Tensor] = []
        for step in range(steps):
            times = (step / steps, (step + 1) / steps)[: len(self.time_embed)]
            parts = [embed(time) for embed, time in zip(self.time_embed, times, strict=True)]
            moments.append(torch.stack(parts).mean(dim=0) if parts else torch.zeros(1, self.dim))
        self.moments = nn.Parameter(torch.stack(moments), requires_grad=False)
        linears = [layer.adaLN_modulation[1] for layer in (*self.res_blocks, self.final_layer)]
        weight, bias = (torch.cat([getattr(it, part).data for it in linears]) for part in ("weight", "bias"))
        self.modulation = Linear.around(weight, nn.Parameter(bias, requires_grad=False))
        for layer in (*self.res_blocks, self.final_layer):
            del layer.adaLN_modulation
        del self.time_embed

    def forward(self, condition: Tensor, noise: Tensor) -> Tensor:
        """Map condition ``[n, condition]`` and noise ``[n, width]`` to a latent ``[n, width]``."""
        embedded, sample = self.cond_embed(condition), noise
        steps = len(self.moments)
        for step in range(steps):
            flow = self._flow(embedded + self.moments[step], sample)
            sample = flow if self.kind == "drifting" else sample + flow / steps
        return sample

    def _flow(self, condition: Tensor, x: Tensor) -> Tensor:
        parts = self.modulation(functional.silu(condition)).split(self.dim, dim=-1)
        x = self.input_proj(x)
        for index, block in enumerate(self.res_blocks):
            x = block(x, *parts[3 * index : 3 * index + 3])
        out: Tensor = self.final_layer(x, *parts[-2:])
        return out


class Conditioner(nn.Module):
    """The embeddings of text tokens; with a projection their table has a low rank."""

    def __init__(self, entries: int, dim: int, rank: int | None) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.embed = nn.Embedding(entries, rank or dim)
        self.proj = None if rank is None else Linear(rank, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 ``[n, T]`` to ``[n, T, dim]``."""
        out: Tensor = self.embed(tokens)
        return out if self.proj is None else self.proj(out)


class FlowLM(nn.Module):
    """The language model of latents: text and a voice in, latents out."""

    emb_std: Tensor
    emb_mean: Tensor
    bos_emb: Tensor
    speaker_proj_weight: Tensor
    bos_before_voice: Tensor

    def __init__(self, config: Mapping[str, Any], latent: int, voice: int, shape: PocketShape) -> None:
        """Create the model without weights, which are loaded later.

        ``latent`` is the width of its output, ``voice`` that of a voice's latents.
        """
        super().__init__()
        transformer, flow, table = config["transformer"], config["flow"], config["lookup_table"]
        dim, z_dim = transformer["d_model"], config.get("z_dim")
        hidden = transformer.get("dim_feedforward") or int(dim * transformer["hidden_scale"])
        self.conditioner = Conditioner(table["n_bins"] + 1, dim, table.get("rank"))
        self.transformer = FlowTransformer(dim, hidden, float(transformer["max_period"]), shape)
        self.flow_net = FlowNet(flow.get("type", "lsd"), flow["dim"], flow["depth"], z_dim or dim, latent)
        self.input_linear = Linear(latent, dim)
        self.out_norm = LayerNorm(dim, eps=1e-5, in_float32=False)
        self.z_proj = None if z_dim is None else Linear(dim, z_dim)
        self.out_eos = Linear(z_dim or dim, 1, bias=True)
        for name, sizes in {
            "emb_std": (latent,),
            "emb_mean": (latent,),
            "bos_emb": (latent,),
            "speaker_proj_weight": (dim, voice),
            **({"bos_before_voice": (1, 1, dim)} if config.get("insert_bos_before_voice") else {}),
        }.items():
            setattr(self, name, nn.Parameter(torch.empty(sizes), requires_grad=False))


class ReadStage(ExportedStage):
    """Reads text or a voice into the state: the first ``count`` int64 ``[n]`` positions of the inputs.

    ``tokens`` int64 ``[n, T]`` has at each position a token of the text, :data:`BOS` for the start of a
    voice, or :data:`HEARD`, for which the latent of a voice at the same position of ``heard [n, T, voice]``
    is read.
    """

    def __init__(self, model: FlowLM, *, clones: bool) -> None:
        """Use a loaded model; ``clones``: it has weights for recorded voices."""
        super().__init__(list(model.transformer.specs()))
        self.reader, self.clones = model, clones
        self.inputs = ("tokens", "count", "heard") if clones else ("tokens", "count")
        self.outputs = ()

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        assert isinstance(step, MaskedStep)
        tokens, count, *heard = inputs
        x = self.reader.conditioner(tokens.clamp(min=0))
        if heard:
            x = torch.where((tokens == HEARD)[..., None], heard[0] @ self.reader.speaker_proj_weight.T, x)
            if hasattr(self.reader, "bos_before_voice"):
                x = torch.where((tokens == BOS)[..., None], self.reader.bos_before_voice, x)
        self.reader.transformer(x, step, count)
        return ()

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        tokens = torch.zeros(rows, READ_POSITIONS, dtype=torch.int64)
        count = torch.ones(rows, dtype=torch.int64)
        voice = self.reader.speaker_proj_weight.shape[1]
        return (tokens, count, torch.zeros(rows, READ_POSITIONS, voice)) if self.clones else (tokens, count)


class LatentStage(ExportedStage):
    """Makes the latent ``next [n, width]`` that follows ``latent``, from ``noise``; ``eos [n]`` scores the
    end of speech.

    A ``latent`` of NaN means the start of speech.
    """

    inputs, outputs = ("latent", "noise"), ("next", "eos")

    def __init__(self, model: FlowLM) -> None:
        """Use a loaded model."""
        super().__init__(list(model.transformer.specs()))
        self.model = model

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        assert isinstance(step, MaskedStep)
        model, (latent, noise) = self.model, inputs
        heard = torch.where(latent.isnan(), model.bos_emb, latent)
        out = model.out_norm(model.transformer(model.input_linear(heard)[:, None], step, 1))[:, 0]
        if model.z_proj is not None:
            out = model.z_proj(out)
        return model.flow_net(out, noise), model.out_eos(out)[:, 0]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        width = self.model.bos_emb.shape[0]
        return torch.zeros(rows, width), torch.zeros(rows, width)
