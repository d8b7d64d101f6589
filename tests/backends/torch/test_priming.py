"""Prompts of the torch backend compared with upstream's loop and with forced steps."""

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

from antiphon.backends.base import FRAMES, FloatArray, IntArray, StepInputs, StepOutputs
from antiphon.backends.host import HostBackend
from antiphon.backends.snapshots import SnapshotCache, size_of
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.generation import TokenChooser
from antiphon.backends.torch.loading import make
from antiphon.backends.torch.state import Step, row_bytes
from antiphon.errors import StepError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import LMSpec
from tests.support.make_checkpoint import make_checkpoint

GREEDY = SamplingParameters(text_temperature=0, audio_temperature=0)
SAMPLED = SamplingParameters(text_seed=5, audio_seed=6)
CONTEXT, PROMPT_FRAMES, USER_FRAMES = 48, 30, 40
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


def made(checkpoint: Checkpoint, slots: int, **options: object) -> HostBackend:
    backend = make(checkpoint, slots=slots, device="cpu", **options)  # type: ignore[arg-type]
    assert isinstance(backend, HostBackend)
    return backend


def inside(backend: HostBackend) -> TorchFrames:
    assert isinstance(backend.executor, TorchFrames)
    return backend.executor


def prime(backend: HostBackend, row: int, prompt: Prompt) -> int:
    """Prime a row; returns how many calls that took."""
    calls = 1
    while not backend.prime(row, prompt).is_done:
        calls += 1
    return calls


def talk(backend: HostBackend, row: int, pcm: FloatArray) -> list[StepOutputs]:
    """Step one row, which goes on where it is."""
    rows, continues_elsewhere = np.array([row], np.int32), np.array([False])
    return [backend.step(StepInputs(rows, continues_elsewhere, frame[None])) for frame in pcm]


def said(replies: list[StepOutputs]) -> tuple[list[int], FloatArray]:
    """The tokens and PCM of a row, which must have emitted every time."""
    assert all(reply.emitted[0] for reply in replies)
    tokens = [int(reply.text_tokens[0]) for reply in replies if reply.text_tokens is not None]
    return tokens, np.stack([reply.pcm[0] for reply in replies if reply.pcm is not None])


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


def force_frame_by_frame(backend: HostBackend, row: int, prompt: Prompt, lm: LMSpec) -> None:
    """What priming stands for: a step for each frame, all of it sampled and thrown away."""
    executor = inside(backend)
    generator = executor.pipeline.generator
    assert generator is not None
    executor.reset([row])
    step = generator.step

    def forced(codes: Tensor, state: Step, choose: TokenChooser, *, is_silent: bool = False) -> object:
        return step(codes, state, Forced(prompt, lm, choose), is_silent=is_silent)

    generator.step = forced  # type: ignore[method-assign, assignment]
    for index, frame in enumerate(prompt.frames):
        executor.run_lm_row(row, frame[1 + lm.dep_q :], index + 1)
    generator.step = step  # type: ignore[method-assign]
    stepped = backend.snapshot(row)
    tensors = {**stepped.tensors, FRAMES: np.array(prompt.count)}
    backend.restore(row, replace(stepped, tensors=tensors))


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
    backend = made(persona, SLOTS)
    backend.set_parameters(2, GREEDY)
    prime(backend, 2, prompt)
    tokens, pcm = said(talk(backend, 2, speech(1)))
    wanted, wanted_pcm = upstream_replies(persona, prompt, speech(1))
    assert tokens == wanted
    assert len(set(tokens)) > USER_FRAMES // 4
    np.testing.assert_allclose(pcm, wanted_pcm, atol=1e-4 * np.abs(wanted_pcm).max())


