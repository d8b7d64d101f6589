"""Configuration: frozen, strict and single.

Every option is one field of a frozen dataclass here (or of :class:`~antiphon.engine.config.EngineConfig`),
with its default and its unit in the name. A TOML file and the command line fill the same fields: the file
overrides the defaults, the command line overrides the file. An unknown key is an error that names the
nearest one; a value of the wrong type is an error that names the key and the value. Several models are
entries of ``[[models]]`` in the file, each a :class:`ModelConfig`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from antiphon.engine.config import EngineConfig
from antiphon.errors import ConfigError
from antiphon.log import LEVELS
from antiphon.models.builtin import DEFAULT_MODEL
from antiphon.option import AUTO, apply, option, options

MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

WORKER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

PROTECTABLE = ("health", "metrics", "page")
"""What is open to everybody, keys or not, unless it is protected."""

CANARY_BY = ("call", "caller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one caller, and the timeouts of connections."""

    drain_timeout_s: float = option(60.0, "how long calls may go on after SIGTERM", minimum=0)
    handshake_timeout_s: float = option(15.0, "from 'ready' to the first audio of a session", minimum=0.1)
    idle_timeout_s: float = option(
        60.0, "without audio or text, of which a second keeps a session for ten", minimum=0.1
    )
    quiet_timeout_s: float = option(
        600.0, "without audio of a client that is muted, or ends its turns by hand", minimum=0.1
    )
    liveness_timeout_s: float = option(20.0, "from one sign of life of the peer to the next", minimum=0.1)
    close_timeout_s: float = option(2.0, "for the peer to answer a close frame", minimum=0.1)
    max_wait_s: float = option(600.0, "the longest 'wait' a caller may ask for in the queue", minimum=0)
    max_sessions_per_key: int = option(0, "sessions at once with one API key, 0 for any number", minimum=0)
    max_seconds_per_key: int = option(
        0, "seconds of calls on one day (UTC) with one API key, 0 for any number", minimum=0
    )
    max_sessions_per_address: int | None = option(
        None,
        "sessions at once from one address (of IPv6: one /64), 0 for any number; auto: a quarter of the "
        "rows, at least 4, and any number from this machine itself",
        minimum=0,
    )
    # Each takes a file of a front end; a server of thousands of calls has its share of keep-alive besides.
    max_connections: int = option(10_000, "connections at once; further ones wait", minimum=1)
    max_connections_per_address: int | None = option(
        None,
        "connections at once from one address (of IPv6: one /64), 0 for any number; auto: a quarter of all, "
        "and any number from this machine itself",
        minimum=0,
    )
    # A connection and its handshake take a millisecond: a burst must not take a core from those who talk.
    max_new_connections_per_s: float = option(200.0, "connections accepted in a second", minimum=1)
    max_new_connections_per_address_per_s: float | None = option(
        None,
        "connections accepted from one address in a second, 0 for any number; auto: a quarter of all, and "
        "any number from this machine itself",
        minimum=0,
    )
    max_message_bytes: int = option(262_144, "the largest WebSocket message accepted", minimum=1024)
    max_messages_per_s: int = option(
        500, "messages read from one socket, beyond which reading slows", minimum=1
    )
    # Sixty times real time of a recogniser's numbers; what more costs the loop is everybody's.
    max_bytes_per_s: int = option(
        16_777_216, "bytes of messages read from one socket, beyond which reading slows", minimum=65_536
    )
    # What a voice of tts-1.6b takes in msgpack: 64,000 numbers of at most nine bytes.
    max_voice_bytes: int = option(1_048_576, "the largest message that may hold a voice", minimum=1024)
    max_unsent_bytes: int = option(
        32_768,
        "written to a socket and not yet taken by the network, beyond which audio is dropped",
        minimum=4096,
    )
    max_upload_bytes: int = option(67_108_864, "the largest recording accepted by POST", minimum=1024)
    max_upload_s: float = option(3600.0, "the longest recording accepted by POST", minimum=0.1)
    max_uploads_per_address: int = option(
        8, "recordings at once from one address (of IPv6: one /64), 0 for any number", minimum=0
    )
    upload_timeout_s: float = option(60.0, "for a recording to arrive", minimum=0.1)
    min_upload_bytes_per_s: int = option(
        16_384, "the pace at which a recording has to arrive, after five seconds", minimum=1
    )
    hand_over_timeout_s: float = option(30.0, "for one call to go to another worker", minimum=0.1)
    max_hand_overs: int = option(
        2, "calls of other workers that arrive at once, at each front end", minimum=1
    )
    connect_timeout_s: float = option(15.0, "for the TLS handshake of a connection", minimum=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model of a server: an entry of ``[[models]]``, or what one ``--model`` stands for.

    What an entry does not say is what the rest of the configuration says for all models.
    """

    model: str = option("", "a built-in name, a folder, or hf://owner/repo[@revision]")
    name: str | None = option(None, "the name that clients ask for; by default the checkpoint's own name")
    backend: str = option(AUTO, "what runs it")
    device: str | None = option(None, "where it runs")
    slots: int | None = option(None, "sessions at once", minimum=1)
    backend_option: tuple[str, ...] = option((), "an option of its backend", metavar="NAME=VALUE")
    voices: str | None = option(None, "its folder of voices", metavar="DIR")
    outside_files: bool = option(False, "whether its folder may name files outside of itself")

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that does not fit into a path."""
        if self.name is not None and not MODEL_NAME.fullmatch(self.name):
            raise ConfigError(
                f"models.name = {self.name!r}: a name has 1 to 100 letters, digits, dots, dashes and "
                "underscores, since it is part of paths"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """All options of ``antiphon serve``."""

    model: tuple[str, ...] = option(
        (DEFAULT_MODEL,),
        "a built-in name, a folder, or hf://owner/repo[@revision]; repeat for several",
        metavar="MODEL",
    )
    models: tuple[ModelConfig, ...] = field(default=(), metadata={"is_entries": True})
    backend: str = option(AUTO, "what runs the model: auto, torch, mlx, onnx, pocket, reference, null")
    device: str | None = option(None, "where it runs, in the backend's own words")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8998, "port to listen on, 0 for any free one", minimum=0, maximum=65535)
    agent_port: int = option(
        0, "port that tells HAProxy the free rows (its agent-check), 0 for none", minimum=0, maximum=65535
    )
    tls_cert: str | None = option(None, "certificate chain in PEM, with --tls-key")
    tls_key: str | None = option(None, "private key in PEM, with --tls-cert")
    worker: str = option(
        "",
        "this worker's name, for the load balancer that brings a call back to it; auto: the host name, "
        "which is a container's id",
        metavar="NAME",
    )
    hand_over_secret: str | None = option(
        None,
        "what the workers share that hand calls over to each other, and operators: a file with a secret",
        metavar="FILE",
    )
    hand_over_port: int = option(
        0,
        "port for other workers over TLS, by the certificate in hand_over_secret; 0 for none",
        minimum=0,
        maximum=65535,
    )
    canary: str | None = option(
        None, "a served model that is on trial: the next version of another one", metavar="NAME"
    )
    canary_of: str | None = option(
        None, "the model it may replace; by default the first of its kind", metavar="NAME"
    )
    canary_share: float = option(0.1, "the part of new calls that it gets", minimum=0, maximum=1)
    canary_by: str = option(
        "call", "what is drawn: each call, or each caller once for all", choices=CANARY_BY
    )
    allow_origin: tuple[str, ...] = option(
        (), "a web origin that may connect besides our own, '*' for all", metavar="ORIGIN"
    )
    allow_host: tuple[str, ...] = option(
        (), "a Host that requests may name besides addresses and localhost, '*' for all", metavar="HOST"
    )
    api_keys: str | None = option(
        None, "who may call: lines of NAME:SHA256, see antiphon keys", metavar="FILE"
    )
    usage: str | None = option(
        None, "where a line of JSON says what each ended call used; the log has it too", metavar="FILE"
    )
    protect: tuple[str, ...] = option(
        (), "what needs a key too: health, metrics or page", choices=PROTECTABLE, metavar="WHAT"
    )
    trusted_proxy: tuple[str, ...] = option(
        (), "a proxy whose X-Forwarded-For is believed: an address, or a network", metavar="CIDR"
    )
    backend_option: tuple[str, ...] = option((), "an option of the backend itself", metavar="NAME=VALUE")
    voices: str | None = option(
        None, "voices for models that take a voice_prompt; voices/ beside the model if none", metavar="DIR"
    )
    outside_files: bool = option(
        False, "let a model's folder name files outside of itself: by '..', file://, links or hf://"
    )
    skip_digests: bool = option(
        False, "serve without comparing the SHA-256 of each file with the model's manifest"
    )
    front_ends: int | None = option(
        0, "processes for conversations; auto: the cores the engine leaves; 0: one for everything", minimum=0
    )
    log_level: str = option("info", "how much is logged", choices=LEVELS)
    record: str | None = option(
        None, "where calls are recorded whose callers agree (consent=record); none are without", metavar="DIR"
    )
    record_max_s: float = option(600.0, "the longest recording of a call", minimum=1)
    record_max_bytes: int = option(
        10_000_000_000, "all recordings together, beyond which the oldest are removed", minimum=1_000_000
    )
    record_max_days: float = option(
        0.0, "days after which a recording is removed, 0 to keep it until room is needed", minimum=0
    )
    trace: int = option(0, "number of ticks to write as a Chrome trace", minimum=0)
    trace_file: str = option("antiphon-trace.json", "where the trace goes")
    otel_every: int = option(
        0, "export one of every N ticks as an OpenTelemetry trace (extra otel), 0 for none", minimum=0
    )
    null_step_ms: float = option(5.0, "backend null: time of one step", minimum=0)
    null_hold_gil: bool = option(False, "backend null: compute instead of sleeping")
    switch_interval_ms: float = option(
        0.5, "how long a thread may hold the interpreter while another waits", minimum=0.01
    )
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise ConfigError for values that contradict one another."""
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ConfigError(f"{given} is given without {missing}; TLS needs both")
        if self.hand_over_port and self.hand_over_secret is None:
            raise ConfigError(
                f"hand_over_port = {self.hand_over_port} without hand_over_secret, whose certificate it needs"
            )
        if self.worker and not WORKER_NAME.fullmatch(self.worker):
            raise ConfigError(
                f"worker = {self.worker!r}: a name has 1 to 64 letters, digits, dots, dashes and underscores"
            )

    @property
    def served(self) -> tuple[ModelConfig, ...]:
        """The models to serve, in the order of their declaration; the first of a kind is its default."""
        return self.models or tuple(replace(self.common_model, model=ref) for ref in self.model)

    @property
    def common_model(self) -> ModelConfig:
        """What every model is served with, unless its own entry says otherwise."""
        return ModelConfig(
            backend=self.backend,
            device=self.device,
            slots=self.engine.slots,
            backend_option=self.backend_option,
            voices=self.voices,
            outside_files=self.outside_files,
        )


def load_file(path: str) -> dict[str, Any]:
    """The table of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def load_config(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> ServerConfig:
    """The configuration of a file's ``table`` with ``overrides`` (option name to value) on top.

    Raises:
        ConfigError: as :func:`apply`, or values that contradict one another.
    """
    known = options(ServerConfig)
    merged: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()
    }
    for name, value in overrides.items():
        target = merged
        for part in known[name].path[:-1]:
            target = target.setdefault(part, {})
        target[name] = value
    entries = merged.pop("models", [])
    if entries and "model" in table:
        raise ConfigError("model and [[models]] are both given; the first is short for a single entry")
    config = apply(ServerConfig(), merged)
    if "model" in overrides:
        return config
    return dataclasses.replace(config, models=_read_entries(entries, config.common_model))


def _read_entries(entries: Any, common: ModelConfig) -> tuple[ModelConfig, ...]:
    """The entries of ``[[models]]``, each on top of what is common to all."""
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(f"models = {entries!r} is not a list of tables; write [[models]]")
    models: list[ModelConfig] = []
    for number, entry in enumerate(entries, start=1):
        if not entry.get("model"):
            raise ConfigError(f"entry {number} of [[models]] lacks 'model', what to serve")
        models.append(apply(common, entry, ("models",)))
    return tuple(models)
