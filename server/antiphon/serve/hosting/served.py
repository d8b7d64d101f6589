"""The models of one server: the parts of each, and the model that a request means."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from antiphon.agent.config import AgentConfig
from antiphon.canary.signals import TrialArm
from antiphon.config import ModelConfig
from antiphon.errors import ConfigError, UnknownModelError, nearest
from antiphon.ipc.engine_group import EngineGroup
from antiphon.ipc.health import Health, together
from antiphon.metrics import MetricFamilies
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from antiphon.models.tokenizer import Tokenizer
from antiphon.serve.media.duplex_voices import VoiceFolder, find_voices
from antiphon.serve.media.tts_voices import TtsVoiceFolder, find_tts_voices
from antiphon.serve.operator.metrics import ServeMetrics

SEED_BITS = 53
"""The largest seed: JavaScript reads it exactly, so a client can show its seeds and request them again."""

MAX_SHOWN_CHARS = 100
"""Characters of an unknown name that an error repeats."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One model and its running engine.

    ``name`` is the one that callers use. ``defaults`` are the sampling parameters of callers who request
    none. ``speakers`` are a tts model's voices. ``since_s`` is when it was made, in seconds since 1970.
    ``arm`` is set for a call on one side of a trial.
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
        """The audio or text of its input and output."""
        return self.checkpoint.spec.kind


def on_trial(model: ServedModel, arm: TrialArm) -> ServedModel:
    """The model as one side of a trial."""
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


def name_models(
    entries: Sequence[ModelConfig], aliases: Sequence[str] = (), agents: Sequence[AgentConfig] = ()
) -> list[tuple[ModelConfig, str, Checkpoint]]:
    """Each entry with the name callers use and its checkpoint.

    Raises:
        ConfigError: two have the same name, or an alias or an agent is invalid.
        CheckpointError: a checkpoint does not exist, or differs from its format.
    """
    named: dict[str, tuple[ModelConfig, str, Checkpoint]] = {}
    for entry in entries:
        checkpoint = load_checkpoint(entry.model, is_confined=not entry.outside_files)
        name = entry.name or checkpoint.spec.name
        if name in named:
            raise ConfigError(same_name(name))
        named[name] = entry, name, checkpoint
    kinds = {name: checkpoint.spec.kind for _, name, checkpoint in named.values()}
    read_aliases(aliases, kinds)
    for agent in agents:
        models_of(agent, kinds)
    return list(named.values())


def models_of(agent: AgentConfig, served: Mapping[str, PipelineKind]) -> tuple[str, str]:
    """The recogniser and the synthesiser of an agent, by default the only ones of those ``served``.

    Raises:
        ConfigError: it has the name of a model, or names a model that is not served.
    """
    if agent.name in served:
        raise ConfigError(f"the agent {agent.name!r} has the name of a model here; give it its own")

    def find(kind: PipelineKind, name: str | None) -> str:
        fitting = [known for known, its_kind in served.items() if its_kind is kind]
        if name is not None and name not in fitting:
            raise ConfigError(
                f"the agent {agent.name!r} has {kind} = {name!r}, and no {kind} model of that name is "
                f"served; {nearest(name, fitting)}"
            )
        if name is None and len(fitting) != 1:
            raise ConfigError(
                f"the agent {agent.name!r} needs one {kind} model, and there are {len(fitting)}: "
                f"{', '.join(fitting) or 'none'}; add one by --model, or set {kind} in [[agents]]"
            )
        return name or fitting[0]

    return find(PipelineKind.STT, agent.stt), find(PipelineKind.TTS, agent.tts)


class Models:
    """The models of one server, in the order they were declared."""

    def __init__(self, models: Sequence[ServedModel], aliases: Sequence[str] = ()) -> None:
        """Serve these, at least one; ``aliases`` are NAME=MODEL.

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
        """The rows of all models."""
        return sum(model.engine.info.slots for model in self)

    @property
    def first(self) -> ServedModel:
        """The model declared first."""
        return next(iter(self))

    def default_of(self, kinds: Collection[PipelineKind]) -> ServedModel | None:
        """The first declared of these kinds: it answers a request without a name."""
        return next((model for model in self if model.kind in kinds), None)

    def find(self, name: str | None, kinds: Collection[PipelineKind] = tuple(PipelineKind)) -> ServedModel:
        """The model called ``name``, or the default of ``kinds`` without a name.

        An alias is a name, and so is the value of ``--model``, which is not shown: it may be a local path.

        Raises:
            UnknownModelError: there is none, or it is of another kind; the message lists the names.
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
        """The model that ``name`` stands for; where any name selects one of ``kinds``, that one."""
        own = self._models.get(name) or self._aliases.get(name)
        refs = (it for it in self if it.config.model == name)
        return own or next(refs, None) or next((it for it in self._any if it.kind in kinds), None)

    def are_one(self, name: str, other: str) -> bool:
        """Whether two names are equal, or stand for the same model of some kind."""
        pairs = ((self.named(name, (kind,)), self.named(other, (kind,))) for kind in PipelineKind)
        return name == other or any(one is not None and one is two for one, two in pairs)

    def aliases_of(self, model: ServedModel) -> list[str]:
        """The further names of a model, except "any"."""
        return [alias for alias, it in self._aliases.items() if it is model]

    def note_lag(self, lag_s: float) -> None:
        """Report to every engine's admission how late the event loop runs."""
        for model in self:
            model.engine.note_lag(lag_s)

    def health(self) -> Health:
        """All engines as one."""
        return together({model.name: model.engine.health() for model in self})


def same_name(name: str) -> str:
    """The error's text for two models of one name."""
    return f"two models are called '{name}'; give them names of their own, as entries of [[models]] in a file"


ANY: Final = "*"
NAME: Final = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
"""Names that clients of other servers use: ``whisper-1``, ``Systran/faster-whisper-small``."""


def read_aliases(texts: Sequence[str], served: Mapping[str, PipelineKind]) -> list[tuple[str, str]]:
    """Each alias with the name of its model, of those ``served`` by name and kind.

    Raises:
        ConfigError: one is not NAME=MODEL, names no served model, or is taken.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        alias, _, model = text.partition("=")
        if model not in served:
            words = f"no model {model!r} is served; {nearest(model, served)}"
            raise ConfigError(
                f"alias = {text!r}: {words}" if model else f"alias = {text!r}: write NAME=MODEL"
            )
        if alias != ANY and not NAME.fullmatch(alias):
            raise ConfigError(
                f"alias = {text!r}: a name has 1 to 100 letters, digits and . _ : / -, or is * for any other"
            )
        others = [name for known, name in pairs if known == alias]
        if alias == ANY:
            others = [name for name in others if served[name] is served[model]]
        if alias in served or others:
            words = (
                f"{alias} is a model here" if alias in served else f"{alias} is the model {others[0]} already"
            )
            raise ConfigError(f"alias = {text!r}: {words}")
        pairs.append((alias, model))
    return pairs


def hint_of(name: str, model: str) -> str:
    """A hint how to serve ``model`` under an unused name; "" for one that cannot be an alias."""
    return f"; to serve it under this name: --alias {name}={model}" if NAME.fullmatch(name) else ""
