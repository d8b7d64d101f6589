"""The configuration of voice agents: the entries of ``[[agents]]``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from antiphon.errors import ConfigError
from antiphon.option import apply, option

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""The pattern of the name of a model or an agent."""

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModelConfig:
    """A text model of an agent: an endpoint with ``/chat/completions``."""

    llm: str = option("", "URL of an OpenAI-compatible text model, with its /v1", metavar="URL")
    llm_model: str | None = option(None, "the name of its model; by default the only one it has")
    llm_key_env: str | None = option(
        None, "environment variable that holds its key; by default none is sent", metavar="VARIABLE"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for an address that is invalid or contains a secret; no value is repeated."""
        try:
            parts = urlsplit(self.llm)
            is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if self.llm and not is_usable:
            raise ConfigError("llm is no address of a text model, which begins with http:// or https://")
        if self.llm and (parts.username or parts.password or parts.query or parts.fragment):
            raise ConfigError(
                "llm has a user, a password or a query; name the variable with its key by llm_key_env"
            )
        if self.llm_key_env is not None and not VARIABLE.fullmatch(self.llm_key_env):
            raise ConfigError("llm_key_env is no name of an environment variable, such as LLM_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One voice agent of a server: an entry of ``[[agents]]``, or the agent of ``--agent``."""

    name: str = option("", "name for clients", metavar="NAME")
    stt: str | None = option(None, "the recogniser, a model served here; by default the only one")
    tts: str | None = option(None, "the synthesiser, a model served here; by default the only one")
    voice: str | None = option(None, "its voice; by default the synthesiser's first")
    instructions: str = option("", "its instructions, for clients that send none")
    greeting: str = option("", "its first sentence; default: none")
    sorry: str = option(
        "Sorry, I cannot answer right now.", "its reply when the text model fails before the first word"
    )
    max_reply_tokens: int = option(400, "tokens of one reply", minimum=1, maximum=100_000)
    max_history_tokens: int = option(
        4000, "approximate tokens of the conversation for the text model", minimum=100, maximum=10_000_000
    )
    idle_s: float = option(
        0.0, "silence of both sides after which it may speak once; 0: never", minimum=0, maximum=3600
    )
    text_models: tuple[TextModelConfig, ...] = field(default=(), metadata={"is_entries": True})

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that does not fit into a path."""
        if self.name and not MODEL_NAME.fullmatch(self.name):
            raise ConfigError(
                f"agents.name = {self.name!r}: a name has 1 to 100 letters, digits, dots, dashes and "
                "underscores, since it is part of paths"
            )


def tables(entries: Any, name: str) -> list[Mapping[str, Any]]:
    """Return ``entries``, the value of ``[[name]]``, if it is a list of tables.

    Raises:
        ConfigError: the entries are not a list of tables.
    """
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"{name} = {entries!r} is not a list of tables; write [[{name}]]")
    return entries


def read_agents(entries: Any) -> tuple[AgentConfig, ...]:
    """The entries of ``[[agents]]``, each with its text models: its own model, then the models of
    ``fallback``.

    Raises:
        ConfigError: an entry is invalid, or two have the same name.
    """
    agents: list[AgentConfig] = []
    own = {entry.name for entry in dataclasses.fields(TextModelConfig)}
    for number, entry in enumerate(tables(entries, "agents"), start=1):
        for key, what in (("name", "its name for clients"), ("llm", "the URL of its text model")):
            if not entry.get(key):
                raise ConfigError(f"entry {number} of [[agents]] lacks '{key}', {what}")
        first = {key: value for key, value in entry.items() if key in own}
        others = tables(entry.get("fallback", []), "agents.fallback")
        models = tuple(apply(TextModelConfig(), table, ("agents",)) for table in (first, *others))
        if not all(model.llm for model in models):
            raise ConfigError(
                f"a fallback of entry {number} of [[agents]] lacks 'llm', the URL of its text model"
            )
        rest = {key: value for key, value in entry.items() if key not in (*own, "fallback")}
        agents.append(replace(apply(AgentConfig(), rest, ("agents",)), text_models=models))
    names = [agent.name for agent in agents]
    if len(set(names)) < len(names):
        raise ConfigError(f"two agents are called {next(it for it in names if names.count(it) > 1)!r}")
    return tuple(agents)
