"""Prompts of the torch backend, against upstream's loop and our own with every token forced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from moshi.models import loaders
from moshi.models.lm import LMGen
from moshi.utils.compile import no_compile
from torch import Tensor

from antiphon.backends.base import FloatArray, IntArray, StepInputs, StepOutputs
from antiphon.backends.torch.backend import TorchBackend
from antiphon.backends.torch.factory import make
from antiphon.backends.torch.generation import Generated, TokenChooser
from antiphon.backends.torch.priming import SnapshotCache
from antiphon.backends.torch.state import Step
from antiphon.errors import StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec
from tools.make_checkpoint import make_checkpoint

GREEDY = SamplingParameters(text_temperature=0, audio_temperature=0)
SAMPLED = SamplingParameters(text_seed=5, audio_seed=6)
CONTEXT, PROMPT_FRAMES, USER_FRAMES = 48, 30, 70
SLOTS = 4


@pytest.fixture(scope="session")
def persona(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("persona")
    return load_checkpoint(
        str(make_checkpoint(folder, kind="personaplex", dtype="float32", context=CONTEXT, num_layers=3))
    )


@pytest.fixture(scope="session")
def lm(persona: Checkpoint) -> LMSpec:
    assert persona.spec.lm is not None
    return persona.spec.lm


@pytest.fixture(scope="session")
def prompt(lm: LMSpec) -> Prompt:
    return random_prompt(lm, seed=1)


def random_prompt(lm: LMSpec, seed: int, count: int = PROMPT_FRAMES) -> Prompt:
    random = np.random.default_rng(seed)
    text = random.integers(0, lm.text_card, (count, 1))
    return Prompt(np.concatenate([text, random.integers(0, lm.card, (count, lm.n_q))], 1).astype(np.int32))


def speech(seed: int, frames: int = USER_FRAMES) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 0.1, (frames, 1920)).astype(np.float32)


def prime(backend: TorchBackend, row: int, prompt: Prompt) -> int:
    """Prime a row; returns how many calls that took."""
    calls = 1
    while not backend.prime(row, prompt).is_done:
        calls += 1
    return calls


def talk(backend: TorchBackend, row: int, pcm: FloatArray) -> list[StepOutputs]:
    """Step one row, which goes on where it is; the others hold garbage."""
    rows = next(bucket for bucket in backend.info.buckets if bucket > row)
    mine, replies = np.arange(rows) == row, []
    for frame in pcm:
        block = np.full((rows, 1920), np.nan, dtype=np.float32)
        block[row] = frame
        replies.append(backend.step(StepInputs(mine, np.zeros(rows, np.bool_), block)))
    return replies


def said(replies: list[StepOutputs], row: int) -> tuple[list[int], FloatArray]:
    """The tokens and PCM of a row, which must have emitted every time."""
    assert all(reply.emitted[row] for reply in replies)
    tokens = [int(reply.text_tokens[row]) for reply in replies if reply.text_tokens is not None]
    return tokens, np.stack([reply.pcm[row] for reply in replies if reply.pcm is not None])


@dataclass
class Forced:
    """Chooses a prompt's tokens as long as there are any, then leaves the choice to another."""

    prompt: Prompt
    lm: LMSpec
    inner: TokenChooser

    def known(self, stream: int, frames: Tensor) -> int | None:
        frame = int(frames.max()) + 1 - self.lm.delays[stream]
        return int(self.prompt.frames[max(frame, 0), stream]) if frame < self.prompt.count else None

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        token = self.known(0, frames)
        return self.inner.text(logits, step, frames) if token is None else torch.full_like(frames, token)

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        token = self.known(1 + codebook, frames)
        if token is not None:
            return torch.full_like(frames, token)
        return self.inner.audio(codebook, logits, frames)


