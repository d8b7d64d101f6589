"""``antiphon doctor``: the parts of this machine that a server uses, missing parts, and what can run."""

from __future__ import annotations

import argparse
import asyncio
import errno
import importlib.util
import json
import platform
import re
import shlex
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum

from antiphon import __version__
from antiphon.agent.config import TextModelConfig
from antiphon.agent.text_model import Endpoint, TextModel
from antiphon.audio.libopus import load_libopus
from antiphon.backends.machine import LEAST_CAPABILITY, WITHOUT_VNNI, Gpu, cpu_name, host_bytes, list_gpus
from antiphon.backends.registry import resolve_auto
from antiphon.config import ModelConfig, ServerConfig
from antiphon.cores import usable_cores
from antiphon.engine.config import EngineConfig
from antiphon.errors import AntiphonError, AudioError, ConfigError, MissingExtraError, TextModelError, nearest
from antiphon.install import antiphon_command, install_command
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.source import DEFAULT_MODEL
from antiphon.option import Parser, options
from antiphon.serve.hosting.engines import backend_factory
from antiphon.supervisor.address import bound
from antiphon.supervisor.connection_bounds import raise_open_file_limit
from antiphon_quantize.bench.slots import Found, find_slots, with_calls

LEAST_PYTHON = (3, 11)
LEAST_MEMORY_BYTES = 1_000_000_000
"""Twice the memory of the default model with its server."""
LEAST_FILES = 4096
"""Open files for a thousand calls with their recordings, and a reserve."""
NAME_WIDTH = 10

ModuleFinder = Callable[[str], object | None]

EXTRAS: Mapping[str, tuple[str, str]] = {
    "torch": ("torch", "models on NVIDIA GPUs, models without ONNX graphs, models of the hub"),
    "mlx": ("mlx", "models on Apple silicon"),
    "pocket": ("pocket_tts", "Pocket-TTS on a CPU"),
    "tts": ("tokenizers", "ONNX graphs of Pocket-TTS"),
    "quantize": ("onnxscript", "antiphon quantize"),
    "talk": ("sounddevice", "antiphon talk"),
    "plot": ("matplotlib", "pictures of probe and bench"),
    "otel": ("opentelemetry.sdk", "OpenTelemetry traces"),
}
"""For each extra, a module that only the extra installs, and its purpose. The default model needs none of
them.
"""


