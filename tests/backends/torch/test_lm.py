"""Language models compared with upstream's, for every published shape."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from moshi.conditioners.base import ConditionAttributes, ConditionTensors, TensorCondition
from moshi.models import loaders
from moshi.modules.lora import replace_all_linear_with_lora
from moshi.run_inference import get_condition_tensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.quantised import int8_linears
from antiphon.backends.torch.state import State
from antiphon.backends.torch.weights import load_lm, merge_lora
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from tests.backends.torch.small import SHAPES, Alone, Greedy, LMPair, make_lm_pair
from tests.support.make_checkpoint import make_checkpoint

FRAMES = 56  # more than twice the context of 24
NEAR_TIE = 1e-4


@pytest.fixture(scope="session", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LMPair:
    with torch.no_grad():
        return make_lm_pair(tmp_path_factory.mktemp("lm") / request.param, request.param)


def voices(pair: LMPair, seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(pair.spec.card, (*shape, pair.spec.n_q - pair.spec.dep_q), generator=generator)


def conditions(pair: LMPair) -> ConditionTensors | None:
    if pair.upstream.fuser is None:
        return None
    return get_condition_tensors(pair.family, pair.upstream, batch_size=1, cfg_coef=1.0)


def assert_alone(pair: LMPair, codes: Tensor, got: list[tuple[Tensor, Tensor]]) -> int:
    """Compare a session with upstream alone, up to the first choice upstream nearly tied; count frames."""
    alone = Alone(pair)
    want = alone.run(codes, conditions(pair))
    for frame, ((tokens, heads), (want_tokens, want_heads)) in enumerate(zip(got, want, strict=True)):
        if alone.gaps[frame] <= NEAR_TIE:
            return frame
        if frame >= pair.spec.max_delay:
            assert torch.equal(tokens, want_tokens), f"frame {frame}"
        if pair.spec.extra_heads:
            assert (heads - want_heads).abs().max() <= 1e-5
    return len(got)


def test_sessions_that_join_pause_and_restart_equal_upstream_alone(pair: LMPair) -> None:
    generator, rows = pair.ours, 3
    state = State(generator.specs(), rows)
    random = torch.Generator().manual_seed(5)
    said: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    heard: dict[tuple[int, int], list[Tensor]] = {}
    life, seen = [0] * rows, [0] * rows
    for tick in range(FRAMES + 34):
        mask = torch.rand(rows, generator=random) < 0.8
        mask &= torch.tensor([tick >= 3 * row for row in range(rows)])
        if tick == 30:
            state.reset([1])
            life[1], seen[1] = 1, 0
        codes = voices(pair, 100 + tick, rows)
        named = mask.nonzero().flatten().tolist()[:: (-1) ** tick]
        if not named:
            continue
        step = state.step(named, [1 + seen[row] for row in named])
        out = generator.step(codes[named], step, Greedy())
        heads = generator.model.pause_heads(out.hidden) if pair.spec.extra_heads else torch.empty(rows, 0)
        for place, row in enumerate(named):
            heard.setdefault((row, life[row]), []).append(codes[row])
            said.setdefault((row, life[row]), []).append((out.tokens[place], heads[place]))
            seen[row] += 1
    compared = {key: assert_alone(pair, torch.stack(heard[key]), said[key]) for key in said}
    assert len(compared) == 4
    assert max(compared.values()) > 2 * 24


def test_tokens_vary(pair: LMPair) -> None:
    """A parity test over a model that always says the same would prove nothing."""
    replies = Alone(pair).run(voices(pair, 1, FRAMES), conditions(pair))
    said = torch.stack([tokens for tokens, _ in replies[pair.spec.max_delay :]])
    assert len(said.unique(dim=0)) > FRAMES // 4


def test_a_prompt_read_in_one_pass_equals_one_read_step_by_step(pair: LMPair) -> None:
    model = pair.ours.model
    tokens = torch.cat([voices(pair, 2, 40), voices(pair, 3, 40)], dim=1)[:, : pair.spec.n_q]
    text = torch.randint(pair.spec.text_card, (40, 1), generator=torch.Generator().manual_seed(4))
    prompt = torch.cat([text, tokens.repeat(1, 2)[:, : pair.spec.n_q]], dim=1).t()[None]
    one, wide = State(model.specs(), 1), State(model.specs(), 1)
    steps = [model(prompt[..., i : i + 1], one.step())[0] for i in range(40)]
    passes = [model(part, wide.step())[0] for part in prompt.split((7, 30, 3), dim=-1)]
    assert torch.allclose(torch.cat(steps, 1), torch.cat(passes, 1), atol=1e-4)
    for name, tensor in one.tensors.items():
        assert torch.allclose(tensor, wide.tensors[name], atol=1e-4), name


def test_a_batch_equals_its_rows_alone_beside_loud_and_broken_neighbours(moshi: LMPair) -> None:
    codes = voices(moshi, 9, 30, 4)
    together, alone = State(moshi.ours.specs(), 4), State(moshi.ours.specs(), 1)
    together.tensors["lm.0.k"][3].fill_(float("nan"))
    together.tensors["lm.1.v"][2].fill_(1e6)
    for frame in codes:
        out = moshi.ours.step(frame, together.step(), Greedy())
        assert torch.equal(out.tokens[:1], moshi.ours.step(frame[:1], alone.step(), Greedy()).tokens)


def test_a_restored_row_continues_bit_identically(moshi: LMPair) -> None:
    codes = voices(moshi, 10, 40, 2)
    state, other = State(moshi.ours.specs(), 2), State(moshi.ours.specs(), 2)
    for frame in codes[:30]:
        moshi.ours.step(frame, state.step(), Greedy())
    for row in range(2):
        other.restore(row, state.snapshot(row))
    for frame in codes[30:]:
        out = moshi.ours.step(frame, state.step(), Greedy())
        assert torch.equal(out.hidden, moshi.ours.step(frame, other.step(), Greedy()).hidden)


@pytest.mark.parametrize(
    ("form", "share", "nearest", "furthest"),
    [(KVForm.INT8, 0.6, 0, 0.02), (KVForm.INT8_INT4, 0.4, 0.02, 0.1), (KVForm.INT4, 0.35, 0.02, 0.2)],
)
def test_rounded_keys_and_values_stay_close(
    moshi: LMPair, form: KVForm, share: float, nearest: float, furthest: float
) -> None:
    config = moshi.ours.model.config
    with torch.device("meta"):
        model = LanguageModel(config, steps=moshi.spec.dep_q, compute=Compute(kv=form))
    model.load_state_dict(moshi.ours.model.state_dict(), assign=True)
    small, full = State(model.specs(), 2), State(moshi.ours.specs(), 2)
    # A context of 24 in pages of 64 slots: the values alone do not shrink.
    assert small.bytes() < share * State(moshi.ours.model.specs(), 2).bytes()
    prompt = torch.cat(
        [torch.zeros(30, 2, 1, dtype=torch.int64), voices(moshi, 11, 30, 2).repeat(1, 1, 2)], dim=2
    )
    worst = 0.0
    for tokens in prompt:
        got, _ = model(tokens[..., None], small.step())
        want, _ = moshi.ours.model(tokens[..., None], full.step())
        worst = max(worst, float((got - want).norm() / want.norm()))
    assert nearest < worst < furthest


def test_tts_hears_its_voice_its_condition_and_a_second_text(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path, kind="tts", dtype="float32")))
    spec = checkpoint.spec.lm
    assert spec is not None
    path, config = checkpoint.file("lm"), copy.deepcopy(dict(spec.config))
    upstream = loaders.get_moshi_lm(path, copy.deepcopy(config), dtype=torch.float32)
    ours = load_lm(path, config, steps=spec.dep_q, family="tts", cross_positions=6)
    generator = Generator(ours.prepare(), spec)
    wav = TensorCondition(torch.randn(1, 6, 16), torch.ones(1, 6, dtype=torch.bool))
    attributes = ConditionAttributes(text={"cfg": "2.0"}, tensor={"speaker_wavs": wav})
    assert upstream.condition_provider is not None
    assert upstream.fuser is not None
    provided = upstream.condition_provider.prepare_and_provide([attributes])
    added, crossed = upstream.fuser.get_sum(provided), upstream.fuser.get_cross(provided)
    assert added is not None
    assert crossed is not None
    state = State(generator.specs(), 1)
    generator.model.condition = added[0]
    for name, tensor in generator.model.transformer.voice(crossed).items():
        state.tensors[name][0].copy_(tensor)
    pair, entries = LMPair(spec, upstream, generator, "tts"), spec.text_card + 1
    got: list[Tensor] = []

    def second_text(tokens: Tensor) -> Tensor:
        return tokens + entries * (len(got) % 9)

    while len(got) < FRAMES:
        out = generator.step(voices(pair, 0, 1), state.step(), Greedy(second_text))
        got.append(out.tokens[0])

    def upstream_hook(tokens: Tensor) -> None:
        tokens += entries * ((len(alone.gaps) - 1) % 9)

    alone = Alone(pair)
    want = alone.run(voices(pair, 0, FRAMES), provided, upstream_hook)
    assert min(alone.gaps) > NEAR_TIE
    for tokens, (want_tokens, _) in zip(got[spec.max_delay :], want[spec.max_delay :], strict=True):
        assert torch.equal(tokens, want_tokens)


def test_an_adapter_is_merged_as_upstream_merges_it(moshi: LMPair, tmp_path: Path) -> None:
    config = copy.deepcopy(moshi.ours.model.config) | {"lora": True, "lora_rank": 2, "lora_scaling": 1.5}
    path, lora = tmp_path / "lm.safetensors", tmp_path / "lora.safetensors"
    save_file({name: tensor.clone() for name, tensor in moshi.upstream.state_dict().items()}, path)
    adapted = copy.deepcopy(moshi.upstream)
    replace_all_linear_with_lora(adapted, 2, 1.5)
    parts = {name: tensor for name, tensor in adapted.state_dict().items() if "lora_" in name}
    adapters = {name: torch.randn_like(tensor) * 0.1 for name, tensor in parts.items()}
    save_file(adapters, lora)
    upstream = loaders.get_moshi_lm(
        path, copy.deepcopy(config), dtype=torch.float32, lora_weights=lora, fuse_lora=True
    )
    ours = load_lm(path, config, steps=moshi.spec.dep_q, lora=lora)
    plain = load_lm(path, config, steps=moshi.spec.dep_q)
    save_file({name: tensor.clone() for name, tensor in upstream.state_dict().items()}, path)
    merged = load_lm(path, config, steps=moshi.spec.dep_q)
    changed = 0
    for name, tensor in merged.state_dict().items():
        assert torch.allclose(tensor, ours.state_dict()[name], atol=1e-6), name
        changed += not torch.equal(tensor, plain.state_dict()[name])
    assert changed == len(adapters) // 2


def test_an_adapter_that_fits_nothing_is_named() -> None:
    pair = {"x.lora_A.weight": torch.zeros(2, 8), "x.lora_B.weight": torch.zeros(4, 2)}
    with pytest.raises(CheckpointFormatError, match="adapts x, which the model does not have"):
        merge_lora({}, pair, 1.0)
    with pytest.raises(CheckpointFormatError, match=r"\(4, 2\) x \(2, 8\) does not fit x, which is \(4, 9\)"):
        merge_lora({"x.weight": torch.zeros(4, 9)}, pair, 1.0)


def test_upstreams_int8_files_load_with_their_scales_in_float32(moshi: LMPair, tmp_path: Path) -> None:
    path = tmp_path / "lm.q8.safetensors"
    tensors, wanted = {}, {}
    for name, tensor in moshi.upstream.state_dict().items():
        is_linear = tensor.dim() == 2 and "emb" not in name
        wanted[name] = tensor.clone()
        tensors[name] = wanted[name]
        if is_linear:
            scale = tensor.abs().amax(dim=1)
            tensors[name] = torch.round(tensor / scale[:, None] * 127).to(torch.int8)
            tensors[f"{name}_scb"] = scale
            wanted[name] = tensors[name].float() * (scale[:, None] / 127)
    save_file(tensors, path)
    config = copy.deepcopy(moshi.ours.model.config) | {"quantize": True}
    loaded = load_lm(path, config, steps=moshi.spec.dep_q)
    save_file(wanted, path)
    found, layers = loaded.state_dict(), 0
    for name, tensor in load_lm(path, config, steps=moshi.spec.dep_q).state_dict().items():
        got = found.pop(name)
        if got.dtype == torch.int8:
            layers += 1
            got = got.float() * found.pop(f"{name.removesuffix('weight')}scale")[:, None]
        assert torch.equal(tensor, got), name
    assert not found
    assert layers == len(int8_linears(loaded)) > 4 * config["num_layers"]


def test_int8_under_an_adapter_becomes_floating_point(moshi: LMPair, tmp_path: Path) -> None:
    path, lora = tmp_path / "lm.safetensors", tmp_path / "lora.safetensors"
    tensors = {name: tensor.clone() for name, tensor in moshi.upstream.state_dict().items()}
    name = "transformer.layers.0.gating.linear_in.weight"
    scale = tensors[name].abs().amax(dim=1, keepdim=True) / 127
    tensors |= {name: torch.round(tensors[name] / scale).to(torch.int8), f"{name}_scale": scale}
    save_file(tensors, path)
    base = name.removesuffix(".weight")
    outer = {"A": torch.randn(2, tensors[name].shape[1]), "B": torch.randn(len(scale), 2)}
    save_file({f"{base}.lora_{side}.weight": tensor for side, tensor in outer.items()}, lora)
    config = moshi.ours.model.config
    loaded = load_lm(path, config, steps=moshi.spec.dep_q, lora=lora)
    assert not int8_linears(loaded)
    want = tensors[name].float() * scale + 2.0 * outer["B"] @ outer["A"]
    got = loaded.get_parameter("transformer.layers.0.feed_forward.linear_in.weight")
    assert torch.allclose(got, want, atol=1e-6)


def test_integers_that_mean_nothing_are_refused(moshi: LMPair, tmp_path: Path) -> None:
    path, config = tmp_path / "lm.safetensors", moshi.ours.model.config
    tensors = {name: tensor.clone() for name, tensor in moshi.upstream.state_dict().items()}
    name = "text_linear.weight"
    save_file(tensors | {name: tensors[name].to(torch.int8)}, path)
    with pytest.raises(CheckpointFormatError, match=f"'{name}' is INT8, but neither '{name}_scale' nor"):
        load_lm(path, config, steps=8)
    name = "text_emb.weight"
    scale = torch.ones(len(tensors[name]), 1)
    save_file(tensors | {name: tensors[name].to(torch.int8), f"{name}_scale": scale}, path)
    with pytest.raises(CheckpointFormatError, match="'text_emb' as INT8, but only linear layers can be"):
        load_lm(path, config, steps=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positional_embedding": "sin"}, "positional_embedding is 'sin'; it can be rope"),
        ({"norm_emb": True}, "norm_emb is True; only False can be run"),
        ({"depformer_pos_emb": "rope"}, "depformer_pos_emb is 'rope'; only 'none' is supported"),
        ({"depformer_gating": "none"}, "a depformer without gating cannot be run"),
    ],
)
def test_what_cannot_be_run_is_said(moshi: LMPair, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        LanguageModel(moshi.ours.model.config | change, steps=8)


def test_a_condition_of_an_unknown_family_is_said(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path, kind="tts", dtype="float32")))
    assert checkpoint.spec.lm is not None
    message = r"a moshi model with the conditions \['cfg', 'speaker_wavs'\] cannot be run"
    with pytest.raises(UnsupportedError, match=message):
        load_lm(checkpoint.file("lm"), checkpoint.spec.lm.config, steps=8, family="moshi", cross_positions=5)


def test_only_heard_steps_of_personaplex_are_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_checkpoint(tmp_path_factory.mktemp("persona"), kind="personaplex", dtype="float32")
    assert "linears.15.weight" in load_file(folder / "model.safetensors")
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.spec.lm is not None
    model = load_lm(checkpoint.file("lm"), checkpoint.spec.lm.config, steps=checkpoint.spec.lm.dep_q)
    assert model.depformer is not None
    assert len(model.depformer.linears) == 8
