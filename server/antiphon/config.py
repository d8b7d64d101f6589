"""The configuration of ``antiphon serve``: frozen, strict and in one place.

Every option is one field of a frozen dataclass here (or of :class:`~antiphon.engine.config.EngineConfig`),
with its default and with its unit in the name. A TOML file and the command line fill the same fields: the
file overrides the defaults, the command line overrides the file. An unknown key is an error with the nearest
name; a value of the wrong type is an error with the key and the value. Several models are entries of
``[[models]]`` in the file, each a :class:`ModelConfig`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from antiphon.agent.config import MODEL_NAME, AgentConfig, TextModelConfig, read_agents, tables
from antiphon.backends.machine import list_gpus
from antiphon.engine.config import EngineConfig
from antiphon.errors import ConfigError
from antiphon.limits import Limits
from antiphon.log import LEVELS
from antiphon.models.source import DEFAULT_MODEL
from antiphon.option import AUTO, Group, apply, constant, option, options, tune
from antiphon.tcp_port import TcpPort, read_tcp_ports

ALL_GPUS: Final = "cuda:all"
"""Value of ``device`` that starts an engine on each of the driver's GPUs."""

WORKER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

PROTECTABLE = ("health", "metrics", "page")
"""Routes that need no key unless they are protected."""

CANARY_BY = ("call", "caller")

