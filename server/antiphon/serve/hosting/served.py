"""The models of one server: the parts of each, and the selection of the model for a request."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from antiphon.canary.signals import TrialArm
from antiphon.config import ModelConfig
from antiphon.errors import ConfigError, UnknownModelError
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.health import Health, together
from antiphon.metrics import MetricFamilies
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from antiphon.models.tokenizer import Tokenizer
from antiphon.serve.hosting.model_names import ANY, hint_of, read_aliases, same_name
from antiphon.serve.media.duplex_voices import VoiceFolder, find_voices
from antiphon.serve.media.tts_voices import TtsVoiceFolder, find_tts_voices
from antiphon.serve.operator.metrics import ServeMetrics

SEED_BITS = 53
"""Bits of the largest seed: JavaScript represents it exactly, so a client can show its seeds and request them
again."""

MAX_SHOWN_CHARS = 100
"""Maximum number of characters of an unknown name that an error repeats."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One model and its running engine.

    ``name`` is the name that callers use. ``defaults`` are the sampling parameters for callers that request
    none. ``speakers`` are a tts model's voices. ``since_s`` is the time when it was made, in seconds since
    1970. ``arm`` is set for a call on one side of a trial.
    """

    name: str
    config: ModelConfig
    engine: EngineGroup
    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    defaults: SamplingParameters
    voices: VoiceFolder | None
    metrics: ServeMetrics
    speakers: TtsVoiceFolder | None = None
    since_s: int = field(default_factory=lambda: int(time.time()))
    arm: TrialArm | None = None

    def parameters(self) -> SamplingParameters:
        """The defaults with new seeds, for one more caller."""
        return replace(
            self.defaults, text_seed=secrets.randbits(SEED_BITS), audio_seed=secrets.randbits(SEED_BITS)
        )

    @property
    def kind(self) -> PipelineKind:
        """The model's kind: codec, duplex, stt or tts."""
        return self.checkpoint.spec.kind


def on_trial(model: ServedModel, arm: TrialArm) -> ServedModel:
    """The model with one side of a trial as its ``arm``."""
    return replace(model, arm=arm)


def serve_model(
    config: ModelConfig, name: str, checkpoint: Checkpoint, engine: EngineGroup, families: MetricFamilies
) -> ServedModel:
    """A started engine with the other parts that request handlers need.

    Raises:
        ConfigError: the folder of voices does not exist.
    """
    return ServedModel(
        name=name,
        config=config,
        engine=engine,
        checkpoint=checkpoint,
        tokenizer=checkpoint.text_tokenizer(),
        defaults=SamplingParameters.from_generation(checkpoint.generation),
        voices=find_voices(config.voices, checkpoint),
        metrics=ServeMetrics(families, model=name),
        speakers=find_tts_voices(config.voices, checkpoint),
    )


class Models:
    """The models of one server, in the order they were declared."""

    def __init__(self, models: Sequence[ServedModel], aliases: Sequence[str] = ()) -> None:
        """Serve these models, at least one; ``aliases`` are NAME=MODEL.

        Raises:
            ConfigError: two of them have the same name, or an alias is invalid.
        """
        self._models = {model.name: model for model in models}
        if len(self._models) < len(models):
            names = [model.name for model in models]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(same_name(twice))
        pairs = read_aliases(aliases, {model.name: model.kind for model in models})
        self._aliases = {alias: self._models[name] for alias, name in pairs if alias != ANY}
        self._any = [self._models[name] for alias, name in pairs if alias == ANY]

    def __iter__(self) -> Iterator[ServedModel]:
        """The models in the order they were declared."""
        return iter(self._models.values())

    def __len__(self) -> int:
        """The number of models."""
        return len(self._models)

    @property
    def rows(self) -> int:
        """The number of rows of all models."""
        return sum(model.engine.info.slots for model in self)

    @property
    def first(self) -> ServedModel:
        """The first declared model."""
        return next(iter(self))

    def default_of(self, kinds: Collection[PipelineKind]) -> ServedModel | None:
        """The first declared model of these kinds, which answers a request without a name."""
        return next((model for model in self if model.kind in kinds), None)

    def find(self, name: str | None, kinds: Collection[PipelineKind] = tuple(PipelineKind)) -> ServedModel:
        """The model called ``name``, or without a name the default of ``kinds``.

        Aliases and the value of ``--model`` are accepted as names; the value of ``--model`` is not shown,
        because it may be a local path.

        Raises:
            UnknownModelError: the model does not exist, or is of another kind; the message lists the names.
        """
        named = self.default_of(kinds) if name is None else self.named(name, kinds)
        shown = repr((name or "")[:MAX_SHOWN_CHARS])
        if named is not None and named.kind in kinds:
            return named
        if name is None:
            what = f"no {' or '.join(kinds)} model here"
        elif named is not None:
            what = f"model {shown} is a {named.kind} model, and this is for {' or '.join(kinds)}"
        else:
            what = f"no model {shown} here"
        fitting = [model for model in self if model.kind in kinds]
        listed = ", ".join(f"{model.name} ({model.kind})" for model in fitting or self)
        known = [model.name for model in fitting or self]
        hint = hint_of(name, known[0]) if name is not None and named is None else ""
        raise UnknownModelError(f"{what}; there is: {listed}{hint}", known=known)

    def named(self, name: str, kinds: Collection[PipelineKind] = tuple(PipelineKind)) -> ServedModel | None:
        """The model with this name or alias, or the model of ``kinds`` that every other name selects, if
        there is one.
        """
        own = self._models.get(name) or self._aliases.get(name)
        refs = (it for it in self if it.config.model == name)
        return own or next(refs, None) or next((it for it in self._any if it.kind in kinds), None)

    def are_one(self, name: str, other: str) -> bool:
        """Whether two names are equal, or refer to the same model of some kind."""
        pairs = ((self.named(name, (kind,)), self.named(other, (kind,))) for kind in PipelineKind)
        return name == other or any(one is not None and one is two for one, two in pairs)

    def aliases_of(self, model: ServedModel) -> list[str]:
        """The aliases of a model, except ``*``."""
        return [alias for alias, it in self._aliases.items() if it is model]

    def note_lag(self, lag_s: float) -> None:
        """Report the event loop's lag to the admission of every engine."""
        for model in self:
            model.engine.note_lag(lag_s)

    def health(self) -> Health:
        """The health of all engines together."""
        return together({model.name: model.engine.health() for model in self})