class DoctorState(StrEnum):
    """Result of a check."""

    OK = "ok"
    NOTE = "note"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One line: the check, its result as text, and the remedy, if any."""

    name: str
    state: DoctorState
    words: str
    remedy: str = ""

    def __str__(self) -> str:
        """The line, with the remedy on the next one."""
        line = f"{self.name:<{NAME_WIDTH}} {self.state:<8} {self.words}"
        return f"{line}\n{'':<{NAME_WIDTH}} {'':<8} -> {self.remedy}" if self.remedy else line


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> DoctorLine:
    """Whether Python is new enough, with the versions of Python and of Antiphon."""
    words = (
        f"{'.'.join(map(str, version))} with antiphon {__version__}, {platform.system()} {platform.machine()}"
    )
    if version[:2] < LEAST_PYTHON:
        return DoctorLine(
            "python", DoctorState.MISSING, words, "install Python 3.11 or newer, then antiphon into it"
        )
    return DoctorLine("python", DoctorState.OK, words)


def check_libopus() -> DoctorLine:
    """Whether libopus, the codec of calls, can be loaded."""
    try:
        version = load_libopus().opus_get_version_string().decode()
    except AudioError as error:
        words, _, remedy = str(error).partition(": ")
        return DoctorLine("libopus", DoctorState.MISSING, words, remedy)
    return DoctorLine("libopus", DoctorState.OK, version)


def check_cores(cores: int | None = None) -> DoctorLine:
    """The line on the number of cores that this process may use."""
    cores = usable_cores() if cores is None else cores
    if cores < 2:
        remedy = "use two: with one, a model's step and the sockets wait for each other"
        return DoctorLine("cores", DoctorState.NOTE, "1", remedy)
    return DoctorLine("cores", DoctorState.OK, f"{cores}: {cores - 1} for the model, 1 for sockets and Opus")


def check_cpu(name: str | None = None) -> DoctorLine:
    """The line on the processor, and on the cost for INT8 if it lacks the VNNI instructions."""
    name = cpu_name() if name is None else name
    if not name.endswith("without VNNI"):
        return DoctorLine("cpu", DoctorState.OK, name)
    compare = antiphon_command("bench --model ./int8 --model ./float32")
    remedy = f"use a processor with VNNI, or compare recipes: {compare}"
    return DoctorLine("cpu", DoctorState.NOTE, f"{name}: {WITHOUT_VNNI}", remedy)


def check_memory(size_bytes: int | None = None) -> DoctorLine:
    """The line on the machine's memory, or on the container's limit if that is lower."""
    size_bytes = host_bytes() if size_bytes is None else size_bytes
    words = f"{size_bytes / 1e9:.1f} GB"
    if size_bytes < LEAST_MEMORY_BYTES:
        remedy = f"give it {LEAST_MEMORY_BYTES / 1e9:.0f} GB; or fewer sessions: --slots 1"
        return DoctorLine("memory", DoctorState.NOTE, words, remedy)
    return DoctorLine("memory", DoctorState.OK, words)


def check_gpus(
    gpus: Iterable[Gpu] | None = None, *, find: ModuleFinder = importlib.util.find_spec
) -> DoctorLine:
    """The driver's NVIDIA GPUs, and whether an installed backend can use them."""
    found = list_gpus() if gpus is None else list(gpus)
    if not found:
        words = "the driver finds no NVIDIA GPU; models run on the CPU"
        return DoctorLine("gpu", DoctorState.OK, words)
    words = ", ".join(f"{gpu.name} ({gpu.memory_bytes / 1e9:.0f} GB)" for gpu in found)
    if find("torch") is None:
        return DoctorLine("gpu", DoctorState.NOTE, f"{words}, unused without torch", install_command("torch"))
    if old := [gpu.name for gpu in found if not gpu.runs_kernels]:
        least = ".".join(map(str, LEAST_CAPABILITY))
        remedy = (
            f"use a GPU of compute capability {least} or above, such as A100, L4 or RTX 30; or --device cpu"
        )
        words = f"{words}; too old for the kernels, so ticks are slow: {', '.join(old)}"
        return DoctorLine("gpu", DoctorState.NOTE, words, remedy)
    return DoctorLine("gpu", DoctorState.OK, words)


def check_files(limit: int | None = None) -> DoctorLine:
    """The line on the limit of a server's open files, which a server raises as far as allowed."""
    limit = raise_open_file_limit() if limit is None else limit
    if limit < LEAST_FILES:
        remedy = "raise the hard limit: ulimit -Hn 65536 as root, LimitNOFILE=65536 in a unit of systemd"
        return DoctorLine("files", DoctorState.NOTE, f"{limit} open at most, one a call", remedy)
    return DoctorLine("files", DoctorState.OK, f"{limit} open at most")


def check_sound(find: ModuleFinder = importlib.util.find_spec) -> DoctorLine:
    """The line on sound input and output, which only ``antiphon talk`` needs."""
    if find("sounddevice") is None:
        return DoctorLine(
            "sound", DoctorState.OK, "not checked without the extra talk; a server does not need it"
        )
    try:
        import sounddevice

        devices = list(sounddevice.query_devices())
    except OSError as error:
        words = f"antiphon talk cannot use it: {error}"
        return DoctorLine("sound", DoctorState.NOTE, words, "on Debian and Ubuntu: apt install libportaudio2")
    if not devices:
        return DoctorLine("sound", DoctorState.OK, "no devices: antiphon talk cannot run here, a server can")
    return DoctorLine(
        "sound", DoctorState.OK, f"{len(devices)} devices: {antiphon_command('talk --list-devices')}"
    )