@pytest.mark.parametrize("pass_frames", [1, 7, 64])
def test_a_primed_row_equals_one_that_was_forced_frame_by_frame(
    persona: Checkpoint,
    prompt: Prompt,
    lm: LMSpec,
    pass_frames: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = made(persona, SLOTS), made(persona, SLOTS)
    monkeypatch.setattr(TorchFrames, "pass_frames", pass_frames)
    for backend in (one, other):
        backend.set_parameters(1, SAMPLED)
    assert prime(one, 1, prompt) == 1 + -(-(PROMPT_FRAMES - 1) // pass_frames)
    force_frame_by_frame(other, 1, prompt, lm)
    mine, theirs = said(talk(one, 1, speech(2))), said(talk(other, 1, speech(2)))
    assert mine[0] == theirs[0]
    np.testing.assert_allclose(mine[1], theirs[1], atol=1e-4)


def test_a_prompt_as_long_as_the_context_is_the_longest(persona: Checkpoint, lm: LMSpec) -> None:
    backend = made(persona, 1)
    other = made(persona, 1)
    longest = random_prompt(lm, 3, CONTEXT)
    prime(backend, 0, longest)
    force_frame_by_frame(other, 0, longest, lm)
    assert said(talk(backend, 0, speech(3)))[0] == said(talk(other, 0, speech(3)))[0]
    with pytest.raises(UnsupportedError, match="a prompt of 49 frames, but this model takes 2 to 48"):
        backend.prime(0, random_prompt(lm, 3, CONTEXT + 1))


def test_the_second_row_with_a_prompt_gets_a_copy_and_its_own_dice(
    persona: Checkpoint, prompt: Prompt
) -> None:
    backend = made(persona, SLOTS)
    for row, seed in enumerate((5, 5, 9)):
        backend.set_parameters(row, replace(SAMPLED, text_seed=seed, audio_seed=seed))
    calls = [prime(backend, row, prompt) for row in range(3)]
    assert calls[0] > 2
    assert calls[1:] == [1, 1]
    replies = [said(talk(backend, row, speech(4))) for row in range(3)]
    assert replies[0][0] == replies[1][0]
    np.testing.assert_allclose(replies[0][1], replies[1][1], atol=1e-4)
    assert replies[0][0] != replies[2][0]
    assert backend.prime(3, prompt).is_copied
    assert backend.primer is not None
    ring = inside(backend).pipeline.state.tensors["lm.0.k"][0]
    kept, small = (
        backend.primer.cache.bytes,
        row_bytes(spec for spec in inside(backend).pipeline.state.specs.values() if not spec.is_kept),
    )
    assert kept < 6 * ring.nbytes * PROMPT_FRAMES / CONTEXT + small + 10_000, "rings only as far as filled"


def test_a_copied_row_equals_a_computed_one_with_int8_keys_and_values(
    persona: Checkpoint, prompt: Prompt
) -> None:
    backend = made(persona, 2, kv="int8")
    for row in range(2):
        backend.set_parameters(row, SAMPLED)
    calls = [prime(backend, row, prompt) for row in range(2)]
    assert calls == [5, 1]
    replies = [said(talk(backend, row, speech(4)))[0] for row in range(2)]
    assert replies[0] == replies[1]


def test_embedded_inputs_stand_for_their_frames(persona: Checkpoint, prompt: Prompt, lm: LMSpec) -> None:
    backend = made(persona, 2)
    assert backend.primer is not None
    generator = inside(backend).pipeline.generator
    assert generator is not None
    tokens = backend.primer.inputs(prompt.frames, 0, 19)
    embedded = generator.model.embed(torch.from_numpy(tokens).long()[None])[0].numpy()
    frames = prompt.frames.copy()
    frames[:18] = 0  # nobody looks at them any more; of frame 18 what is delayed is still due
    prime(backend, 0, prompt)
    prime(backend, 1, Prompt(frames, embedded=embedded))
    assert said(talk(backend, 0, speech(5)))[0] == said(talk(backend, 1, speech(5)))[0]


def test_a_voice_becomes_the_codes_that_the_codec_makes_of_it(
    persona: Checkpoint, prompt: Prompt, lm: LMSpec
) -> None:
    backend = made(persona, 2)
    voice = speech(6, 20)
    mimi, state = inside(backend).pipeline.mimi, inside(backend).pipeline.state
    codes = [mimi.encode(torch.from_numpy(frame)[None], state.step([0]))[0, :, 0] for frame in voice]
    state.reset([0])
    frames = prompt.frames.copy()
    frames[:20, 1 : 1 + lm.dep_q] = torch.stack(codes)[:, : lm.dep_q].numpy()
    prime(backend, 0, Prompt(frames))
    calls = prime(backend, 1, Prompt(prompt.frames, voice=voice))
    assert calls == 3 + 4 + 1
    assert said(talk(backend, 0, speech(7)))[0] == said(talk(backend, 1, speech(7)))[0]


def test_other_rows_are_not_touched_and_go_on_between_passes(persona: Checkpoint, prompt: Prompt) -> None:
    backend, quiet = made(persona, SLOTS), made(persona, SLOTS)
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


@pytest.mark.parametrize("disturb", ["reset", "restore", "other prompt"])
def test_a_row_disturbed_midway_is_right_in_the_end(
    persona: Checkpoint, prompt: Prompt, lm: LMSpec, disturb: str
) -> None:
    backend = made(persona, SLOTS)
    prime(backend, 0, prompt)
    wanted = said(talk(backend, 0, speech(9)))[0]
    backend.primer.cache = SnapshotCache(0, size_of)  # type: ignore[union-attr]
    row = 1
    backend.prime(row, prompt)
    if disturb == "reset":
        rows, is_new = np.array([0, 1], np.int32), np.array([False, True])
        backend.step(StepInputs(rows, is_new, np.zeros((2, 1920), np.float32)))
        assert backend.prime(row, prompt).done == 8
    elif disturb == "restore":
        backend.restore(row, backend.snapshot(0))
        assert backend.prime(row, prompt).done == 8
    else:
        backend.prime(row, random_prompt(lm, 8))
        assert backend.prime(row, prompt).done == 8
    prime(backend, row, prompt)
    assert said(talk(backend, row, speech(9)))[0] == wanted


def test_after_a_piece_that_failed_a_prompt_begins_anew(
    persona: Checkpoint, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = made(persona, SLOTS)
    assert backend.prime(1, prompt).done == 8

    def fail(row: int, tokens: IntArray, frames: int) -> None:
        raise RuntimeError(f"no memory for row {row} up to frame {frames}, {tokens.shape}")

    monkeypatch.setattr(inside(backend), "read_tokens", fail)
    with pytest.raises(StepError, match="no memory for row 1 up to frame 16"):
        backend.prime(1, prompt)
    monkeypatch.undo()
    assert backend.prime(1, prompt).done == 8


def test_the_cache_throws_out_what_was_used_longest_ago() -> None:
    cache = SnapshotCache(100, size_of)
    for key in "abc":
        cache.put(key, {"x": np.zeros(10, np.float32)})  # 40 bytes
        assert cache.get("a") is not None or key == "c"
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    cache.put("d", {"x": np.zeros(26, np.float32)})
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
    backend = made(persona, 1)
    with pytest.raises(UnsupportedError, match=words):
        backend.prime(0, Prompt(change(prompt.frames)))


def test_a_failing_pass_names_its_row(
    persona: Checkpoint, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = made(persona, SLOTS)

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(inside(backend), "read_tokens", fail)
    with pytest.raises(StepError) as caught:
        backend.prime(2, prompt)
    assert caught.value.rows == (2,)


def test_a_codec_takes_no_prompt(tmp_path: Path, prompt: Prompt) -> None:
    backend = make(load_checkpoint(str(make_checkpoint(tmp_path, kind="codec"))), slots=1, device="cpu")
    assert not backend.info.can_prime
    with pytest.raises(UnsupportedError, match="a codec model takes no prompt"):
        backend.prime(0, prompt)
