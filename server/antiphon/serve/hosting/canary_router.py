"""The canary of a server: chooses the version that answers a new call, and compares both versions' calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from antiphon.canary.share import caller_digest, point_of
from antiphon.canary.signals import CallSignals, TrialArm
from antiphon.canary.trial import Phase
from antiphon.config import ServerConfig
from antiphon.errors import ConfigError, nearest
from antiphon.ipc.engine_client import CallSession
from antiphon.serve.access.callers import Caller
from antiphon.serve.access.supervisor_client import SupervisorClient
from antiphon.serve.calls.output_listener import OutputListener
from antiphon.serve.hosting.observation import Observation
from antiphon.serve.hosting.served import Models, ServedModel, on_trial

BY_CALLER: Final = "caller"


class CanaryRouter:
    """Chooses the version for each new call of the stable model, and compares the calls of both versions."""

    def __init__(
        self,
        models: Models,
        config: ServerConfig,
        client: SupervisorClient,
        *,
        listen: Callable[[ServedModel], OutputListener | None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """``listen`` returns a recogniser for a call of a model, if one is served; ``draw`` returns a random
        number from 0 to 1.

        Raises:
            ConfigError: the two models cannot replace each other.
        """
        stable, canary = find_pair(models, config)
        self._named = stable
        self._arms = {
            TrialArm.STABLE: on_trial(stable, TrialArm.STABLE),
            TrialArm.CANARY: on_trial(canary, TrialArm.CANARY),
        }
        self._client, self._share = client, config.canary_share
        self._is_by_caller = config.canary_by == BY_CALLER
        self._listen, self._draw = listen, draw
        self._listening: set[asyncio.Task[None]] = set()

    def choose(self, model: ServedModel, caller: Caller, *, resumes: bool = False) -> ServedModel:
        """Choose the version for a call that requests ``model``; a call that ``resumes`` gets the stable
        version.

        While the canary would not admit a call at once, a call gets the stable version and is not compared.
        Without this rule only the stable version would be compared in busy moments. A call that names the
        canary gets the canary, and is not compared.
        """
        if model is not self._named and model is not self._arms[TrialArm.STABLE]:
            return model
        stable, canary = self._arms[TrialArm.STABLE], self._arms[TrialArm.CANARY]
        if resumes or self._client.phase is Phase.WITHDRAWN:
            return stable
        if not canary.engine.health().ready:
            return self._named
        if self._client.phase is Phase.PROMOTED or self._point(caller) < self._share:
            return canary
        return stable

    def versions(self, model: ServedModel) -> tuple[ServedModel, ...]:
        """The versions that may have a call which requested ``model``; the more probable version is first."""
        return (model,) if model.arm is None else tuple(self._arms.values())

    def observe(self, model: ServedModel, session: CallSession) -> Observation | None:
        """Start to watch a call of a version on trial; None for any other call."""
        if model.arm is None:
            return None
        observation = Observation(model, self._listen(model))
        session.watch(observation.see)
        return observation

    def ended(
        self,
        model: ServedModel,
        caller: Caller,
        observation: Observation,
        session: CallSession,
        *,
        continues_elsewhere: bool,
    ) -> None:
        """Stop watching a call, and record its measurements when they are complete. A call that
        ``continues_elsewhere`` is judged where it ends.
        """
        error, stats = session.error, session.stats()
        if continues_elsewhere or (not stats.frames_taken and error is None):
            observation.forget()
            return
        signals = observation.signals(stats, error)
        if not observation.has_listener:
            self._record(model, caller, signals)
            return
        task = asyncio.get_running_loop().create_task(self._listen_on(model, caller, observation, signals))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    async def report(self) -> dict[str, Any]:
        """The state of the trial, with the names of both versions."""
        return self._named_in(await self._client.trial())

    async def ask(self, phase: Phase) -> dict[str, Any]:
        """Set the phase, at an operator's request; return the new state."""
        return self._named_in(await self._client.trial(phase))

    async def settled(self) -> None:
        """Wait until recognisers have transcribed the calls that have ended."""
        await asyncio.gather(*self._listening, return_exceptions=True)

    def close(self) -> None:
        """Stop at the end of the server; calls with unfinished transcripts are not compared."""
        for task in self._listening:
            task.cancel()

    def _named_in(self, report: dict[str, Any]) -> dict[str, Any]:
        names = {arm.value: model.name for arm, model in self._arms.items()}
        return {"models": names, "by": BY_CALLER if self._is_by_caller else "call", **report}

    def _point(self, caller: Caller) -> float:
        return point_of(self._digest(caller)) if self._is_by_caller else self._draw()

    def _digest(self, caller: Caller) -> str:
        return caller_digest(self._arms[TrialArm.CANARY].name, caller.name or caller.address)

    def _record(self, model: ServedModel, caller: Caller, signals: CallSignals) -> None:
        assert model.arm is not None
        self._client.record(model.arm, signals, self._digest(caller) if self._is_by_caller else "")

    async def _listen_on(
        self, model: ServedModel, caller: Caller, observation: Observation, signals: CallSignals
    ) -> None:
        self._record(model, caller, await observation.with_transcript(signals))


def find_pair(models: Models, config: ServerConfig) -> tuple[ServedModel, ServedModel]:
    """The stable model and its canary.

    Raises:
        ConfigError: one of them is not served, or they cannot replace each other.
    """
    by_name = {model.name: model for model in models}
    canary = _one(by_name, "canary", config.canary or "")
    others = [model for model in models if model.kind is canary.kind and model is not canary]
    if config.canary_of is not None:
        stable = _one(by_name, "canary_of", config.canary_of)
    elif others:
        stable = others[0]
    else:
        raise ConfigError(
            f"canary = {canary.name!r} is the only {canary.kind} model here; serve the stable one before it"
        )
    for what, ours, theirs in (
        ("kind", stable.kind, canary.kind),
        ("family", stable.engine.info.spec.family, canary.engine.info.spec.family),
        ("sample rate", stable.engine.info.spec.sample_rate, canary.engine.info.spec.sample_rate),
        ("samples a frame", stable.engine.info.spec.frame_samples, canary.engine.info.spec.frame_samples),
    ):
        if ours != theirs:
            raise ConfigError(f"{canary.name} cannot replace {stable.name}: {what} {theirs}, not {ours}")
    if stable is canary or list(models).index(canary) < list(models).index(stable):
        raise ConfigError(
            f"canary = {canary.name!r} has to be declared after {stable.name!r}: the first model of a kind "
            "answers every call without a name"
        )
    return stable, canary


def _one(models: dict[str, ServedModel], option: str, name: str) -> ServedModel:
    if name not in models:
        raise ConfigError(f"{option} = {name!r} is no model served here; {nearest(name, models)}")
    return models[name]