def check_extras(find: ModuleFinder = importlib.util.find_spec) -> Iterator[DoctorLine]:
    """A line on the installed extras, then one on each absent extra that this system can use."""
    here = [extra for extra, (module, _) in EXTRAS.items() if _is_there(module, find)]
    yield DoctorLine(
        "extras",
        DoctorState.OK,
        f"installed: {', '.join(here) or 'none, which is all the default model needs'}",
    )
    for extra, (_, purpose) in EXTRAS.items():
        is_for_here = extra != "mlx" or platform.system() == "Darwin"
        if extra not in here and is_for_here:
            yield DoctorLine(f"  {extra}", DoctorState.OK, f"absent; for {purpose}", install_command(extra))


def _is_there(module: str, find: ModuleFinder) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:  # its parent is not
        return False


def check_port(host: str, port: int) -> DoctorLine:
    """Whether a server could listen on the address now, or an Antiphon does so already."""
    try:
        with bound(host, port):
            pass
    except ConfigError as error:
        is_taken = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
        if is_taken and (found := running_antiphon(host, port)):
            remedy = "to serve again, choose another port with --port, or stop that server"
            return DoctorLine("port", DoctorState.NOTE, found, remedy)
        words, _, remedy = str(error).rpartition("; ")
        return DoctorLine("port", DoctorState.MISSING, words, remedy)
    return DoctorLine("port", DoctorState.OK, f"{host} port {port} is free")


ASK_S = 1.0
"""Seconds for the whole answer of a server on a taken port, by HTTP and again by HTTPS."""
MAX_ANSWER_BYTES = 100_000
VERSION = re.compile(r"\d[\w.+-]{0,40}")


def running_antiphon(host: str, port: int) -> str:
    """The version and the URL of the Antiphon that answers at an address, as text; "" without one."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    address = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    any_certificate = ssl.create_default_context()  # only the version is read
    any_certificate.check_hostname, any_certificate.verify_mode = False, ssl.CERT_NONE
    for scheme, tls in (("http", None), ("https", any_certificate)):
        with suppress(OSError, ValueError, RecursionError):
            match json.loads(asyncio.run(_build_info(name, port, tls, address))):
                case {"name": "antiphon", "version": str(version)} if VERSION.fullmatch(version):
                    return f"antiphon {version} answers at {scheme}://{address}"
    return ""


async def _build_info(name: str, port: int, tls: ssl.SSLContext | None, address: str) -> bytes:
    """The body of an HTTP response that is complete within ``ASK_S``, without its rest if it is too long."""
    async with asyncio.timeout(ASK_S):
        reader, writer = await asyncio.open_connection(name, port, ssl=tls)
        writer.write(f"GET /api/build_info HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        with closing(writer):
            try:
                response = await reader.readexactly(MAX_ANSWER_BYTES)
            except asyncio.IncompleteReadError as end:
                response = end.partial
    return response.partition(b"\r\n\r\n")[2]


async def check_text_model(endpoint: Endpoint) -> DoctorLine:
    """Whether an agent's text model is reachable, and has the named model."""
    text_model = TextModel([endpoint])
    try:
        names, name = await text_model.models(endpoint), await text_model.name(endpoint)
    except TextModelError as error:
        remedy = "start it, or correct --llm, --llm-model or --llm-key-env"
        return DoctorLine("text model", DoctorState.MISSING, str(error), remedy)
    finally:
        await text_model.close()
    if name not in names:
        words = f"{endpoint.host} has no model {name}"
        return DoctorLine("text model", DoctorState.MISSING, words, nearest(name, names))
    return DoctorLine("text model", DoctorState.OK, f"{endpoint.host} has {name}")


SECONDS = 3.0


def check_default(model: str, *, is_timed: bool) -> DoctorLine:
    """The backend for ``model`` on this machine, and its speed: the number of slots, and the time of a tick
    when all slots are in use.
    """
    try:
        checkpoint = load_checkpoint(model)
        backend = resolve_auto(checkpoint)
        if not is_timed:
            return DoctorLine("model", DoctorState.OK, f"{describe(checkpoint)} runs on {backend}; not timed")
        config = ModelConfig(model=model)
        factory = backend_factory(ServerConfig(), config, checkpoint)
        found = find_slots(factory, EngineConfig(), SECONDS, with_calls())
    except MissingExtraError as error:
        words, _, remedy = str(error).rpartition("; install it with: ")
        return DoctorLine("model", DoctorState.MISSING, words, remedy)
    except AntiphonError as error:
        return DoctorLine(
            "model", DoctorState.MISSING, str(error), f"{antiphon_command('models')} lists others"
        )
    return judge(f"{describe(checkpoint)} on {backend}", found)


