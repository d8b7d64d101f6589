"""Real calls of the small talker and its canary, with a fault planted in the canary."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from typing import Any, Final

import aiohttp
import numpy as np

from antiphon.audio.files import read_audio
from antiphon.backends.base import NO_TOKEN, Backend, FloatArray, StepInputs, StepOutputs
from antiphon.backends.registry import make_backend
from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.protocol import moshi
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon_client.clip import default_clips, fit_clip
from tests.serve.harness import FRAME_SAMPLES, Server, serving

CALL_FRAMES: Final = 130
"""10.4 seconds, so that a caller who hears all of it has not hung up."""

PAUSE_S: Final = 2.5
"""After each question of a call, in which the talker answers."""

ROWS: Final = 2
IN_FLIGHT_FRAMES: Final = 2
"""A caller sends as fast as it is answered. The talker is one frame behind, and waits for no other frame."""

HANG_UP_SHARE: Final = 0.05
"""Of all callers: some leave early whatever they hear."""

CANARY_NAME: Final = "tiny-next"
FAULTS: Final = ("late", "silence", "repetition", "disagreement", "hang_up")


class FaultyBackend:
    """A backend whose model is well, and whose outputs are not."""

    def __init__(self, backend: Backend, fault: str, seed: int) -> None:
        """Plant ``fault``, a name of :data:`FAULTS`, or "" for none."""
        self._backend, self._fault = backend, fault
        self._chance = np.random.default_rng(seed)
        self._words: list[int] = []
        self._steps = 0
        self._babble = _clip(1)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's own."""
        return getattr(self._backend, name)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """The backend's step, with the fault."""
        outputs = self._backend.step(inputs)
        self._steps += 1
        match self._fault:
            case "late":
                if self._chance.random() < 0.1:
                    time.sleep(0.1)
            case "silence" if outputs.pcm is not None:
                return outputs._replace(pcm=np.zeros_like(outputs.pcm))
            case "repetition" if outputs.text_tokens is not None:
                return outputs._replace(text_tokens=self._looped(outputs.text_tokens))
            case "disagreement" if outputs.pcm is not None:
                at = self._steps * FRAME_SAMPLES % (self._babble.size - FRAME_SAMPLES)
                babble = self._babble[at : at + FRAME_SAMPLES]
                loud = (outputs.pcm**2).mean(axis=1, keepdims=True) > 1e-5
                return outputs._replace(pcm=np.where(loud, babble, outputs.pcm).astype(np.float32))
        return outputs

    def _looped(self, tokens: Any) -> Any:
        """The first words again and again, one in three frames."""
        for token in tokens.tolist():
            if token > 3 and token != NO_TOKEN and len(self._words) < 5:
                self._words.append(token)
        if not self._words or self._steps % 3:
            return tokens
        word = self._words[self._steps // 3 % len(self._words)]
        return np.where(tokens == NO_TOKEN, tokens, word).astype(tokens.dtype)


class KeptSignals(SupervisorClient):
    """A server's client that keeps how calls went; made by ``here()``."""

    def __init__(self, *args: Any) -> None:
        """Begin with nothing."""
        super().__init__(*args)
        self.calls: list[tuple[TrialArm, CallSignals]] = []

    def record(self, arm: TrialArm, signals: CallSignals, caller: str) -> None:
        """Keep it, and pass it on."""
        self.calls.append((arm, signals))
        super().record(arm, signals, caller)


def _clip(number: int) -> FloatArray:
    clips = default_clips()
    with resources.as_file(clips[number % len(clips)]) as file:
        pcm: FloatArray = read_audio(file)
    return pcm


def _model(name: str, rows: int) -> tuple[Checkpoint, Backend]:
    checkpoint = load_checkpoint(name)
    return checkpoint, make_backend("onnx", checkpoint, slots=rows, device=None, options={})


@asynccontextmanager
async def on_trial(fault: str, share: float, trial: KeptSignals) -> AsyncIterator[Server]:
    """A server of ``tiny``, a canary of it with a fault, and a recogniser."""
    stable, canary = _model("tiny", ROWS), _model("tiny", ROWS)
    named = replace(canary[0], spec=replace(canary[0].spec, name=CANARY_NAME))
    faulty: Any = FaultyBackend(canary[1], fault, seed=5)
    beside = [(named, faulty), _model("tiny-stt", 1)]
    settings: Mapping[str, Any] = {"canary": CANARY_NAME, "canary_share": share, "client": trial}
    async with serving(model=stable, beside=beside, **settings) as server:
        yield server


async def one_call(server: Server, number: int, fault: str) -> None:
    """A question, asked as fast as it is answered; some callers leave early."""
    chance = random.Random(number)
    question = np.append(_clip(number), np.zeros(round(PAUSE_S * 24_000), np.float32))
    pcm = fit_clip(question, CALL_FRAMES * 0.08).reshape(-1, FRAME_SAMPLES)
    query = f"ext=1&format=pcm_f32le&text_seed={number}&audio_seed={number}&wait=60"
    async with server.http.ws_connect(server.url(f"/api/chat?{query}", "ws"), max_msg_size=0) as socket:
        sent = answered = 0
        last = CALL_FRAMES
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            decoded = moshi.decode(message.data)
            if isinstance(decoded, moshi.Event) and decoded.type == "ready":
                is_bad = fault == "hang_up" and decoded.fields["model"] == CANARY_NAME
                leaves = chance.random() < (0.8 if is_bad else HANG_UP_SHARE)
                last = chance.randrange(10, 100) if leaves else CALL_FRAMES
            elif isinstance(decoded, moshi.StampedAudio):
                answered = decoded.frame + 1
                if answered >= last - 2:
                    return
            else:
                continue
            while sent < CALL_FRAMES and sent - answered < IN_FLIGHT_FRAMES:
                await socket.send_bytes(moshi.encode(moshi.Audio(pcm[sent].astype("<f4").tobytes())))
                sent += 1


async def many_calls(server: Server, trial: KeptSignals, calls: int, fault: str, *, until_over: bool) -> int:
    """So many calls, one after the other; with ``until_over`` none after the end of the trial.

    Returns how many there were. One at a time: two models and a recogniser share the cores with callers.
    """
    assert server.services.canary is not None
    for number in range(calls):
        if until_over and trial.phase is not Phase.RUNNING:
            return number
        await one_call(server, number, fault)
        await server.services.canary.settled()
    return calls