def force_frame_by_frame(backend: TorchBackend, row: int, prompt: Prompt, lm: LMSpec) -> None:
    """What priming stands for: a step for each frame, all of it sampled and thrown away."""
    generator = backend._pipeline.generator
    assert generator is not None
    backend._pipeline.state.reset([row])
    step = generator.step

    def forced(codes: Tensor, state: Step, choose: TokenChooser, filled: int | None = None) -> Generated:
        return step(codes, state, Forced(prompt, lm, choose), filled)

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(generator, "step", forced)
        for index, frame in enumerate(prompt.frames):
            backend._think_alone(row, torch.from_numpy(frame[1 + lm.dep_q :]).long(), index + 1)
    backend._frames[row] = prompt.count


def upstream_replies(checkpoint: Checkpoint, prompt: Prompt, pcm: FloatArray) -> tuple[list[int], FloatArray]:
    """Upstream's modules and loop, every token of the prompt forced through the hooks it has for that."""
    lm = checkpoint.spec.lm
    assert lm is not None
    mimi = loaders.get_mimi(
        checkpoint.file("mimi"),
        dict(checkpoint.spec.mimi.config),
        num_codebooks=checkpoint.spec.mimi.codebooks,
    )
    model = loaders.get_moshi_lm(checkpoint.file("lm"), dict(lm.config), dtype=torch.float32)
    model.dep_q = lm.dep_q  # the steps beyond are heard by nobody
    at = 0

    def force(stream: int, tokens: Tensor) -> None:
        frame = at + 1 - lm.delays[stream]
        if frame < prompt.count:
            tokens.fill_(int(prompt.frames[max(frame, 0), stream]))

    def force_voice(tokens: Tensor) -> None:
        for codebook in range(lm.dep_q):
            force(1 + codebook, tokens[:, codebook])

    generation = LMGen(
        model, use_sampling=False, on_text_hook=lambda tokens: force(0, tokens), on_audio_hook=force_voice
    )
    tokens, heard = [], []
    with no_compile(), mimi.streaming(1), generation.streaming(1):
        for frame in prompt.frames:
            generation.step(torch.from_numpy(frame[1 + lm.dep_q :]).long().view(1, -1, 1))
            at += 1
        for frame in pcm:
            out = generation.step(mimi.encode(torch.from_numpy(frame).view(1, 1, -1)))
            at += 1
            assert out is not None
            tokens.append(int(out[0, 0, 0]))
            heard.append(mimi.decode(out[:, 1:])[0, 0].numpy())
    return tokens, np.stack(heard)


def test_a_primed_row_equals_upstream_with_every_token_forced(persona: Checkpoint, prompt: Prompt) -> None:
    backend = make(persona, slots=SLOTS, device="cpu")
    backend.set_parameters(2, GREEDY)
    prime(backend, 2, prompt)
    tokens, pcm = said(talk(backend, 2, speech(1)), 2)
    wanted, wanted_pcm = upstream_replies(persona, prompt, speech(1))
    assert tokens == wanted
    assert len(set(tokens)) > USER_FRAMES // 4
    np.testing.assert_allclose(pcm, wanted_pcm, atol=1e-4 * np.abs(wanted_pcm).max())