def describe(checkpoint: Checkpoint) -> str:
    """The name, the kind and the size of a model, as text."""
    spec = checkpoint.spec
    return f"{spec.name} ({spec.kind}, {spec.parameters / 1e6:.1f} M parameters)"


def judge(what: str, found: Found) -> DoctorLine:
    """The line for a measurement of the model ``what``."""
    words = (
        f"{what}: {found.slots} calls at once; a tick of their ready rows takes {found.p99_ms:.1f} ms "
        f"(p99 of {len(found.turn.tick_s)} ticks); the limit is {found.limit_ms:.0f} ms"
    )
    if found.is_in_time:
        return DoctorLine("model", DoctorState.OK, words)
    measure = antiphon_command("bench slots")
    remedy = f"--slots {max(1, found.slots // 2)}, or a quieter machine: {measure} measures longer"
    return DoctorLine("model", DoctorState.NOTE, f"{words}: answers would be late", remedy)


EXAMPLES = """\
examples:
  antiphon doctor                            everything, with some seconds of the default model
  antiphon doctor --model ./moshiko-int8 --port 9000
  antiphon doctor --no-speed                 without running a model

With a line "MISSING" a server cannot start, and the exit code is 1: apply the remedy below the line. A line
"note" has a recommendation.
"""


def main(argv: Sequence[str]) -> int:
    """Print a line for each finding, with its remedy; return 1 if a required part is missing.

    Raises:
        ConfigError: an invalid option.
    """
    asked = _parse(argv)
    findings: list[DoctorLine] = []
    for finding in look(asked):
        findings.append(finding)
        print(finding, flush=True)  # noqa: T201
    missing = [finding.name for finding in findings if finding.state is DoctorState.MISSING]
    if missing:
        print(f"\nnot ready: {', '.join(missing)}")  # noqa: T201
        return 1
    running = [it.words for it in findings if it.name == "port" and it.state is DoctorState.NOTE]
    print(f"\nready: {running[0] if running else serve_command(asked)}")  # noqa: T201
    return 0


def look(asked: argparse.Namespace) -> Iterator[DoctorLine]:
    """Run the checks, and yield their findings in order; the slow check of the model is last."""
    checks: tuple[Callable[[], DoctorLine], ...] = (
        check_python, check_libopus, check_cpu, check_cores, check_memory, check_gpus, check_files,
        check_sound,
    )  # fmt: skip
    for check in checks:
        yield check()
    yield from check_extras()
    yield check_port(asked.host, asked.port)
    if asked.llm is not None:
        found = TextModelConfig(llm=asked.llm, llm_model=asked.llm_model, llm_key_env=asked.llm_key_env)
        yield asyncio.run(check_text_model(Endpoint(found.llm, found.llm_model, found.llm_key_env)))
    yield check_default(asked.model, is_timed=asked.is_timed)


def serve_command(asked: argparse.Namespace) -> str:
    """The command that serves the checked model."""
    known = options(ServerConfig)
    words = ["serve"] if asked.model == DEFAULT_MODEL else ["serve", "--model", asked.model]
    for name in ("host", "port"):
        if (value := getattr(asked, name)) != known[name].default:
            words += [f"--{name}", str(value)]
    return antiphon_command(shlex.join(words))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    known = options(ServerConfig)
    parser = Parser(
        prog="antiphon doctor",
        description="Check this machine: installed parts, missing parts, and the models that run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="the model to run [%(default)s]")
    parser.add_argument("--host", default=known["host"].default, help="address to listen on [%(default)s]")
    parser.add_argument("--port", type=int, default=known["port"].default, help="TCP port [%(default)s]")
    for name in ("llm", "llm_model", "llm_key_env"):
        info = known[name]
        parser.add_argument(info.flag, metavar=info.unit, help=info.help)
    parser.add_argument("--no-speed", action="store_false", dest="is_timed", help="do not run the model")
    return parser.parse_args(list(argv))