MODEL_HELP = "a built-in name, a folder, or hf://owner/repo[@revision]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model of a server: an entry of ``[[models]]``, or the value of one ``--model``.

    Missing keys of an entry have the values of the common options.
    """

    model: str = option("", MODEL_HELP, metavar="MODEL")
    name: str | None = option(None, "name for clients; default: the checkpoint's own name")
    backend: str = option(AUTO, "backend", metavar="NAME")
    device: str | None = option(None, "device", metavar="DEVICE")
    slots: int | None = option(None, "sessions at once", minimum=1)
    backend_option: tuple[str, ...] = option((), "an option of its backend", metavar="NAME=VALUE")
    voices: str | None = option(None, "its folder of voices", metavar="DIR")
    languages: tuple[str, ...] = option(
        ("en",), "languages that Home Assistant offers it for", metavar="CODE"
    )
    outside_files: bool = option(False, "allow files outside of its folder")

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
        f"{MODEL_HELP}; repeat for several",
        metavar="MODEL",
        group=Group.MODELS,
        is_basic=True,
    )
    models: tuple[ModelConfig, ...] = field(default=(), metadata={"is_entries": True})
    alias: tuple[str, ...] = option(
        (),
        "another name of a served model; '*=MODEL': every unused name; repeat for several",
        metavar="NAME=MODEL",
        group=Group.MODELS,
        is_basic=True,
    )
    agents: tuple[AgentConfig, ...] = field(default=(), metadata={"is_entries": True})
    agent: str | None = option(
        None,
        "name of a voice agent that uses the served recogniser and synthesiser",
        metavar="NAME",
        group=Group.AGENT,
        is_basic=True,
    )
    llm: str | None = option(
        None,
        "address of the agent's text model, with OpenAI's chat completions",
        metavar="URL",
        group=Group.AGENT,
        is_basic=True,
    )
    llm_model: str | None = option(
        None,
        "name of the text model; default: the only model at the address",
        metavar="NAME",
        group=Group.AGENT,
    )
    llm_key_env: str | None = option(
        None,
        "environment variable with the text model's key; default: no key",
        metavar="VARIABLE",
        group=Group.AGENT,
    )
    backend: str = option(
        AUTO,
        "backend of the model: auto, torch, mlx, onnx, pocket, reference, null",
        metavar="NAME",
        group=Group.MODELS,
        is_basic=True,
    )
    device: str | None = option(
        None,
        "device: cpu, cuda, cuda:1; cuda:all: every GPU",
        metavar="DEVICE",
        group=Group.MODELS,
        is_basic=True,
    )
    backend_option: tuple[str, ...] = option(
        (),
        "an option of the backend, such as threads=2; repeat for several",
        metavar="NAME=VALUE",
        group=Group.MODELS,
    )
    voices: str | None = option(
        None,
        "folder of voices for models that take a voice_prompt; default: voices/ next to the model",
        metavar="DIR",
        group=Group.MODELS,
    )
    outside_files: bool = option(
        False,
        "allow a model's folder to use files outside of it: by '..', file://, links or hf://",
        group=Group.MODELS,
    )
    skip_digests: bool = option(
        False,
        "serve without comparing the SHA-256 of each file with the model's manifest",
        group=Group.MODELS,
    )
    host: str = option(
        "127.0.0.1", "address to listen on", metavar="ADDRESS", group=Group.NETWORK, is_basic=True
    )
    port: int = option(
        8998,
        "port to listen on; 0: any free one",
        minimum=0,
        maximum=65535,
        group=Group.NETWORK,
        is_basic=True,
    )
    tls_cert: str | None = option(
        None, "certificate chain in PEM, with --tls-key", metavar="FILE", group=Group.NETWORK, is_basic=True
    )
    tls_key: str | None = option(
        None, "private key in PEM, with --tls-cert", metavar="FILE", group=Group.NETWORK, is_basic=True
    )
    trusted_proxy: tuple[str, ...] = option(
        (),
        "proxy whose X-Forwarded-For is trusted: an address or a network; repeat for several",
        metavar="CIDR",
        group=Group.NETWORK,
    )
    tcp: tuple[str, ...] = option(
        (),
        "additional port: wyoming://[HOST]:PORT for Home Assistant, audiosocket://[HOST]:PORT/MODEL for "
        "Asterisk; without HOST for this machine only; repeat for several",
        metavar="ADDRESS",
        group=Group.NETWORK,
    )
    zeroconf: bool = option(
        False,
        "announce Wyoming ports that other machines can reach to Home Assistant by mDNS (extra zeroconf)",
        group=Group.NETWORK,
    )
    webrtc: int = option(
        0,
        "WebRTC calls at once in each front end, on UDP ports of all addresses (extra webrtc); 0: none",
        minimum=0,
        group=Group.NETWORK,
    )
    ice_server: tuple[str, ...] = option(
        (),
        "server for WebRTC behind a NAT: stun:HOST:PORT or turn://USER:PASSWORD@HOST:PORT; one of each kind",
        metavar="ADDRESS",
        group=Group.NETWORK,
    )
    free_rows_port: int = option(
        0,
        "port that reports the free rows to HAProxy (its agent-check); 0: none",
        minimum=0,
        maximum=65535,
        group=Group.NETWORK,
    )
    api_keys: str | None = option(
        None,
        "keys of callers, made by 'antiphon keys' [none]",
        metavar="FILE",
        group=Group.ACCESS,
        is_basic=True,
    )
    twilio_token: str | None = option(
        None,
        "Twilio's auth token: calls of /twilio without its signature are refused; default: not checked",
        metavar="FILE",
        group=Group.ACCESS,
    )
    protect: tuple[str, ...] = option(
        (),
        "routes that also need a key: health, metrics, page; repeat for several",
        choices=PROTECTABLE,
        metavar="WHAT",
        group=Group.ACCESS,
        is_basic=True,
    )
    allow_host: tuple[str, ...] = option(
        (),
        "public name of this server; '*': any; repeat for several",
        metavar="HOST",
        group=Group.ACCESS,
        is_basic=True,
    )
    allow_origin: tuple[str, ...] = option(
        (),
        "additional web origin whose pages may connect; '*': any",
        metavar="ORIGIN",
        group=Group.ACCESS,
    )
    usage: str | None = option(
        None, "append one JSON line per finished call to FILE", metavar="FILE", group=Group.ACCESS
    )
    front_ends: int | None = option(
        0,
        "processes for client connections; auto: cores less models; 0: all in one process; Linux only",
        minimum=0,
        group=Group.PROCESSES,
        is_basic=True,
    )
    log_level: str = option(
        "info",
        "debug, info, warning or error",
        choices=LEVELS,
        metavar="LEVEL",
        group=Group.LOGS,
        is_basic=True,
    )
    trace: int = option(0, "number of model steps to write as a Chrome trace", minimum=0, group=Group.LOGS)
    trace_file: str = option("antiphon-trace.json", "file of the trace", metavar="FILE", group=Group.LOGS)
    otel_every: int = option(
        0,
        "export one of every N model steps as an OpenTelemetry trace (extra otel); 0: none",
        minimum=0,
        group=Group.LOGS,
    )
    record: str | None = option(
        None,
        "directory for recordings of consenting callers (consent=record)",
        metavar="DIR",
        group=Group.RECORDINGS,
    )
    record_max_bytes: int = option(
        10_000_000_000,
        "size of all recordings together, above which the oldest are removed",
        minimum=1_000_000,
        group=Group.RECORDINGS,
    )
    record_max_days: float = option(
        0.0, "age at which a recording is removed; 0: never", minimum=0, group=Group.RECORDINGS
    )
    record_max_s: float = constant(
        600.0, "longest recording of a call; later audio is not recorded", minimum=1
    )
    worker: str = option(
        "",
        "this worker's name, which the load balancer uses to route a resumed call; auto: the host name",
        metavar="NAME",
        group=Group.WORKERS,
    )
    hand_over_secret: str | None = option(
        None,
        "file with the secret shared by workers that hand calls over, and by operators",
        metavar="FILE",
        group=Group.WORKERS,
    )
    hand_over_port: int = option(
        0,
        "port for other workers over TLS, with the certificate in hand_over_secret; 0: none",
        minimum=0,
        maximum=65535,
        group=Group.WORKERS,
    )
    canary: str | None = option(
        None,
        "served model on trial: the next version of another model",
        metavar="NAME",
        group=Group.TRIAL,
    )
    canary_of: str | None = option(
        None,
        "model that the canary may replace; default: the first of its kind",
        metavar="NAME",
        group=Group.TRIAL,
    )
    canary_share: float = option(
        0.1, "share of new calls for the canary", minimum=0, maximum=1, group=Group.TRIAL
    )
    canary_by: str = option(
        "call",
        "'call': random for each call; 'caller': fixed for each caller",
        metavar="HOW",
        choices=CANARY_BY,
        group=Group.TRIAL,
    )
    null_step_ms: float = option(5.0, "time of one step of backend null", minimum=0, group=Group.TESTS)
    null_hold_gil: bool = constant(
        False, "backend null computes instead of sleeping, to load the interpreter"
    )
    # The event loop releases the interpreter in every system call and waits this long to get it back from an
    # engine's thread that computes in Python; Python's own 5 ms is a third of a frame's slack.
    switch_interval_ms: float = constant(
        0.5, "time that a Python thread keeps the interpreter while another waits", minimum=0.01
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
        if (self.agent is None) != (self.llm is None):
            given, missing = ("agent", "llm") if self.agent else ("llm", "agent")
            raise ConfigError(f"{given} is given without {missing}; an agent has a name and a text model")
        _ = self.served_agents, self.tcp_ports  # they raise their own errors
        if self.zeroconf and not any(it.is_announced for it in self.tcp_ports):
            raise ConfigError(
                "zeroconf announces Wyoming ports that other machines reach, and there is none; add one by "
                "--tcp wyoming://0.0.0.0:10300"
            )
        if self.worker and not WORKER_NAME.fullmatch(self.worker):
            raise ConfigError(
                f"worker = {self.worker!r}: a name has 1 to 64 letters, digits, dots, dashes and underscores"
            )

    @property
    def served_agents(self) -> tuple[AgentConfig, ...]:
        """The voice agents to serve."""
        if self.agent is None:
            return self.agents
        text_model = TextModelConfig(
            llm=self.llm or "", llm_model=self.llm_model, llm_key_env=self.llm_key_env
        )
        return (*self.agents, AgentConfig(name=self.agent, text_models=(text_model,)))

    @property
    def tcp_ports(self) -> tuple[TcpPort, ...]:
        """The ports of protocols that do not use HTTP."""
        taken = [it for it in (self.port, self.hand_over_port, self.free_rows_port) if it]
        return read_tcp_ports(self.tcp, has_keys=self.api_keys is not None, taken=taken if self.tcp else ())

    @property
    def devices(self) -> tuple[str | None, ...]:
        """The devices, each with one engine. There is one device, which the backend may choose, unless the
        option is a list or cuda:all.

        Raises:
            ConfigError: there is no GPU, a GPU is named twice, or an entry of ``models`` has its own device.
        """
        found: tuple[str | None, ...] = (self.device,)
        if self.device == ALL_GPUS:
            found = tuple(f"cuda:{number}" for number in range(len(list_gpus())))
        elif self.device is not None:
            found = tuple(self.device.split(","))
        if not found:
            raise ConfigError(f"device {ALL_GPUS} was requested, but the driver offers no GPU")
        if len(set(found)) < len(found):
            raise ConfigError(f"device = {self.device!r} names a device twice")
        own = next((entry.model for entry in self.models if entry.device != self.device), None)
        if len(found) > 1 and own is not None:
            raise ConfigError(
                f"device = {self.device!r} is an engine for each device, but {own} has a device of its own"
            )
        return found

    def of_engine(self, number: int) -> ServerConfig:
        """The configuration of one of several engines, for its device."""
        device = self.devices[number]
        entries = (
            replace(entry, device=device) if entry.device == self.device else entry for entry in self.models
        )
        return replace(self, device=device, models=tuple(entries))

    @property
    def served(self) -> tuple[ModelConfig, ...]:
        """The models to serve, in the order of their declaration; the first model of each kind is the default
        for that kind.
        """
        return self.models or tuple(replace(self.common_model, model=ref) for ref in self.model)

    @property
    def common_model(self) -> ModelConfig:
        """The common options of all models."""
        return ModelConfig(
            backend=self.backend,
            device=self.device,
            slots=self.engine.slots,
            backend_option=self.backend_option,
            voices=self.voices,
            outside_files=self.outside_files,
        )


def load_file(path: str) -> dict[str, Any]:
    """Read the table of a TOML file.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def load_config(
    table: Mapping[str, Any], overrides: Mapping[str, Any], tunings: Mapping[str, str] | None = None
) -> ServerConfig:
    """The configuration of a file's ``table`` with ``overrides`` (option name to value) on top.

    ``tunings`` maps constants to the texts that set them for an experiment.

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
    entries, agents = merged.pop("models", []), merged.pop("agents", [])
    if entries and "model" in table:
        raise ConfigError("model and [[models]] are both given; the first is short for a single entry")
    config = tune(apply(ServerConfig(), merged), tunings or {})
    config = dataclasses.replace(config, agents=read_agents(agents))
    if "model" in overrides:
        return config
    return dataclasses.replace(config, models=_read_entries(entries, config.common_model))


def _read_entries(entries: Any, common: ModelConfig) -> tuple[ModelConfig, ...]:
    """The entries of ``[[models]]``, each on top of the common options."""
    models: list[ModelConfig] = []
    for number, entry in enumerate(tables(entries, "models"), start=1):
        if not entry.get("model"):
            raise ConfigError(f"entry {number} of [[models]] lacks 'model', the model to serve")
        models.append(apply(common, entry, ("models",)))
    return tuple(models)