@pytest.mark.parametrize("pass_frames", [1, 7, 64])
def test_a_primed_row_equals_one_that_was_forced_frame_by_frame(
    persona: Checkpoint, prompt: Prompt, lm: LMSpec, pass_frames: int
) -> None:
    one, other = make(persona, slots=SLOTS, device="cpu"), make(persona, slots=SLOTS, device="cpu")
    assert one._primer is not None
    one._primer.pass_frames = pass_frames
    for backend in (one, other):
        backend.set_parameters(1, SAMPLED)
    assert prime(one, 1, prompt) == 1 + -(-(PROMPT_FRAMES - 1) // pass_frames)
    force_frame_by_frame(other, 1, prompt, lm)
    mine, theirs = said(talk(one, 1, speech(2)), 1), said(talk(other, 1, speech(2)), 1)
    assert mine[0] == theirs[0]
    np.testing.assert_allclose(mine[1], theirs[1], atol=1e-4)


def test_a_prompt_as_long_as_the_context_is_the_longest(persona: Checkpoint, lm: LMSpec) -> None:
    backend = make(persona, slots=1, device="cpu")
    other = make(persona, slots=1, device="cpu")
    longest = random_prompt(lm, 3, CONTEXT)
    prime(backend, 0, longest)
    force_frame_by_frame(other, 0, longest, lm)
    assert said(talk(backend, 0, speech(3)), 0)[0] == said(talk(other, 0, speech(3)), 0)[0]
    with pytest.raises(UnsupportedError, match="a prompt of 49 frames, but this model takes 2 to 48"):
        backend.prime(0, random_prompt(lm, 3, CONTEXT + 1))


def test_the_second_row_with_a_prompt_gets_a_copy_and_its_own_dice(
    persona: Checkpoint, prompt: Prompt
) -> None:
    backend = make(persona, slots=SLOTS, device="cpu")
    for row, seed in enumerate((5, 5, 9)):
        backend.set_parameters(row, replace(SAMPLED, text_seed=seed, audio_seed=seed))
    calls = [prime(backend, row, prompt) for row in range(3)]
    assert calls[0] > 2
    assert calls[1:] == [1, 1]
    replies = [said(talk(backend, row, speech(4)), row) for row in range(3)]
    assert replies[0][0] == replies[1][0]
    np.testing.assert_allclose(replies[0][1], replies[1][1], atol=1e-4)
    assert replies[0][0] != replies[2][0]
    assert backend.prime(3, prompt).is_copied
    assert backend._primer is not None
    ring = backend._pipeline.state.tensors["lm.0.k"][0]
    assert backend._primer.cache.bytes < 6 * ring.nbytes * PROMPT_FRAMES / CONTEXT + 10_000


def test_a_copied_row_equals_a_computed_one_with_int8_keys_and_values(
    persona: Checkpoint, prompt: Prompt
) -> None:
    backend = make(persona, slots=2, device="cpu", kv="int8")
    for row in range(2):
        backend.set_parameters(row, SAMPLED)
    calls = [prime(backend, row, prompt) for row in range(2)]
    assert calls == [5, 1]
    replies = [said(talk(backend, row, speech(4)), row)[0] for row in range(2)]
    assert replies[0] == replies[1]


def test_embedded_inputs_stand_for_their_frames(persona: Checkpoint, prompt: Prompt, lm: LMSpec) -> None:
    backend = make(persona, slots=2, device="cpu")
    assert backend._primer is not None
    generator = backend._pipeline.generator
    assert generator is not None
    tokens = backend._primer._inputs(torch.from_numpy(prompt.frames).long(), 0, 19)
    embedded = generator.model.embed(tokens[None])[0].numpy()
    frames = prompt.frames.copy()
    frames[:18] = 0  # nobody looks at them any more; of frame 18 what is delayed is still due
    prime(backend, 0, prompt)
    prime(backend, 1, Prompt(frames, embedded=embedded))
    assert said(talk(backend, 0, speech(5)), 0)[0] == said(talk(backend, 1, speech(5)), 1)[0]


def test_a_voice_becomes_the_codes_that_the_codec_makes_of_it(
    persona: Checkpoint, prompt: Prompt, lm: LMSpec
) -> None:
    backend = make(persona, slots=2, device="cpu")
    voice = speech(6, 20)
    mimi, state = backend._pipeline.mimi, backend._pipeline.state
    codes = [mimi.encode(torch.from_numpy(frame)[None], state.step(1))[0, :, 0] for frame in voice]
    state.reset([0])
    frames = prompt.frames.copy()
    frames[:20, 1 : 1 + lm.dep_q] = torch.stack(codes)[:, : lm.dep_q].numpy()
    prime(backend, 0, Prompt(frames))
    calls = prime(backend, 1, Prompt(prompt.frames, voice=voice))
    assert calls == 3 + 4 + 1
    assert said(talk(backend, 0, speech(7)), 0)[0] == said(talk(backend, 1, speech(7)), 1)[0]


def test_other_rows_are_not_touched_and_go_on_between_passes(persona: Checkpoint, prompt: Prompt) -> None:
    backend, quiet = make(persona, slots=SLOTS, device="cpu"), make(persona, slots=SLOTS, device="cpu")
    replies, wanted = [], []
    done = False
    for frame in speech(8, 20):
        if not done:
            done = backend.prime(1, prompt).is_done
        replies += talk(backend, 0, frame[None])
        wanted += talk(quiet, 0, frame[None])
    assert done
    for mine, theirs in zip(replies, wanted, strict=True):
        assert mine.pcm is not None
        assert theirs.pcm is not None
        assert np.array_equal(mine.pcm[0], theirs.pcm[0])


@pytest.mark.parametrize("disturb", ["move", "reset", "other prompt"])
def test_a_row_disturbed_midway_is_right_in_the_end(
    persona: Checkpoint, prompt: Prompt, lm: LMSpec, disturb: str
) -> None:
    backend = make(persona, slots=SLOTS, device="cpu")
    prime(backend, 0, prompt)
    wanted = said(talk(backend, 0, speech(9)), 0)[0]
    assert backend._primer is not None
    backend._primer.cache = SnapshotCache(0)
    row = 1
    backend.prime(row, prompt)
    if disturb == "move":
        backend.move(1, 2)
        row = 2
        assert backend.prime(row, prompt).done == 16
    elif disturb == "reset":
        everyone = np.ones(2, np.bool_)
        backend.step(StepInputs(~everyone, everyone, np.zeros((2, 1920), np.float32)))
        assert backend.prime(row, prompt).done == 8
    else:
        backend.prime(row, random_prompt(lm, 8))
        assert backend.prime(row, prompt).done == 8
    prime(backend, row, prompt)
    assert said(talk(backend, row, speech(9)), row)[0] == wanted


def test_the_cache_throws_out_what_was_used_longest_ago() -> None:
    cache = SnapshotCache(100)
    for key in "abc":
        cache.put(key, {"x": torch.zeros(10)})  # 40 bytes
        assert cache.get("a") is not None or key == "c"
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    cache.put("d", {"x": torch.zeros(26)})
    assert cache.get("d") is None
    assert (len(cache), cache.bytes) == (2, 80)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frames: frames[:1], "a prompt of 1 frames, but this model takes 2 to 48"),
        (lambda frames: frames[:, :5], r"a prompt of int32 \[30, 5\], but this model needs int32 \[T, 17\]"),
        (lambda frames: frames * 0 - 1, "text tokens go from -1 to -1, this model's from 0 to 256"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(
    persona: Checkpoint, prompt: Prompt, change: Callable[[IntArray], IntArray], words: str
) -> None:
    backend = make(persona, slots=1, device="cpu")
    with pytest.raises(UnsupportedError, match=words):
        backend.prime(0, Prompt(change(prompt.frames)))


def test_a_failing_pass_names_its_row(
    persona: Checkpoint, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(persona, slots=SLOTS, device="cpu")

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(backend._primer, "advance", fail)
    with pytest.raises(StepError) as caught:
        backend.prime(2, prompt)
    assert caught.value.rows == (2,)


def test_a_codec_takes_no_prompt(tmp_path: Path, prompt: Prompt) -> None:
    backend = make(load_checkpoint(str(make_checkpoint(tmp_path, kind="codec"))), slots=1, device="cpu")
    assert not backend.info.can_prime
    with pytest.raises(UnsupportedError, match="a codec model takes no prompt"):
        backend.prime(0, prompt)
